package test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// store returns a connection to the socket for reads of the plane's etcd.
func (p *plane) store() *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///etcd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			dir, err := os.Open(p.dir)
			if err != nil {
				return nil, err
			}
			defer dir.Close()
			var d net.Dialer
			return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/etcd.sock", dir.Fd()))
		}))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	return conn
}

// hookLimit is how long upstream tries to write the default roles before it ends the process.
const hookLimit = 30 * time.Second

// A plane that is full refuses writes and answers reads; when objects are deleted, it accepts writes again by itself,
// also after a restart in between, and also when a default role is missing that the restart cannot write.
func TestAFullPlaneRefusesWritesAndRecovers(t *testing.T) {
	dir, listen := dataDir(t), address(t)
	quota := []string{"--etcd-quota", "16Mi"}
	p, _ := startReady(t, dir, listen, quota...)
	things := p.client().CoreV1().ConfigMaps("default")
	create := func(i int) error {
		_, err := things.Create(background, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("big-%d", i)},
			Data:       map[string]string{"content": strings.Repeat("x", 60_000)},
		}, metav1.CreateOptions{})
		return err
	}
	status := func() *etcdserverpb.StatusResponse {
		s, err := etcdserverpb.NewMaintenanceClient(p.store()).Status(background, &etcdserverpb.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	isFull := func() bool { return strings.Contains(strings.Join(status().Errors, " "), "NOSPACE") }
	n := 0
	// The plane finds room a few times before it is full for good: with more than 9/10 of the quota in use after the
	// compaction, which follows the alarm within 10 s.
	var full time.Time // since when it has been full
	p.eventually("a full plane", func() error {
		for {
			err := create(n)
			if err == nil {
				n++
				full = time.Time{}
				continue
			}
			if !strings.Contains(err.Error(), "database space exceeded") {
				t.Fatalf("write %d: %v", n, err)
			}
			if s := status(); !isFull() || s.DbSizeInUse <= s.DbSizeQuota/10*9 {
				full = time.Time{}
			} else if full.IsZero() {
				full = time.Now()
			} else if time.Since(full) > 15*time.Second {
				return nil
			}
			return err
		}
	})
	if list, err := things.List(background, metav1.ListOptions{}); err != nil || len(list.Items) < n {
		t.Errorf("a full plane lists %d objects (%d were created): %v", len(list.Items), n, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ready")); err != nil {
		t.Errorf("a full plane is not ready: %v", err)
	}

	roles := p.client().RbacV1().ClusterRoles()
	if err := roles.Delete(background, "view", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("a full plane refuses the deletion of a role: %v", err)
	}
	p.kill()
	p, _ = startReady(t, dir, listen, quota...)
	restarted := time.Now()
	things = p.client().CoreV1().ConfigMaps("default")
	if !isFull() {
		t.Error("the alarm did not outlive the process")
	}
	// A write that etcd refused because it was the first one too many may be there all the same, so each attempt
	// has a name of its own.
	if err := create(n + 1); err == nil || !strings.Contains(err.Error(), "database space exceeded") {
		t.Errorf("a write to a full plane after its restart: %v", err)
	}
	poll := time.NewTicker(500 * time.Millisecond)
	defer poll.Stop()
	for time.Since(restarted) < hookLimit+5*time.Second {
		if _, err := things.List(background, metav1.ListOptions{Limit: 1}); err != nil {
			t.Fatalf("a full plane that lacks a default role no longer answers: %v", err)
		}
		<-poll.C
	}
	for i := range n {
		if err := things.Delete(background, fmt.Sprintf("big-%d", i), metav1.DeleteOptions{}); err != nil {
			t.Fatalf("a full plane refuses a deletion: %v", err)
		}
	}
	n++
	p.eventually("a write", func() error { n++; return create(n) })
	if isFull() {
		t.Error("the alarm is still there")
	}
	p.eventually("the default role", func() error {
		_, err := p.client().RbacV1().ClusterRoles().Get(background, "view", metav1.GetOptions{})
		return err
	})
}
