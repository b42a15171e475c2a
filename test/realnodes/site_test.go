//go:build realnodes

package realnodes

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting"
	"atoll.dev/hosting/nodepool"
	"atoll.dev/hosting/router"
	"atoll.dev/node"
	"atoll.dev/node/supervisor"
	"atoll.dev/test/testsite"
)

// The customer's site is a network namespace whose only link leads to the router's address. It has no other route.
const (
	routerAddress = "10.99.77.1"
	siteAddress   = "10.99.77.2"
)

// site is where the customer's machines are.
type site struct {
	*world
	client     dynamic.Interface
	space      string // path of the network namespace
	atoll      string // the program
	programs   string // atoll-node
	invitation node.Invitation
}

// newSite starts a plane with a pool of customers' machines, a router, and the customer's network.
func newSite(t *testing.T) *site {
	t.Helper()
	programs, p, config := startPlane(t)
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := hosting.Bootstrap(t.Context(), config, hosting.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hostingConfig, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(hostingConfig)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{world: &world{t: t, program: p.Config.Binary, kubeconfig: p.Config.AdminKubeconfig()}, client: client,
		atoll: filepath.Join(filepath.Dir(programs), "atoll"), programs: programs}
	if _, err := os.Stat(s.atoll); err != nil {
		t.Fatalf("%v: build it with make build", err)
	}
	s.connect()
	at := s.route(p.Config.Address)
	testsite.Run(t, "node pools", func(ctx context.Context) error {
		return nodepool.Run(ctx, nodepool.Options{Client: client, Planes: onePlane{p.Config}, Log: testsite.Log(t)})
	})
	s.invitation = node.Invitation{Address: at, ServerName: "localhost", CA: string(config.CAData), Pool: "e"}
	return s
}

// ip runs the program ip.
func (s *site) ip(args ...string) {
	s.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// connect makes the customer's network and its link to this machine.
func (s *site) connect() {
	s.t.Helper()
	name := "atoll-join-" + strings.ToLower(rand.Text()[:6])
	link := "aj" + name[len("atoll-join-"):]
	s.ip("netns", "add", name)
	s.t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", name).Run() }) // and the link with it
	s.ip("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", name)
	s.t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", link).Run() })
	s.ip("address", "add", routerAddress+"/30", "dev", link)
	s.ip("link", "set", link, "up")
	s.ip("-n", name, "address", "add", siteAddress+"/30", "dev", "uplink")
	s.ip("-n", name, "link", "set", "uplink", "up")
	s.ip("-n", name, "link", "set", "lo", "up")
	s.space = "/run/netns/" + name
}

// route starts a router that has one plane, on the address that the customer reaches.
func (s *site) route(plane string) (address string) {
	s.t.Helper()
	dir := s.t.TempDir()
	socket := filepath.Join(dir, "control.sock")
	c := router.NewControl(func(context.Context, string) (string, error) { return "", errors.New("nothing sleeps here") })
	c.Set([]router.Route{{ServerName: "localhost", Backend: plane}})
	control, err := router.ListenControl(socket)
	if err != nil {
		s.t.Fatal(err)
	}
	testsite.Run(s.t, "control of the router", func(ctx context.Context) error { return c.Serve(ctx, control) })
	l, err := net.Listen("tcp", routerAddress+":0")
	if err != nil {
		s.t.Fatal(err)
	}
	r := router.New(router.Options{Control: socket, Dir: dir, Log: testsite.Log(s.t)})
	testsite.Run(s.t, "router", func(ctx context.Context) error { return r.Run(ctx, l) })
	return l.Addr().String()
}

// token makes a token of the pool in the cluster, as `atoll nodepool join-token` does.
func (s *site) token(id string, life time.Duration) string {
	s.t.Helper()
	i := s.invitation
	i.Token = id + ".0123456789abcdef"
	s.apply(fmt.Sprintf(`
apiVersion: v1
kind: Secret
type: bootstrap.kubernetes.io/token
metadata: {name: bootstrap-token-%[1]s, namespace: kube-system}
stringData: {token-id: %[1]s, token-secret: "0123456789abcdef", usage-bootstrap-authentication: "true",
  expiration: %[2]q, auth-extra-groups: %[3]q}
`, id, time.Now().Add(life).UTC().Format(time.RFC3339), node.JoinGroup(i.Pool)))
	return s.encode(i)
}

func (s *site) encode(i node.Invitation) string {
	s.t.Helper()
	text, err := i.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// machine is a process of `atoll node` in the customer's network.
type machine struct {
	site  *site
	home  string
	cmd   *exec.Cmd
	out   output
	ended chan error
}

// output may be read while a process writes it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// home makes a home of a machine, and ends what runs in it when the test ends.
func (s *site) home() string {
	s.t.Helper()
	home, err := os.MkdirTemp("/tmp", "join-") // sockets need a short path
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if _, err := os.Stat(home); err == nil {
			if err := node.Stop(context.Background(), home); err != nil {
				s.t.Error(err)
			}
		}
		_ = os.RemoveAll(home)
		_, _ = supervisor.Sweep()
	})
	return home
}

// join starts `atoll node join`; without a token an earlier join continues.
func (s *site) join(home, token string) *machine {
	s.t.Helper()
	args := []string{"--net=" + s.space, s.atoll, "node", "join", "--home", home, "--programs", s.programs,
		"--image", filepath.Join(filepath.Dir(s.programs), "demo-image.tar"), "--cpu", "2", "--memory", "2Gi"}
	if token != "" {
		args = append(args, "--token-file", "-")
	}
	m := &machine{site: s, home: home, cmd: exec.Command("nsenter", args...), ended: make(chan error, 1)}
	m.cmd.Stdin = strings.NewReader(token)
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	if err := m.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { m.ended <- m.cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
		if s.t.Failed() {
			s.t.Logf("the machine of %s says:\n%s", home, m.out.String())
		}
	})
	return m
}

