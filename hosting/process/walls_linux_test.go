package process_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// site is an open runtime with one plane.
type site struct {
	t       *testing.T
	o       process.Options
	runtime *process.Runtime
	id      controlplane.ID
	changes chan struct{}
	close   func()
}

// openSite opens a runtime and orders its plane.
func openSite(t *testing.T, o process.Options) *site {
	t.Helper()
	return orderSite(t, o, controlplane.Spec{Name: "walls", Release: "1.36.3"})
}

// orderSite is openSite with an order.
func orderSite(t *testing.T, o process.Options, spec controlplane.Spec) *site {
	t.Helper()
	s := &site{t: t, o: o, id: controlplane.ID{Namespace: "clusters-walls", Name: "hc-walls"},
		changes: make(chan struct{}, 1)}
	var err error
	if s.runtime, err = process.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	closeRuntime, err := s.runtime.Open(ctx, func(controlplane.ID) {
		select {
		case s.changes <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s.close = func() { cancel(); closeRuntime() }
	if err := s.runtime.Ensure(s.id, spec); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) await(what string, is func(controlplane.Observation) bool) controlplane.Observation {
	s.t.Helper()
	limit := time.After(3 * time.Minute)
	for {
		seen, err := s.runtime.Observe(s.id)
		if err != nil {
			s.t.Fatal(err)
		}
		if is(seen) {
			return seen
		}
		select {
		case <-s.changes:
		case <-limit:
			s.t.Fatalf("waited too long for %s: %+v", what, seen)
		}
	}
}

// discard ends the plane and removes its control group.
func (s *site) discard() {
	s.t.Helper()
	s.await("the plane's end", func(controlplane.Observation) bool {
		done, err := s.runtime.Discard(s.id)
		if err != nil {
			s.t.Error(err)
		}
		return done || err != nil
	})
	s.close()
}

// hasMemoryControl reports whether this process may make control groups that limit memory.
func hasMemoryControl() bool {
	for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		dir := filepath.Join(root, fmt.Sprintf("atoll-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) == nil {
			defer os.Remove(dir)
			for _, file := range []string{"memory.limit_in_bytes", "memory.max"} {
				if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
					return true
				}
			}
		}
	}
	return false
}

// standingHere returns the walls that this machine can have, and logs those that it lacks.
func standingHere(t *testing.T) []string {
	t.Helper()
	starts := func(flags uintptr) bool {
		cmd := exec.Command("true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		return cmd.Run() == nil
	}
	_, _, landlock := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
	_, seccomp := os.Stat("/proc/sys/kernel/seccomp/actions_avail")
	hasNamespaces := starts(unix.CLONE_NEWNET) && starts(unix.CLONE_NEWNET|unix.CLONE_NEWNS)
	var standing []string
	for _, wall := range []struct {
		name  string
		isHad bool
	}{
		{plane.WallNetwork, starts(unix.CLONE_NEWNET)},
		{plane.WallMounts, hasNamespaces},
		{plane.WallUser, hasNamespaces},
		{plane.WallPrivileges, true},
		{plane.WallFiles, landlock == 0},
		{plane.WallCalls, seccomp == nil},
		{process.WallMemory, hasMemoryControl()},
	} {
		if wall.isHad {
			standing = append(standing, wall.name)
		} else {
			t.Logf("this machine lacks what the wall %q needs; it is not tested", wall.name)
		}
	}
	return standing
}

func TestAPlaneIsShutIn(t *testing.T) {
	quick.LeavesOut(t, "needs control planes")
	if os.Geteuid() != 0 {
		t.Skip("the network wall of other users depends on the kernel's settings")
	}
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := process.Options{Dir: t.TempDir(), Binaries: map[controlplane.Version]string{"1.36.3": binary}}
	s := openSite(t, o)
	t.Cleanup(func() { killAll(t, o) })
	ready := func(o controlplane.Observation) bool { return o.State == controlplane.Ready }
	seen := s.await("a plane", ready)
	want := standingHere(t)
	if !slices.Equal(seen.Walls, want) {
		t.Errorf("walls %v, want %v", seen.Walls, want)
	}
	pid, ok := plane.Running(s.runtime.Dir(s.id))
	if !ok {
		t.Fatal("no process")
	}
	s.look(pid, want)

	t.Run("an administrator reaches nothing of this machine", s.attack)

	// A plane that runs keeps its walls when another runtime adopts it.
	s.close()
	s = openSite(t, o)
	if seen = s.await("the adopted plane", ready); !slices.Equal(seen.Walls, want) {
		t.Errorf("adopted: walls %v, want %v", seen.Walls, want)
	}
	if now, _ := plane.Running(s.runtime.Dir(s.id)); now != pid {
		t.Errorf("process %d, want %d", now, pid)
	}
	t.Run("a plane without memory is ended alone", func(t *testing.T) { endForMemory(t, binary, s) })
	s.discard()
}

// look looks at a plane's process from outside.
func (s *site) look(pid int, standing []string) {
	s.t.Helper()
	stands := func(wall string) bool { return slices.Contains(standing, wall) }
	ours, _ := os.Readlink("/proc/self/ns/net")
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if stands(plane.WallNetwork) && (err != nil || theirs == ours) {
		s.t.Errorf("network namespace %s, %v; ours is %s", theirs, err, ours)
	}
	lines := []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"}
	if stands(plane.WallCalls) {
		lines = append(lines, "Seccomp:\t2")
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if stands(plane.WallUser) {
		info, err := os.Stat(filepath.Join(s.runtime.Dir(s.id), "etcd", "member"))
		if err != nil {
			s.t.Fatal(err)
		}
		user := int(info.Sys().(*syscall.Stat_t).Uid)
		if user <= plane.FirstUser || user >= plane.FirstUser+plane.Users {
			s.t.Errorf("the files belong to user %d", user)
		}
		lines = append(lines, fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d", user),
			fmt.Sprintf("Gid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d", user), "Groups:\t \n")
	}
	for _, line := range lines {
		if !strings.Contains(string(status), line) {
			s.t.Errorf("no %q in\n%s", line, status)
		}
	}
	if !stands(plane.WallMounts) {
		return
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	for _, path := range []string{"/etc/shadow", "/etc/ssh", "/run", "/var/run", "/bin", "/root", "/usr/bin",
		s.runtime.StateDir(s.id), filepath.Join(s.o.Dir, "hosting.lock")} {
		if _, err := os.Lstat(root + path); err == nil {
			s.t.Errorf("the plane sees %s", path)
		}
	}
	if _, err := os.Stat(root + filepath.Join(s.runtime.Dir(s.id), "etcd")); err != nil {
		s.t.Errorf("the plane does not see its data: %v", err)
	}
	if err := os.WriteFile(root+"/new", nil, 0o600); err == nil {
		s.t.Error("the plane's file tree is not read-only")
	}
}

// attack tries each means by which Kubernetes connects to addresses that users name, and expects no connection.
func (s *site) attack(t *testing.T) {
	admin, err := s.runtime.Client(s.id)
	if err != nil {
		t.Fatal(err)
	}
	config, err := admin.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var connections atomic.Int32
	trap := httptest.NewUnstartedServer(http.NotFoundHandler())
	trap.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	trap.StartTLS()
	defer trap.Close()
	host, port, _ := net.SplitHostPort(trap.Listener.Addr().String())

	create := func(resource schema.GroupVersionResource, namespace, object string, args ...any) error {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(fmt.Appendf(nil, object, args...)); err != nil {
			t.Fatal(err)
		}
		_, err := client.Resource(resource).Namespace(namespace).Create(t.Context(), u, metav1.CreateOptions{})
		return err
	}
	core := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: resource}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(create(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
		Resource: "validatingwebhookconfigurations"}, "", `{"apiVersion":"admissionregistration.k8s.io/v1",
		"kind":"ValidatingWebhookConfiguration","metadata":{"name":"trap"},"webhooks":[{"name":"trap.example.com",
		"sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"url":%q},
		"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`, trap.URL))
	must(create(core("services"), "default", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"trap"},
		"spec":{"type":"ExternalName","externalName":"localhost"}}`))
	must(create(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}, "",
		`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.trap.example.com"},
		"spec":{"group":"trap.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":100,
		"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"trap","port":%s}}}`, port))
	must(create(core("nodes"), "", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"trap"},
		"status":{"addresses":[{"type":"InternalIP","address":%q}],
		"daemonEndpoints":{"kubeletEndpoint":{"Port":%s}}}}`, host, port))

	limit := time.After(3 * time.Minute)
	for refused := false; !refused; { // the API server notices a webhook a moment later
		err := create(core("configmaps"), "default",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"x-"}}`)
		refused = err != nil && strings.Contains(err.Error(), "no node of the cluster is connected")
		select {
		case <-limit:
			t.Fatalf("a webhook by URL: %v", err)
		default:
		}
	}
	for _, path := range []struct{ group, version, resource, name string }{
		{"trap.example.com", "v1", "things", ""},
		{"", "v1", "nodes", "trap:" + port},
		{"", "v1", "nodes", "https:trap:" + port},
	} {
		things := client.Resource(schema.GroupVersionResource{Group: path.group, Version: path.version,
			Resource: path.resource})
		if path.name == "" {
			_, err = things.List(t.Context(), metav1.ListOptions{})
		} else {
			_, err = things.Get(t.Context(), path.name, metav1.GetOptions{}, "proxy")
		}
		if err == nil {
			t.Errorf("%+v is served", path)
		}
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("the plane made %d connections to this machine", n)
	}
}

// endForMemory runs a plane with too little memory beside a healthy one.
func endForMemory(t *testing.T, binary string, neighbour *site) {
	if !hasMemoryControl() {
		t.Skip("no control group can be made here")
	}
	before, err := neighbour.runtime.Observe(neighbour.id)
	if err != nil {
		t.Fatal(err)
	}
	s := openSite(t, process.Options{Dir: t.TempDir(), Binaries: neighbour.o.Binaries,
		FirstPort: 29000, LastPort: 29999, Limits: process.Limits{Memory: 48 << 20}})
	seen := s.await("a second end", func(o controlplane.Observation) bool {
		return o.Failure != nil && o.Failure.Count >= 2
	})
	if seen.Size.OutOfMemory.IsZero() {
		t.Errorf("the size shows no end for want of memory: %+v", seen.Size)
	}
	if seen.Failure.Reason != controlplane.OutOfMemory || !strings.Contains(seen.Failure.Message, "48 MiB") {
		t.Errorf("%+v", seen.Failure)
	}
	s.discard()
	if after, err := neighbour.runtime.Observe(neighbour.id); err != nil || after.State != controlplane.Ready ||
		after.ReadySince != before.ReadySince {
		t.Errorf("the neighbour: %+v, %v; before %+v", after, err, before)
	}
}
