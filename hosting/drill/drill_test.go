package drill

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

// errDeleted is in an answer of PrepareScratch when the customer's plane is deleted meanwhile.
var errDeleted = errors.New("the plane is deleted")

// fakeWorld is a runtime with one plane, and its backups. Drills read them as hosting's.
type fakeWorld struct {
	*testing.T
	id    controlplane.ID
	taken time.Time // of the first chain

	mu      sync.Mutex
	renewed []time.Time                 // when a new chain began
	isGone  bool                        // the plane was deleted
	scratch bool                        // there is a scratch plane
	orders  []controlplane.RestoreOrder // of scratch planes
	answers []error                     // of PrepareScratch, one after the other; then the last one again
	file    string
	drills  *Drills
	end     func()
	changes int
}

func (w *fakeWorld) List() []controlplane.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []controlplane.ID
	if !w.isGone {
		list = append(list, w.id)
	}
	if w.scratch {
		list = append(list, controlplane.ID{Namespace: controlplane.ScratchNamespace, Name: scratchName})
	}
	return list
}

func (w *fakeWorld) Observe(controlplane.ID) (controlplane.Observation, error) {
	return controlplane.Observation{State: controlplane.Ready,
		LastStart: controlplane.LastStart{Release: "1", Served: "1"},
		Size:      controlplane.SizeState{Limits: controlplane.Limits{Memory: 1 << 30}}}, nil
}

func (w *fakeWorld) Ensure(controlplane.ID, controlplane.Spec) error {
	return errors.New("no plane can start")
}

func (w *fakeWorld) Client(controlplane.ID) (controlplane.Admin, error) {
	return controlplane.Admin{}, controlplane.ErrNotServing
}

func (w *fakeWorld) Discard(id controlplane.ID) (bool, error) {
	if !id.IsScratch() {
		w.Errorf("the customer's plane %s is deleted", id)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scratch = false
	return true, nil
}

func (w *fakeWorld) Drillable() map[controlplane.ID]controlplane.BackupWindow {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isGone {
		return nil
	}
	now := time.Now()
	chains := []controlplane.BackupChain{{Taken: w.taken, EverySecond: true}}
	for _, at := range w.renewed {
		chains = append(chains, controlplane.BackupChain{Taken: at, EverySecond: true})
	}
	return map[controlplane.ID]controlplane.BackupWindow{w.id: {Stored: now, Chains: chains}}
}

func (w *fakeWorld) renew(id controlplane.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id != w.id {
		w.Errorf("a new chain of %s", id)
	}
	w.renewed = append(w.renewed, time.Now())
}

func (w *fakeWorld) PrepareScratch(_ context.Context, _ controlplane.ID, o controlplane.RestoreOrder) (
	controlplane.ScratchData, error) {
	w.mu.Lock()
	w.scratch = true
	w.orders = append(w.orders, o)
	err := w.answers[0]
	if len(w.answers) > 1 {
		w.answers = w.answers[1:]
	}
	w.isGone = w.isGone || errors.Is(err, errDeleted)
	isGone := w.isGone
	w.mu.Unlock()
	if isGone {
		w.drills.Forget(w.id)
	}
	return controlplane.ScratchData{}, err
}

func (w *fakeWorld) CompareScratch(context.Context, controlplane.ID, controlplane.ScratchData) (
	controlplane.ScratchComparison, error) {
	return controlplane.ScratchComparison{}, errors.New("there is no scratch plane")
}

// run starts drills every hour, the first one at once.
func (w *fakeWorld) run() {
	w.drills = New(Options{Planes: w, Backups: w, Renew: w.renew, Every: time.Hour, File: w.file,
		Machine: func() (Machine, error) { return Machine{Memory: 8 << 30}, nil }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- w.drills.Run(ctx, func(controlplane.ID) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes++
		})
	}()
	w.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
}

// inWorld runs a test with drills whose scratch planes' data is prepared with these answers.
func inWorld(t *testing.T, test func(w *fakeWorld), answers ...error) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWorld{T: t, id: controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}, answers: answers,
			taken: time.Now().Add(-10 * time.Hour),
			file:  filepath.Join(t.TempDir(), "drills.json")}
		content, err := json.Marshal(state{Last: time.Now().Add(-time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		w.run()
		defer func() { w.end() }()
		test(w)
	})
}

