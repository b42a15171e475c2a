package hosting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"atoll.dev/api/hypershift"
	"atoll.dev/backup"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/drill"
	"atoll.dev/plane"
)

// lateDrills are the Drills of a world, which are made after the runtime that they need.
type lateDrills struct{ atomic.Pointer[drill.Drills] }

func (l *lateDrills) Failure(id controlplane.ID) string {
	if d := l.Load(); d != nil {
		return d.Failure(id)
	}
	return ""
}

func (l *lateDrills) Forget(id controlplane.ID) {
	if d := l.Load(); d != nil {
		d.Forget(id)
	}
}

// drillsOf returns how many drills had a result since the last start.
func (r *restoreWorld) drillsOf(result string) (n float64) {
	r.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "atoll_backup_drills_total" && m.Label[0].GetValue() == result {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// scratchPlane returns the process of the scratch plane; 0: none runs.
func (r *restoreWorld) scratchPlane() int {
	found, _ := filepath.Glob(filepath.Join(r.planes.Dir, "planes", controlplane.ScratchNamespace, "*"))
	for _, dir := range found {
		if pid, ok := plane.Running(dir); ok {
			return pid
		}
	}
	return 0
}

// hasNoScratch returns an error while something of a scratch plane is there.
func (r *restoreWorld) hasNoScratch() error {
	found, _ := filepath.Glob(filepath.Join(r.planes.Dir, "*", controlplane.ScratchNamespace, "*"))
	if len(found) > 0 {
		return fmt.Errorf("%v", found)
	}
	return nil
}

// damagedStore is a store whose snapshots are damaged while it is damaged.
type damagedStore struct {
	backup.Store
	isDamaged atomic.Bool
}

func (s *damagedStore) Get(ctx context.Context, name string) ([]byte, error) {
	content, err := s.Store.Get(ctx, name)
	if s.isDamaged.Load() && strings.Contains(name, "/snapshot-") && err == nil {
		content = bytes.Clone(content)
		content[len(content)/2] ^= 1
	}
	return content, err
}

// logLines collects what hosting logs.
type logLines struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *logLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

func (l *logLines) has(text string) bool {
	return strings.Contains(l.text(), text)
}

// A backup is restored for practice, with Secrets, and nothing of the scratch plane stays. Hosting stops at once during
// a drill, and its next start deletes the scratch plane. A damaged backup shows in the status, over a restart, too,
// until it is repaired.
func TestI1I12ABackupIsRestoredForPractice(t *testing.T) {
	r := newRestoreWorld(t)
	key := r.create("drilled", nil)
	_, c := r.available(key)
	r.keep(c, "kept")
	r.keepSecret(c)
	r.stored(key)
	damaged, log := &damagedStore{Store: r.store}, &logLines{}
	r.options.Log = slog.New(slog.NewTextHandler(log, nil))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.text())
		}
	})
	again := func(every time.Duration) {
		r.halt()
		r.store, r.drillEvery = damaged, every
		r.run()
	}

	again(time.Second)
	r.wait("the success of a drill", func() error {
		if r.drillsOf("success") == 0 {
			return fmt.Errorf("%v failures, %v without a result", r.drillsOf("failure"), r.drillsOf("unfinished"))
		}
		return nil
	})
	r.wait("a drill that was compared", func() error {
		if log.has("compared=true") {
			return nil
		}
		return errStill
	})
	if r.drillsOf("failure") > 0 {
		t.Error("a drill of a good backup failed")
	}
	r.condition(key, hypershift.BackedUp, "True", "")
	for _, state := range []controlplane.State{controlplane.Ready, controlplane.Starting} {
		if n := r.h.countStates()[state]; state == controlplane.Ready && n != 1 || state == controlplane.Starting && n != 0 {
			t.Errorf("%d planes are %s", n, state)
		}
	}

	pid := 0 // kept from the same look: the drill may end a moment later
	r.wait("the scratch plane of another drill", func() error {
		if pid = r.scratchPlane(); pid == 0 {
			return errStill
		}
		return nil
	})
	begun := time.Now()
	r.halt()
	if took := time.Since(begun); took > 30*time.Second { // at once, on an idle machine; a drill may take 15 minutes
		t.Errorf("hosting stopped after %s", took)
	}
	customers := r.pid(key)
	r.drillEvery = 0
	r.run() // without drills
	r.wait("the end of the scratch plane", r.hasNoScratch)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Error("the process of the scratch plane is left")
	}
	if r.pid(key) != customers {
		t.Error("the customer's plane was restarted")
	}
	if owners, err := r.store.List(t.Context(), ".owners/"+controlplane.ScratchNamespace); err != nil || len(owners) > 0 {
		t.Errorf("the scratch plane has claimed backups: %v, %v", owners, err)
	}
	if names, err := r.store.List(t.Context(), controlplane.ScratchNamespace); err != nil || len(names) > 0 {
		t.Errorf("the scratch plane has backups: %v, %v", names, err)
	}

	damaged.isDamaged.Store(true)
	again(time.Second)
	hc := r.condition(key, hypershift.BackedUp, "False", string(cluster.ReasonDrillFailed))
	r.condition(key, hypershift.Degraded, "True", string(cluster.ReasonDrillFailed))
	message := meta.FindStatusCondition(hc.Status.Conditions, hypershift.BackedUp).Message
	if !strings.Contains(message, "the backup is damaged") || strings.Contains(message, "snapshot-") {
		t.Errorf("the message for the customer: %s", message)
	}
	if r.drillsOf("failure") == 0 || !log.has("a backup cannot be restored") {
		t.Errorf("%v failures are counted", r.drillsOf("failure"))
	}
	r.condition(key, hypershift.Available, "True", reasonAsExpected)
	again(time.Hour)
	r.stored(key)
	r.setData(c, "kept", "changed")
	r.condition(key, hypershift.BackedUp, "False", string(cluster.ReasonDrillFailed))
	damaged.isDamaged.Store(false)
	again(time.Second)
	r.condition(key, hypershift.BackedUp, "True", "")
	r.condition(key, hypershift.Degraded, "False", "")
	r.delete(key)
	r.gone(key)
	r.halt()
	content := readFile(t, filepath.Join(r.planes.Dir, "drills.json"))
	if bytes.Contains(content, []byte(key.Name+`":{"at"`)) {
		t.Errorf("a failure of a deleted plane is kept: %s", content)
	}
	if err := r.hasNoScratch(); err != nil && !errors.Is(err, errStill) {
		r.run()
		r.wait("the end of the last scratch plane", r.hasNoScratch)
	}
}
