package hosting

import (
	"testing"

	"atoll.dev/api/hypershift"
	"atoll.dev/backup"
	"atoll.dev/cluster"
)

// A plane lives on another management cluster, and the one that had it before comes back: it stops the plane, never
// starts it again, also after a restart while the store does not answer, and its deletion keeps the backups.
func TestI1ASupersededPlaneNeverRunsAgain(t *testing.T) {
	r := newRestoreWorld(t)
	key := r.create("superseded", nil)
	r.available(key)
	r.stored(key)
	pid := r.pid(key)
	elsewhere := &heldIdentity{backup.Identity{Owner: "elsewhere"}}
	if err := r.records().Claimant(backup.Plane(key), elsewhere).Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.condition(key, hypershift.Available, "False", string(cluster.ReasonMovedAway))
	r.wait("the end of the plane's process", func() error {
		if r.runs(pid, key) {
			return errStill
		}
		return nil
	})
	silent := &silentStore{Store: r.store}
	r.halt()
	silent.isSilent.Store(true)
	r.store = silent
	r.run()
	r.condition(key, hypershift.Available, "False", string(cluster.ReasonMovedAway))
	if o := r.observe(key); o.Running {
		t.Errorf("after a restart: %+v", o)
	}
	silent.isSilent.Store(false)
	r.delete(key)
	r.gone(key, pid)
	if exists, err := r.records().Exists(t.Context(), backup.Plane(key)); !exists || err != nil {
		t.Errorf("after the deletion of the superseded plane its backup: %v, %v", exists, err)
	}
}

// heldIdentity is the disk of another management cluster.
type heldIdentity struct{ backup.Identity }

func (h *heldIdentity) Load() (backup.Identity, error) { return h.Identity, nil }

func (h *heldIdentity) Update(_ backup.Owner, change func(backup.Identity) backup.Identity) error {
	h.Identity = change(h.Identity)
	return nil
}
