package operator

import (
	"strings"
	"testing"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/recovery"
)

func TestRebuildTableShowsTheResult(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var late, done recovery.Report
	late.Waiting = []recovery.Wait{{Kind: "ManagementCluster", Name: "mc1",
		What: "its agent has not listed its works yet"}}
	done.Done, done.Consumers.Known, done.Works.Present, done.Resources.Restored = true, 2, 7, 3
	done.Unknown = []api.UnknownWork{{ConsumerName: "mc1", ID: "w-1", Version: 3, FirstSeenAt: now.Add(-time.Minute)}}
	for _, c := range []struct {
		report recovery.Report
		want   string
	}{
		{late, `WAITING FOR         NAME   ID   WHY
ManagementCluster   mc1    -    its agent has not listed its works yet
to see why a resource waits: atoll clm why ID; the state of the agents: atoll mc list
`},
		{done, `restored: 2 consumers, 7 works; 3 resources were handled

Agents hold 1 works that no source has ordered again; they stay applied:
CLUSTER   ID    GENERATION   KNOWN FOR   ADOPTING FOR
mc1       w-1   3            60s         
If a source still needs a work: atoll maestro unknown adopt mc1 w-1 --source SOURCE
If no source needs it:          atoll maestro unknown delete mc1 w-1 --reason WHY
`},
	} {
		var b strings.Builder
		rebuildTable(&b, c.report, now)
		if got := b.String(); got != c.want {
			t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
		}
	}
}
