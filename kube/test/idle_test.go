package test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A plane that nobody uses has one processor, and the kernel may end its timers late. As soon as several requests are
// in progress, it is as before.
func TestAnIdlePlaneBecomesBusyForACrowd(t *testing.T) {
	dir, listen := dataDir(t), address(t)
	p, _ := startReady(t, dir, listen, "--simulated-nodes")
	client := p.client()
	exact := p.slack()
	p.eventually("an idle plane", func() error {
		if now := p.slack(); now == exact {
			return fmt.Errorf("the slack of its timers is still %s ns", now)
		}
		return nil
	})
	if n := p.metric("go_sched_gomaxprocs_threads"); n != 1 {
		t.Errorf("an idle plane has %v processors", n)
	}
	p.eventually("a busy plane", func() error {
		var all sync.WaitGroup
		failures := make(chan error, 50)
		for range cap(failures) {
			all.Go(func() {
				_, err := client.RbacV1().ClusterRoles().List(background, metav1.ListOptions{})
				failures <- err
			})
		}
		all.Wait()
		close(failures)
		for err := range failures {
			if err != nil {
				t.Fatal(err)
			}
		}
		if now := p.slack(); now != exact {
			return fmt.Errorf("the slack of its timers is %s ns, and was %s", now, exact)
		}
		return nil
	})
}

// slack returns how late the kernel may end timers of the plane's first thread, in nanoseconds.
func (p *plane) slack() string {
	p.t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", p.cmd.Process.Pid))
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		p.t.Skipf("this user, or this kernel, shows no slack of timers: %v", err)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}
