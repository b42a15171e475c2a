package arm

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
)

func candidateOf(id string) orphanCandidate {
	return orphanCandidate{kind: kindCluster, document: "document-" + id,
		resource: clmclient.Resource{Resource: clm.Resource{ID: id}}}
}

// TestAFailedOrphanIsCheckedAgainAfterGrowingPauses fails every check of a candidate.
func TestAFailedOrphanIsCheckedAgainAfterGrowingPauses(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	retries, failed := orphanRetries{}, []orphanCandidate{candidateOf("a")}
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300} {
		want *= time.Second
		if dropped := retries.add(failed, now); dropped != 0 {
			t.Fatalf("failure %d: %d dropped", n, dropped)
		}
		if got := retries.untilNext(now); got != want {
			t.Errorf("failure %d: a pause of %s, want %s", n, got, want)
		}
		if early := retries.takeDue(now.Add(want-1), 10); len(early) > 0 {
			t.Errorf("failure %d: checked too early", n)
		}
		now = now.Add(want)
		if failed = retries.takeDue(now, 10); len(failed) != 1 || len(retries) != 0 {
			t.Fatalf("failure %d: %d are due, %d remain", n, len(failed), len(retries))
		}
	}
}

// TestFailedOrphansAreBounded fails more checks than there is room for.
func TestFailedOrphansAreBounded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	retries := orphanRetries{}
	var failed []orphanCandidate
	for i := range maxOrphanRetries + 7 {
		failed = append(failed, candidateOf(fmt.Sprint(i)))
	}
	if dropped := retries.add(failed, now); dropped != 7 || len(retries) != maxOrphanRetries {
		t.Errorf("%d dropped, %d kept", dropped, len(retries))
	}
	if again := retries.add(failed[:5], now); again != 0 {
		t.Errorf("%d dropped that have their room", again)
	}
	if due := retries.takeDue(now.Add(time.Hour), 10); len(due) != 10 {
		t.Errorf("%d due, want the limit of 10", len(due))
	}
}
