package hosting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/quick"
)

// lose ends hosting, kills a plane, and removes its HostedCluster and everything that hosting had on its disk.
func (r *restoreWorld) lose(key controlplane.ID) {
	r.Helper()
	r.halt()
	dir, pid := r.dir(key), r.pid(key)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		r.Fatal(err)
	}
	r.wait("the end of the plane's process", func() error {
		if r.pid(key) == pid {
			return errStill
		}
		return nil
	})
	r.forget()
	for _, lost := range []string{dir, r.runtime.StateDir(key)} {
		if err := os.RemoveAll(lost); err != nil {
			r.Fatal(err)
		}
	}
}

// stored waits until the backup of a plane has everything that was acknowledged before the call.
func (r *restoreWorld) stored(key controlplane.ID) {
	r.Helper()
	now := time.Now()
	r.wait("the backup of "+key.String(), func() error {
		if s, isMade := r.backups.State(key); !isMade || s.Stored.Before(now) {
			return errStill
		}
		return nil
	})
}

// A management cluster is lost with everything on it, and the region orders the same cluster on another one. Its plane
// gets data and keys from its backup, and executes no restore again that it has executed before.
func TestI1ALostPlaneIsRecoveredFromItsBackup(t *testing.T) {
	r := newRestoreWorld(t)
	key := r.create("lost", nil)
	_, c := r.available(key)
	authority := readFile(t, filepath.Join(r.dir(key), "pki", "ca.crt"))
	r.keep(c, "before")
	r.keepSecret(c)
	r.stored(key)
	order := hypershift.RestoreOrder{ID: "first", At: time.Now().UTC().Format(time.RFC3339)}
	r.order(key, order)
	r.await(key, "first", hypershift.RestoreCompleted)
	_, c = r.available(key)
	r.keep(c, "later")
	r.stored(key)

	for range 2 { // the second time from the backup of a plane that was recovered
		r.lose(key)
		r.createOrdered(key, order)
		r.run()
		r.await(key, "first", hypershift.RestoreCompleted) // it was executed, and never runs again
		hc, c := r.available(key)
		r.hasConfigMap(c, "before")
		r.hasConfigMap(c, "later")
		if _, err := c.Resource(secrets()).Namespace("default").Get(t.Context(), "secret", metav1.GetOptions{}); err != nil {
			t.Errorf("the Secret cannot be read: %v", err)
		}
		if !bytes.Equal(readFile(t, filepath.Join(r.dir(key), "pki", "ca.crt")), authority) {
			t.Error("the plane has another authority, so all credentials of its customers have ended")
		}
		if !strings.Contains(hc.Status.Restore.Message, "does not run again") {
			t.Errorf("the status of the order: %+v", hc.Status.Restore)
		}
		r.wait("the removal of what the recovery left", func() error {
			if left, _ := filepath.Glob(filepath.Join(r.runtime.StateDir(key), "restored-*")); len(left) > 0 {
				return errStill
			}
			return nil
		})
		r.stored(key)
	}

	// A deleted cluster is not lost: another cluster of the name begins empty.
	r.delete(key)
	r.gone(key)
	r.wait("the tombstone in the store", func() error {
		exists, err := r.records().Exists(t.Context(), backup.Plane(key))
		if exists {
			err = errStill
		}
		return err
	})
	r.createAt(key, nil)
	_, c = r.available(key)
	_, err := c.Resource(configMaps()).Namespace("default").Get(t.Context(), "later", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a new cluster has an object of the deleted one of its name: %v", err)
	}
}

