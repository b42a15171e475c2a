package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAProcessIsKnownByMoreThanItsPid(t *testing.T) {
	h, st := newHome(t)
	r, cmd, err := h.start(st.ID, Spec{Name: "sleeper", Args: []string{"sleep", "300"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if !r.isAlive() {
		t.Fatal("not alive")
	}
	eventually(t, "its mark shows", func() bool { return markedProcesses(st.ID)["sleeper"] == r.PID })
	if len(markedProcesses("another-home")) > 0 {
		t.Error("it is another home's, too")
	}
	reused, rebooted := r, r
	reused.Start++
	rebooted.Boot = "another"
	for name, other := range map[string]Record{"another process of this pid": reused,
		"a process before a reboot": rebooted} {
		if other.isAlive() {
			t.Errorf("%s is taken for it", name)
		}
		if err := other.signal(syscall.SIGKILL); err != nil || !r.isAlive() {
			t.Errorf("%s: the signal reached the wrong one (%v)", name, err)
		}
	}
	go cmd.Wait()
	if err := r.stop(t.Context()); err != nil || r.isAlive() {
		t.Errorf("stop: %v, alive %v", err, r.isAlive())
	}
	if err := r.stop(t.Context()); err != nil {
		t.Errorf("stop again: %v", err)
	}
}

// supervise runs a supervisor over specs until the test ends or stop is called.
func supervise(t *testing.T, h Home, st State, specs func() []Spec) (reload chan os.Signal, stop func()) {
	t.Helper()
	events, err := h.newEventLog()
	if err != nil {
		t.Fatal(err)
	}
	s := &supervisor{home: h, homeID: st.ID, log: slog.New(slog.DiscardHandler), events: events,
		processes: map[string]*supervisedProcess{}}
	ctx, cancel := context.WithCancel(context.Background())
	reload = make(chan os.Signal, 1)
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, func() ([]Spec, error) { return specs(), nil }, reload) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(func() {
		stop()
		if err := h.stopAll(context.Background(), st.ID, func(string) {}); err != nil {
			t.Error(err)
		}
		if left := markedProcesses(st.ID); len(left) > 0 {
			t.Errorf("left running: %v", left)
		}
	})
	return reload, stop
}

func sleepingProcess(name string) Spec {
	return Spec{Name: name, Args: []string{"sleep", "300"}, Ready: func(context.Context) error { return nil },
		Stop: syscall.SIGTERM}
}

func running(h Home, name string) (Record, bool) {
	r, ok := h.readRecord(name)
	return r, ok && r.isAlive()
}

func TestI12DeadProcessesAreRestartedAndLiveOnesAdopted(t *testing.T) {
	h, st := newHome(t)
	_, stop := supervise(t, h, st, func() []Spec { return []Spec{sleepingProcess("a"), sleepingProcess("b")} })
	var a, b Record
	eventually(t, "both run", func() bool {
		var okA, okB bool
		a, okA = running(h, "a")
		b, okB = running(h, "b")
		return okA && okB
	})
	syscall.Kill(a.PID, syscall.SIGKILL)
	eventually(t, "a runs again", func() bool {
		now, ok := running(h, "a")
		return ok && now.PID != a.PID &&
			now.Restarts == 1
	})
	a, _ = h.readRecord("a")

	stop() // the supervisor goes, its processes stay
	if _, ok := running(h, "a"); !ok {
		t.Fatal("a died with its supervisor")
	}
	os.Remove(h.recordPath("b")) // as if it had been killed before it wrote the record
	supervise(t, h, st, func() []Spec { return []Spec{sleepingProcess("a"), sleepingProcess("b")} })
	eventually(t, "b is kept again", func() bool { now, ok := running(h, "b"); return ok && now.PID != b.PID })
	if now, ok := running(h, "a"); !ok || now.PID != a.PID {
		t.Errorf("a was not adopted: %d, then %d", a.PID, now.PID)
	}
	if b.isAlive() {
		t.Error("there are two of b")
	}
	// An adopted process is watched like a child.
	syscall.Kill(a.PID, syscall.SIGKILL)
	eventually(t, "the adopted a runs again", func() bool {
		now, ok := running(h, "a")
		return ok && now.PID != a.PID &&
			now.Restarts == 2
	})
}

func TestChangedOrRemovedProcessesAreReplaced(t *testing.T) {
	h, st := newHome(t)
	specs := []Spec{sleepingProcess("a"), sleepingProcess("b")}
	reload, stop := supervise(t, h, st, func() []Spec { return specs })
	var a, b Record
	eventually(t, "both run", func() bool {
		var okA, okB bool
		a, okA = running(h, "a")
		b, okB = running(h, "b")
		return okA && okB
	})
	specs = []Spec{sleepingProcess("a")}
	reload <- syscall.SIGHUP
	eventually(t, "b is gone", func() bool { _, known := h.readRecord("b"); return !b.isAlive() && !known })
	stop()
	other := sleepingProcess("a")
	other.Args = []string{"sleep", "301"}
	supervise(t, h, st, func() []Spec { return []Spec{other} })
	eventually(t, "a is another", func() bool {
		now, ok := running(h, "a")
		return ok && now.PID != a.PID &&
			now.Args[1] == "301"
	})
	if a.isAlive() {
		t.Error("there are two of a")
	}
}

func TestAProcessThatCannotStartIsReportedAndRetried(t *testing.T) {
	h, st := newHome(t)
	tries := 0
	broken := sleepingProcess("broken")
	broken.Prepare = func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("the disk is on fire")
		}
		return nil
	}
	waits := sleepingProcess("waits")
	waits.After = []string{"broken"}
	supervise(t, h, st, func() []Spec { return []Spec{broken, waits} })
	eventually(t, "it says why", func() bool {
		r, _ := h.readRecord("broken")
		return strings.Contains(r.Backoff,
			"on fire")
	})
	if _, ok := h.readRecord("waits"); ok {
		t.Error("what waits for it has been started")
	}
	eventually(t, "both run", func() bool { _, a := running(h, "broken"); _, b := running(h, "waits"); return a && b })
	var stages []string
	if _, err := h.readEvents(0, func(e Event) bool {
		stages = append(stages, e.Stage+" "+e.Error)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(stages, ","); !strings.Contains(got, "broken preparing broken: the disk is on fire") {
		t.Errorf("events: %s", got)
	}
}

func TestAProcessThatIgnoresTheSignalIsKilled(t *testing.T) {
	h, st := newHome(t)
	r, cmd, err := h.start(st.ID, Spec{Name: "stubborn", Args: []string{"sh", "-c",
		`trap "" TERM; echo ready; while :; do sleep 300; done`}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	eventually(t, "it ignores", func() bool { data, _ := os.ReadFile(h.logPath("stubborn")); return len(data) > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	// The kernel tells the end of the process a moment before /proc shows it.
	eventually(t, "it is dead", func() bool { return !r.isAlive() })
	for _, pid := range markedProcesses(st.ID) { // its sleep
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestLogsAreRotatedAndFollowed(t *testing.T) {
	h, _ := newHome(t)
	log, err := os.OpenFile(h.logPath("p"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	fmt.Fprintln(log, "first")
	if err := log.Truncate(logLimit + 1); err != nil {
		t.Fatal(err)
	}
	if err := h.rotateLogs(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(log, "second")
	if data, _ := os.ReadFile(h.logPath("p")); string(data) != "second\n" {
		t.Errorf("after the rotation: %q", data)
	}
	if info, err := os.Stat(h.logPath("p") + ".1"); err != nil || info.Size() != logLimit+1 {
		t.Errorf("the old one: %v %v", info, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines := make(chan string, 10)
	done := make(chan error, 1)
	go func() {
		done <- h.Logs(ctx, LogOptions{Processes: []string{"p"}, Tail: 10, Follow: true}, func(_, text string) { lines <- text })
	}()
	if got := <-lines; got != "second" {
		t.Errorf("tail: %q", got)
	}
	fmt.Fprint(log, "thi")
	fmt.Fprintln(log, "rd")
	if got := <-lines; got != "third" {
		t.Errorf("followed: %q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := h.Logs(t.Context(), LogOptions{Processes: []string{"nobody"}, Tail: 1}, func(string, string) {}); err == nil ||
		!strings.Contains(err.Error(), "atoll status") {
		t.Errorf("an unknown process: %v", err)
	}
}
