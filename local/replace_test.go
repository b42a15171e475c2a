package local

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
)

// A process whose arguments or variables change while the supervisor runs is replaced, the others stay. Of several, the
// next is replaced when the one before serves: a change with which the first does not serve leaves the next as it is.
func TestTheSupervisorReplacesChangedProcessesOneAfterAnother(t *testing.T) {
	h, st := newHome(t)
	var specs atomic.Pointer[[]Spec]
	sleep := func(name, seconds, variable string) Spec {
		s := sleepingProcess(name)
		s.Args[1], s.Env = seconds, []string{"SETTING=" + variable}
		return s
	}
	specs.Store(&[]Spec{sleep("first", "300", "a"), sleep("second", "300", "a"), sleep("unchanged", "300", "a")})
	reload, _ := supervise(t, h, st, func() []Spec { return *specs.Load() })
	pids := func() (pids [3]int) {
		for i, name := range []string{"first", "second", "unchanged"} {
			if r, ok := running(h, name); ok {
				pids[i] = r.PID
			}
		}
		return pids
	}
	isComplete := func(pids [3]int) bool { return pids[0] != 0 && pids[1] != 0 && pids[2] != 0 }
	eventually(t, "all run", func() bool { return isComplete(pids()) })
	begin := pids()

	var serves, asked atomic.Bool
	broken := sleep("first", "301", "a")
	broken.Ready = func(context.Context) error {
		asked.Store(true)
		if !serves.Load() {
			return errors.New("it does not serve")
		}
		return nil
	}
	specs.Store(&[]Spec{broken, sleep("second", "300", "b"), sleep("unchanged", "300", "a")})
	reload <- syscall.SIGHUP
	eventually(t, "the first is replaced", asked.Load)
	if now := pids(); now[0] == begin[0] || now[1] != begin[1] || now[2] != begin[2] {
		t.Errorf("while the first does not serve: %v, begun as %v", now, begin)
	}
	serves.Store(true)
	eventually(t, "the second is replaced, too", func() bool {
		now := pids()
		return isComplete(now) && now[0] != begin[0] && now[1] != begin[1]
	})
	served := pids()
	if served[2] != begin[2] {
		t.Errorf("an unchanged process was replaced: %v, begun as %v", served, begin)
	}

	// A change in the place of one that does not serve: the first is replaced again, the second when its turn comes.
	serves.Store(false)
	asked.Store(false)
	again := broken
	again.Args = []string{"sleep", "302"}
	second := sleep("second", "303", "b")
	specs.Store(&[]Spec{again, second, sleep("unchanged", "300", "a")})
	reload <- syscall.SIGHUP
	eventually(t, "the first is replaced by another that does not serve", asked.Load)
	specs.Store(&[]Spec{sleep("first", "304", "a"), second, sleep("unchanged", "300", "a")})
	reload <- syscall.SIGHUP
	eventually(t, "both have the newest settings", func() bool {
		first, isRunning := running(h, "first")
		other, otherRuns := running(h, "second")
		return isRunning && otherRuns && first.Args[1] == "304" && other.Args[1] == "303"
	})
	if marked := markedProcesses(st.ID); len(marked) != 3 {
		t.Errorf("there are more processes than three: %v", marked)
	}
}

// While a change waits, because its first process does not serve, the change is taken back: the second process, whose
// turn had not come, runs on.
func TestAChangeThatIsTakenBackReplacesNoFurtherProcess(t *testing.T) {
	h, st := newHome(t)
	var specs atomic.Pointer[[]Spec]
	sleep := func(name, seconds string, ready func(context.Context) error) Spec {
		s := sleepingProcess(name)
		s.Args[1], s.Ready = seconds, ready
		return s
	}
	serve := func(context.Context) error { return nil }
	specs.Store(&[]Spec{sleep("first", "300", serve), sleep("second", "300", serve)})
	reload, _ := supervise(t, h, st, func() []Spec { return *specs.Load() })
	var begin Record
	eventually(t, "both run", func() bool {
		_, isRunning := running(h, "first")
		var otherRuns bool
		begin, otherRuns = running(h, "second")
		return isRunning && otherRuns
	})
	var asked, settled atomic.Bool
	specs.Store(&[]Spec{sleep("first", "301", func(context.Context) error {
		asked.Store(true)
		return errors.New("it does not serve")
	}), sleep("second", "301", serve)})
	reload <- syscall.SIGHUP
	eventually(t, "the first is replaced", asked.Load)
	specs.Store(&[]Spec{sleep("first", "300", serve), sleep("second", "300", func(context.Context) error {
		settled.Store(true)
		return nil
	})})
	reload <- syscall.SIGHUP
	eventually(t, "the supervisor keeps the second process again", settled.Load)
	if now, isRunning := running(h, "second"); !isRunning || now.PID != begin.PID {
		t.Errorf("the second process was replaced: pid %d, begun as %d", now.PID, begin.PID)
	}
	if first, isRunning := running(h, "first"); !isRunning || first.Args[1] != "300" {
		t.Errorf("the first process runs as %v", first.Args)
	}
}

func TestSpecsOfOneStateAreTheSameProcesses(t *testing.T) {
	h, st := newHome(t)
	st.Clusters, st.Azure, st.Backups = names{"mc01-r1"}, true, true
	if err := h.assignPorts(st.Ports, portNames(st)); err != nil {
		t.Fatal(err)
	}
	bin := Binaries{Atoll: "atoll", Kube: "atoll-kube", KubeVersion: "1.36.3"}
	first, second := newTopology(h, st, bin).specs(), newTopology(h, st, bin).specs()
	for i, spec := range first {
		if !spec.hasSameInvocation(second[i]) || spec.invocationID() != second[i].invocationID() {
			t.Errorf("%s differs from itself: %v and %v", spec.Name, spec, second[i])
		}
	}
}