// after waits, and returns the seconds to which scratch planes were restored until then.
func (w *fakeWorld) after(d time.Duration) (seconds []time.Time) {
	<-time.After(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.orders {
		seconds = append(seconds, o.At)
	}
	return seconds
}

func (w *fakeWorld) results() (success, failure bool) {
	w.drills.mu.Lock()
	defer w.drills.mu.Unlock()
	return !w.drills.state.Succeeded.IsZero(), len(w.drills.state.Failed) > 0
}

// A bad backup is read again before it counts, stays failed over a restart, and is drilled with the same second.
func TestABadBackupStaysFailed(t *testing.T) {
	inWorld(t, func(w *fakeWorld) {
		seconds := w.after(10 * time.Second)
		if len(seconds) != 2 || w.changes != 1 || !strings.Contains(w.drills.Failure(w.id), "the backup is damaged") {
			t.Fatalf("%d attempts, %d changes: %s", len(seconds), w.changes, w.drills.Failure(w.id))
		}
		if len(w.List()) != 1 {
			t.Error("the scratch plane is left")
		}
		w.end()
		w.run()
		if w.drills.Failure(w.id) == "" {
			t.Error("the failure is forgotten at a restart")
		}
		seconds = w.after(time.Hour)
		if len(w.renewed) != 1 {
			t.Errorf("%d new chains began, want one in place of the bad one", len(w.renewed))
		}
		if len(seconds) != 4 || len(slices.CompactFunc(slices.Clone(seconds), time.Time.Equal)) != 1 {
			t.Errorf("the seconds: %v", seconds)
		}
		w.drills.Forget(w.id)
		if w.drills.Failure(w.id) != "" {
			t.Error("a deleted plane has a failure")
		}
	}, controlplane.ErrBadBackup)
}

// The retention deletes a backup while it is read: that is no failure.
func TestAnExpiredBackupIsNoFailure(t *testing.T) {
	inWorld(t, func(w *fakeWorld) {
		w.after(10 * time.Second)
		if success, failure := w.results(); success || failure || w.changes > 0 {
			t.Errorf("success %v, failure %v, %d changes", success, failure, w.changes)
		}
		if seconds := w.after(time.Minute); len(seconds) != 3 {
			t.Errorf("another drill follows: %v", seconds)
		}
	}, controlplane.ErrBadBackup, backup.ErrOutside)
}

// A failed second that no backup has any more is not asked for again.
func TestAFailedSecondThatIsGoneIsLeft(t *testing.T) {
	inWorld(t, func(w *fakeWorld) {
		seconds := w.after(2*time.Hour + 10*time.Minute)
		if len(seconds) < 5 || !seconds[2].Equal(seconds[1]) || seconds[3].Equal(seconds[2]) {
			t.Errorf("the seconds: %v", seconds)
		}
		if w.drills.Failure(w.id) == "" {
			t.Error("the failure is cleared without a success")
		}
	}, controlplane.ErrBadBackup, controlplane.ErrBadBackup, backup.ErrOutside)
}

// A store that is away, and a customer's restore, have a drill begin again a minute later.
func TestADrillWithoutAResultIsRepeated(t *testing.T) {
	inWorld(t, func(w *fakeWorld) {
		seconds := w.after(5*time.Minute + 30*time.Second)
		if success, failure := w.results(); len(seconds) != 6 || success || failure {
			t.Errorf("%d drills, success %v, failure %v", len(seconds), success, failure)
		}
	}, controlplane.ErrNoRoom, errors.New("the store does not answer"))
}

// A plane that is deleted while its backup is drilled has no failure: a later cluster of its name would show it.
func TestADeletedPlaneHasNoFailure(t *testing.T) {
	inWorld(t, func(w *fakeWorld) {
		w.after(10 * time.Second)
		if _, failure := w.results(); failure || w.changes > 0 {
			t.Errorf("failure %v, %d changes", failure, w.changes)
		}
	}, errors.Join(controlplane.ErrBadBackup, errDeleted))
}
