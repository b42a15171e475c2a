package customer

import (
	"strings"
	"testing"
	"time"

	"atoll.dev/api/platform"
)

// The list of backups shows which ones a restore could not read, and says so when there is no other.
func TestTheListOfBackupsShowsDamagedOnes(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	end := noon.Add(2 * time.Hour)
	b := platform.ClusterBackups{From: &noon, To: &end, Count: 2, Items: []platform.Backup{
		{Taken: noon, EverySecond: true}, {Taken: noon.Add(time.Hour), EverySecond: true, Damaged: true}}}
	const damaged = "2026-11-28T13:00:00Z   every second from then on (damaged: a restore could not read it)"
	for _, c := range []struct {
		change  func()
		has     []string
		hasNone string
	}{
		{func() {}, []string{"cluster demo can be restored from 2026-11-28T12:00:00Z to", damaged,
			"12:00:00Z   every second from then on\n"}, "cannot"},
		{func() { b.From, b.Items, b.Count = nil, b.Items[1:], 1 },
			[]string{"cluster demo cannot be restored: a restore could read none of its backups (1)", damaged}, "has no backup"},
		{func() { b.Items, b.Count = nil, 0 }, []string{"cluster demo has no backup"}, "damaged"},
	} {
		c.change()
		var out strings.Builder
		backupTable(&out, "demo", b)
		for _, want := range c.has {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is not in:\n%s", want, &out)
			}
		}
		if strings.Contains(out.String(), c.hasNone) {
			t.Errorf("%q is in:\n%s", c.hasNone, &out)
		}
	}
}