// await waits for the end of the process, and returns its output and its error.
func (m *machine) await() (string, error) {
	m.site.t.Helper()
	select {
	case err := <-m.ended:
		m.ended <- err
		return m.out.String(), err
	case <-time.After(limit):
		m.site.t.Fatalf("the machine does not end; it says:\n%s", m.out.String())
		return "", nil
	}
}

// refused expects a join to end with an error that has a text.
func (s *site) refused(what, token, want string) {
	s.t.Helper()
	if output, err := s.join(s.home(), token).await(); err == nil || !strings.Contains(output, want) {
		s.t.Errorf("%s: error %v, %q; want %q", what, err, output, want)
	}
}

// killWhen kills a process as soon as a file of its home exists.
func (m *machine) killWhen(file string) {
	m.site.t.Helper()
	testsite.EventuallyWithin(m.site.t, file, limit, func() error {
		_, err := os.Stat(filepath.Join(m.home, file))
		return err
	})
	_ = m.cmd.Process.Kill()
	_, _ = m.await()
}

// leave runs `atoll node leave`.
func (s *site) leave(home string) {
	s.t.Helper()
	out, err := exec.Command("nsenter", "--net="+s.space, s.atoll, "node", "leave", "--home", home).CombinedOutput()
	if err != nil {
		s.t.Fatalf("leaving: %v: %s", err, out)
	}
	if _, err := os.Stat(home); !errors.Is(err, fs.ErrNotExist) {
		s.t.Errorf("the home of a machine that has left: %v", err)
	}
}

// awaitPool waits until the pool has so many ready nodes.
func (s *site) awaitPool(ready int) {
	s.t.Helper()
	testsite.EventuallyWithin(s.t, fmt.Sprintf("%d ready machines", ready), limit, func() error {
		object, err := s.client.Resource(hypershift.NodePools()).Namespace(namespace).Get(s.t.Context(), cluster+"-e",
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n, _, _ := unstructured.NestedInt64(object.Object, "status", "replicas"); int(n) != ready {
			return fmt.Errorf("status %v", object.Object["status"])
		}
		return nil
	})
}

// awaitOutput repeats a command of kubectl until it prints a text.
func (s *site) awaitOutput(want string, args ...string) {
	s.t.Helper()
	testsite.EventuallyWithin(s.t, "kubectl "+strings.Join(args, " "), limit, func() error {
		out, err := s.run("", args...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("it prints %q, want %q", out, want)
		}
		return err
	})
}
