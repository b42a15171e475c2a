package ledger

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/work"
)

func TestComparisonOfWhatAnAgentHolds(t *testing.T) {
	ours := []Work{{ID: "new", Generation: 1, Unacknowledged: true}, {ID: "older", Generation: 3, Unacknowledged: true},
		{ID: "equal", Generation: 2}, {ID: "unanswered", Generation: 4, Unacknowledged: true},
		{ID: "ahead", Generation: 2}, {ID: "going", Generation: 2, Deleting: true}}
	theirs := []work.SpecVersion{
		{ID: "older", Version: 2},
		{ID: "equal", Version: 2},
		{ID: "unanswered", Version: 4},
		{ID: "ahead", Version: 7},
		{ID: "going", Version: 2},
		{ID: "strange", Version: 1},
	}
	got := Compare(ours, theirs)
	want := Comparison{
		Send:     []Work{ours[5], ours[0], ours[1]},
		Received: []Work{{ID: "equal", Generation: 2}, {ID: "unanswered", Generation: 4}, {ID: "ahead", Generation: 7}},
		Pending:  []Work{ours[3]},
		Unknown:  []work.ID{"strange"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Comparison{}, Work{})); diff != "" {
		t.Error(diff)
	}
	if all := Compare(ours, nil); len(all.Send) != len(ours) {
		t.Errorf("an empty list asks for everything: %+v", all)
	}
}
