package process

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"atoll.dev/hosting/controlplane"
)

// startAs starts a process with a user id; ended is closed at its end.
func startAs(t *testing.T, user int) (pid int, ended chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	return cmd.Process.Pid, ended
}

// A process that a plane has left behind, by its control group or its user, does not outlive the plane's stop or
// deletion. Processes of other planes do.
func TestAPlaneLeavesNoProcessBehind(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root starts processes of other users")
	}
	id := controlplane.ID{Namespace: "clusters-x", Name: "hc-x"}
	neighbour := controlplane.ID{Namespace: "clusters-x", Name: "hc-y"}
	for _, action := range []action{sleep, discard} {
		r := openHome(t, t.TempDir())
		user := r.users.choose(r.o.Dir, id, 0)
		other := r.users.choose(r.o.Dir, neighbour, 0)
		x := &runner{runtime: r, id: id, slot: id, dir: r.home.plane(id), state: r.home.state(id),
			log: slog.New(slog.DiscardHandler), record: record{User: user}}
		if err := os.MkdirAll(x.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		_, byUser := startAs(t, user)
		ends := map[string]chan struct{}{"the process of the user": byUser}
		_, stranger := startAs(t, other)
		lives := map[string]chan struct{}{"the neighbour's process": stranger}
		if g, ok := r.group(id); ok {
			pid, inGroup := startAs(t, 0)
			ends["the process of the group"] = inGroup
			if err := g.place(pid, r.o.Limits); err != nil {
				t.Fatal(err)
			}
			next, _ := r.group(neighbour)
			copied, inOther := startAs(t, user)
			lives["a process of the same user in the group of another plane"] = inOther
			if err := next.place(copied, r.o.Limits); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		if err := x.halt(ctx, action); err != nil {
			t.Fatal(err)
		}
		for name, ended := range ends {
			select {
			case <-ended:
			case <-time.After(3 * time.Minute):
				t.Errorf("%s lives after action %d", name, action)
			}
		}
		for name, ended := range lives {
			select {
			case <-ended:
				t.Errorf("%s was ended by action %d", name, action)
			default:
			}
		}
		if err := x.endRest(); err != nil { // nothing is left
			t.Error(err)
		}
		if r.cgroups == nil {
			continue
		}
		for _, id := range []controlplane.ID{id, neighbour} { // the groups of this test go with their last process
			g, _ := r.group(id)
			for _, pid := range g.processes() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			g.remove()
		}
	}
}
