package ledger

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/work"
	"atoll.dev/maestro/delivery"
)

func TestComparisonOfWhatAnAgentHolds(t *testing.T) {
	acknowledged := func(id work.ID, generation int64) WantedWork {
		return WantedWork{Work: delivery.Work{Consumer: "mc1", ID: id, Generation: generation}}
	}
	unacknowledged := func(id work.ID, generation int64) WantedWork {
		w := acknowledged(id, generation)
		w.Unacknowledged = true
		return w
	}
	deleting := acknowledged("going", 2)
	deleting.Deleting = true
	ours := []WantedWork{unacknowledged("new", 1), unacknowledged("older", 3), acknowledged("equal", 2),
		unacknowledged("unanswered", 4), acknowledged("ahead", 2), deleting}
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
		Send: []delivery.Work{ours[5].Work, ours[0].Work, ours[1].Work},
		Received: []delivery.Work{{Consumer: "mc1", ID: "equal", Generation: 2},
			{Consumer: "mc1", ID: "unanswered", Generation: 4}, {Consumer: "mc1", ID: "ahead", Generation: 7}},
		Pending: []delivery.Work{ours[3].Work},
		Unknown: []work.ID{"strange"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if all := Compare(ours, nil); len(all.Send) != len(ours) {
		t.Errorf("an empty list asks for everything: %+v", all)
	}
}