// A management cluster is lost while a plane runs another release than that of its spec, whose program does not work.
// The recovered plane goes back to the release of its backup. The plane had become ready with that release after its
// first chain had begun.
func TestI1ALostPlaneIsRecoveredWithItsRelease(t *testing.T) {
	quick.Slow(t, "recovers a plane after two upgrades")
	r := newRestoreWorld(t)
	key := r.create("lost", nil)
	r.available(key)
	r.world.order(key, "1.36.4")
	r.upgradeIs(key, hypershift.UpgradeSoaks, "1.36.4")
	_, c := r.available(key)
	r.keep(c, "before")
	r.stored(key)
	r.wait("a chain that names the release", func() error {
		return r.newestChainNames(key, "1.36.4")
	})
	r.program("1.36.9", "exit 1")
	r.lose(key)
	r.createAt(key, map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.9"}})
	r.run()
	hc := r.upgradeIs(key, hypershift.UpgradeFailed, "1.36.4")
	if hc.Status.Upgrade.From != "1.36.4" || hc.Status.Upgrade.To != "1.36.9" {
		t.Errorf("the upgrade is %+v", hc.Status.Upgrade)
	}
	_, c = r.available(key)
	r.hasConfigMap(c, "before")
}

// newestChainNames returns an error unless the latest restore of a plane's backup names a release.
func (r *restoreWorld) newestChainNames(key controlplane.ID, release string) error {
	got, err := backup.Fetch(r.Context(), r.store, r.keys, backup.Plane(key), time.Time{}, r.TempDir())
	if err == nil && got.Release != release {
		err = fmt.Errorf("the newest chain names release %q", got.Release)
	}
	return err
}

// A plane that the region orders to recover is made from its backup, which the status shows. Without a backup it does
// not begin empty.
func TestI1APlaneThatMustBeRecoveredNeverBeginsEmpty(t *testing.T) {
	r := newRestoreWorld(t)
	key := r.create("lost", nil)
	_, c := r.available(key)
	r.keep(c, "before")
	r.stored(key)
	r.lose(key)
	order := hypershift.MoveOrder{ID: "m1", Role: hypershift.MoveRecovers}
	r.createMoving(key, order)
	without := controlplane.ID{Namespace: key.Namespace + "-2", Name: "without"}
	makeNamespace(r.T, r.admin, without.Namespace)
	r.createMoving(without, order)
	r.run()
	r.awaitMove(key, hypershift.MoveArrived)
	_, c = r.available(key)
	r.hasConfigMap(c, "before")

	r.awaitMove(without, hypershift.MoveFailed)
	if o, err := r.runtime.Observe(without); err != nil || o.LastStart.Release != "" || o.Running {
		t.Errorf("a plane without a backup: %+v, %v", o.LastStart, err)
	}
	hc := r.get(without)
	if !strings.Contains(hc.Status.Move.Message, "has no backup of it") {
		t.Errorf("the status: %+v", hc.Status.Move)
	}
	r.delete(without)
	r.gone(without)
}

// silentStore is a store that refuses to list while it is silent.
type silentStore struct {
	backup.Store
	isSilent atomic.Bool
}

func (s *silentStore) List(ctx context.Context, prefix string) ([]string, error) {
	if s.isSilent.Load() {
		return nil, errors.New("the store does not answer")
	}
	return s.Store.List(ctx, prefix)
}

// While the store does not answer, no plane begins empty that may have a backup.
func TestI1NoPlaneBeginsEmptyWhileTheStoreIsSilent(t *testing.T) {
	r := newRestoreWorld(t)
	silent := &silentStore{Store: r.store}
	silent.isSilent.Store(true)
	r.halt()
	r.store = silent
	r.run()
	key := r.create("new", nil)
	hc := r.condition(key, hypershift.Available, "False", "PlaneStarting")
	r.wait("the reason in the status", func() error {
		hc = r.get(key)
		for _, c := range hc.Status.Conditions {
			if c.Type == hypershift.Available && strings.Contains(c.Message, "the store of the backups does not answer") {
				return nil
			}
		}
		return errStill
	})
	if o := r.observe(key); o.Running || o.HasData {
		t.Errorf("the plane has started: %+v", o)
	}
	silent.isSilent.Store(false)
	r.available(key)
}

// remainingBackups have data for every order, and what the orders left until Forget.
type remainingBackups struct {
	noBackups
	remains map[string]bool
}

func (b *remainingBackups) Prepare(controlplane.ID, controlplane.RestoreOrder) controlplane.Preparation {
	return controlplane.Preparation{State: controlplane.PreparationDone}
}

func (b *remainingBackups) HasRemains(_ controlplane.ID, order string) bool { return b.remains[order] }
func (b *remainingBackups) Forget(_ controlplane.ID, order string)          { delete(b.remains, order) }

// A plane that was recovered may never be ready with its data: a later order of its customer replaces that. When the
// recovery has ended, it stays so, whatever orders are executed and however often hosting starts.
func TestARecoveryHoldsUpNoLaterOrder(t *testing.T) {
	b := &remainingBackups{remains: map[string]bool{controlplane.Recovery: true}}
	h := &Hosting{o: Options{Backups: b, Releases: Releases{"1.36.3"}}}
	hc := newSituation().Cluster
	order := func(id string) {
		hc.Annotations = map[string]string{hypershift.RestoreAnnotation: `{"id":"` + id + `","at":"2026-01-01T00:00:00Z"}`}
	}
	last := controlplane.LastStart{Release: "1.36.3", Data: controlplane.Recovery, PastData: []string{"first"}}
	find := func() *restore { return h.findRestore(&hostedCluster{}, hc, last) }
	order("first") // of before
	if r := find(); !r.IsRecovery || !r.isUnfinished() {
		t.Errorf("the recovery has not ended: %+v", r)
	}
	order("second")
	if r := find(); r.Order.ID != "second" || !r.isPrepared() {
		t.Errorf("the customer's order waits: %+v", r)
	}
	b.Forget(controlplane.ID{}, controlplane.Recovery)
	order("first")
	if r := find(); r.IsRecovery || r.isUnfinished() {
		t.Errorf("the recovery begins again: %+v", r)
	}
}
