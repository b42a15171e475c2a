package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/access/audit"
	"atoll.dev/test/localtest"
)

// The Platform API and the store are killed again and again while accounts are created: each audit record is in the
// store afterwards, and the copy there ends with the chain of the region.
func TestAuditRecordsReachTheStoreOfAKilledRegionI12(t *testing.T) {
	r := localtest.Restarted(t)
	name := r.Status().Region
	for i := range 6 {
		localtest.Eventually(t, 3*time.Minute, func() error {
			_, err := r.Try("account", "create", fmt.Sprintf("7000000000%02d", i))
			return err
		})
		localtest.Kill(t, r.Process([]string{"platform", "object-store"}[i%2]).PID)
	}
	localtest.Eventually(t, 5*time.Minute, func() error {
		var region, copied struct {
			First int64        `json:"first"`
			Head  audit.Anchor `json:"head"`
			Forks []int64      `json:"forks"`
		}
		out, err := r.Try("audit", "verify", "-o", "json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(out), &region); err != nil {
			return err
		}
		out, err = r.Try("audit", "verify", "--store", filepath.Join(r.Home, "backups", "store.yaml"), "--region", name,
			"--expect", fmt.Sprintf("%d:%s", region.Head.Seq, region.Head.Hash), "-o", "json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(out), &copied); err != nil {
			return err
		}
		if copied.First != region.First || copied.Head.Seq < region.Head.Seq {
			return fmt.Errorf("the copy has records %d to %d, the region %d to %d", copied.First, copied.Head.Seq,
				region.First, region.Head.Seq)
		}
		return nil
	})
}
