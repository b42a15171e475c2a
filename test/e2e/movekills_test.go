package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/api/fleet"
	"atoll.dev/client"
	"atoll.dev/internal/quick"
	"atoll.dev/test/localtest"
)

// Whatever is killed in whichever phase of a move, the move ends, one management cluster runs the plane, every
// acknowledged write is there, and the kubeconfig of before works. A customer writes all the time. It moves a cluster
// five times and recovers it once, so it runs on request only.
func TestI1I9I12AMoveSurvivesKills(t *testing.T) {
	quick.Slow(t, "kills processes in each phase of moves, four minutes")
	w := newMoveWorld(t)
	for _, c := range []struct {
		name    string
		victims func(from, to string) []victim
	}{
		{"hosting of the source", func(from, _ string) []victim { return []victim{{"hosting", from}} }},
		{"hosting of the target", func(_, to string) []victim { return []victim{{"hosting", to}} }},
		{"CLM and adapters", func(_, _ string) []victim { return []victim{{"clm", ""}, {"adapter", ""}} }},
		{"agents, Maestro and routers", func(from, to string) []victim {
			return []victim{{"agent", from}, {"agent", to}, {"maestro", ""}, {"router", from}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) { w.movesUnderKills(t, c.victims) })
	}
	t.Run("a canceled move", w.cancelsUnderKills)
	t.Run("a recovery", w.recoversUnderKills)
}

// killUntil kills the victims once in each phase that a move shows, until the fleet shows one of the phases.
func (w *moveWorld) killUntil(t *testing.T, move string, victims []victim, phases ...fleet.MovePhase) {
	t.Helper()
	limit := time.After(5 * time.Minute)
	var killed []string
	for {
		select {
		case <-limit:
			t.Fatalf("the move is not %v; killed in %v", phases, killed)
		case p := <-w.phases:
			if p.Move != move {
				continue
			}
			if p.Side == "fleet" && slices.Contains(phases, fleet.MovePhase(p.Phase)) {
				t.Logf("killed in %v", killed)
				return
			}
			killed = append(killed, fmt.Sprintf("%s/%s: %d", p.Side, p.Phase, w.kill(t, victims)))
		}
	}
}

// check checks what holds after a move: the plane runs on one management cluster, has all acknowledged writes, and
// the kubeconfig of before writes.
func (w *moveWorld) check(t *testing.T, on string) {
	t.Helper()
	w.awaitWrite(t)
	localtest.Eventually(t, 3*time.Minute, func() error {
		if sides := w.runsOn(); len(sides) != 1 || sides[0] != on {
			return fmt.Errorf("the plane runs on %v, want %s", sides, on)
		}
		return nil
	})
	w.mu.Lock()
	c, want := w.plane, slices.Clone(w.acknowledged)
	w.mu.Unlock()
	var list *unstructured.UnstructuredList
	localtest.Eventually(t, 3*time.Minute, func() (err error) {
		list, err = c.Resource(configMaps()).Namespace("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
	have := map[string]bool{}
	for _, o := range list.Items {
		have[o.GetName()] = true
	}
	for _, name := range want {
		if !have[name] {
			t.Errorf("the acknowledged write %s is missing", name)
		}
	}
	t.Logf("%d acknowledged writes are there", len(want))
}

// finish ends the forwarding of a move while victims are killed, and checks that the source has nothing left.
func (w *moveWorld) finish(t *testing.T, m fleet.Move, victims []victim) {
	t.Helper()
	localtest.Eventually(t, 3*time.Minute, func() error { // the supervisor starts again later what ends often
		for _, v := range victims {
			if len(w.find(v)) == 0 {
				return fmt.Errorf("%v does not run", v)
			}
		}
		return nil
	})
	w.order(t, "--finish")
	w.killUntil(t, m.ID, victims, fleet.Moved)
	localtest.Eventually(t, 3*time.Minute, func() error {
		left, err := w.r.TryKubectl(m.From, "get", "hostedclusters,nodepools,credentials", "-A", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("left on the source: %s", left)
		}
		return err
	})
	w.awaitReady(t)
	w.useCredential(t)
	w.check(t, m.To)
}

func (w *moveWorld) movesUnderKills(t *testing.T, choose func(from, to string) []victim) {
	m := w.order(t)
	victims := choose(m.From, m.To)
	w.killUntil(t, m.ID, victims, fleet.Forwarding)
	w.check(t, m.To)
	w.finish(t, m, victims)
}

// cancelsUnderKills cancels a move once the source stops the plane. It may come too late; then the plane has moved.
func (w *moveWorld) cancelsUnderKills(t *testing.T) {
	m := w.order(t)
	for p := range w.phases {
		if p.Move == m.ID && p.Side == m.From {
			break
		}
	}
	_, err := w.r.Try("cluster", "move", "moves", "--cancel")
	if err != nil && !strings.Contains(err.Error(), "has moved") {
		t.Fatal(err)
	}
	victims := []victim{{"hosting", m.From}, {"hosting", m.To}, {"clm", ""}, {"adapter", ""}}
	w.killUntil(t, m.ID, victims, fleet.Canceled, fleet.Forwarding)
	p, err := w.fleetPhase()
	if err != nil {
		t.Fatal(err)
	}
	if p.Phase == string(fleet.Canceled) {
		w.check(t, m.From)
		return
	}
	w.check(t, m.To)
	w.finish(t, m, victims)
}

// recoversUnderKills recovers the cluster while its management cluster is cut off. What is written until the backup
// has it is there afterwards.
func (w *moveWorld) recoversUnderKills(t *testing.T) {
	sides := w.runsOn()
	if len(sides) != 1 {
		t.Fatalf("the plane runs on %v", sides)
	}
	w.pause()
	written := time.Now().Add(writeLimit) // the last write may be on its way for so long
	localtest.Eventually(t, 2*time.Minute, func() error {
		b, err := w.api.Backups(t.Context(), client.ClusterID(w.cluster.ID))
		if err == nil && (b.To == nil || !b.To.After(written)) {
			err = fmt.Errorf("the backups are %+v", b)
		}
		return err
	})
	signal := func(s syscall.Signal) {
		t.Helper()
		for _, process := range []string{sides[0] + "-agent", sides[0] + "-hosting"} {
			if err := syscall.Kill(w.r.Process(process).PID, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	m := w.order(t, "--recover")
	victims := []victim{{"hosting", m.To}, {"clm", ""}, {"adapter", ""}}
	w.killUntil(t, m.ID, victims, fleet.Ending)
	w.awaitReady(t)
	w.useCredential(t) // the one of before names the lost management cluster, whose plane still runs and accepts writes
	signal(syscall.SIGCONT)
	w.killUntil(t, m.ID, append(victims, victim{"hosting", m.From}), fleet.Moved)
	w.check(t, m.To)
}
