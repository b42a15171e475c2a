package hosting

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/router"
)

// port is a router with hosting's side of it, in front of a world's planes.
type port struct {
	w       atomic.Pointer[world]
	t       *testing.T
	dir     string
	address string
	control *router.Control
	stop    func() // the control, as hosting's end does
}

func newPort(t *testing.T) *port {
	p := &port{t: t, dir: t.TempDir()}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	r := router.New(router.Options{Control: p.socket(), Dir: p.dir})
	p.keep(func(ctx context.Context) error { return r.Run(ctx, l) })
	return p
}

func (p *port) socket() string { return filepath.Join(p.dir, "control.sock") }

// open makes a new Control for a new hosting.
func (p *port) open() *router.Control {
	p.t.Helper()
	p.control = router.NewControl(func(ctx context.Context, name string) (string, error) {
		return p.w.Load().h.WakeServer(ctx, name)
	})
	return p.control
}

// serve begins to answer the router.
func (p *port) serve() {
	p.t.Helper()
	l, err := router.ListenControl(p.socket())
	if err != nil {
		p.t.Fatal(err)
	}
	control := p.control
	p.stop = p.keep(func(ctx context.Context) error { return control.Serve(ctx, l) })
}

func (p *port) keep(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	})
	p.t.Cleanup(stop)
	return stop
}

// adminConfig returns the administrator's kubeconfig that the management cluster has now.
func (p *port) adminConfig(hc *hypershift.HostedCluster) *rest.Config {
	p.t.Helper()
	w := p.w.Load()
	s, err := w.admin.Resource(secrets()).Namespace(hc.Namespace).Get(w.Context(), hc.Status.KubeConfig.Name,
		metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secretValue(s, "kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	return config
}

// customer is a client with the administrator's kubeconfig of a hosted
// cluster; each request is a connection of its own.
func (p *port) customer(hc *hypershift.HostedCluster) func() error {
	p.t.Helper()
	config := p.adminConfig(hc)
	if config.Host != "https://"+p.address {
		p.t.Fatalf("the kubeconfig is for %s, the router is at %s", config.Host, p.address)
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		p.t.Fatal(err)
	}
	c := &http.Client{Timeout: waitLimit, Transport: &http.Transport{TLSClientConfig: tlsConfig,
		DisableKeepAlives: true}}
	return func() error {
		res, err := c.Get(config.Host + "/api/v1/namespaces")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("namespaces: %s", res.Status)
		}
		return nil
	}
}

func (w *world) power(key controlplane.ID, want hypershift.Power) {
	w.Helper()
	w.wait("power "+string(want), func() error {
		if got := w.get(key).Status.Power; got != want {
			return fmt.Errorf("power is %q", got)
		}
		return nil
	})
}

// asleep waits until a plane sleeps without a process.
func (w *world) asleep(key controlplane.ID) {
	w.Helper()
	w.power(key, hypershift.Asleep)
	w.wait("no process", func() error {
		if pid := w.pid(key); pid != 0 {
			return fmt.Errorf("process %d", pid)
		}
		return nil
	})
	for _, pid := range processes() {
		if w.runs(pid, key) {
			w.Errorf("process %d of a plane that sleeps", pid)
		}
	}
}

func processes() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var pid int
		if _, err := fmt.Sscanf(dir, "/proc/%d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

const hibernated = `{"metadata":{"annotations":{"` + hypershift.HibernatedAnnotation + `":"true"}}}`

// A hibernated cluster has no process until a connection arrives: it wakes once and serves; its
// spec stays; without connections it sleeps again.
func TestAHibernatedClusterSleepsUntilAConnectionWakesIt(t *testing.T) {
	p := newPort(t)
	w := newWorld(t, "sleep", func(o *Options) {
		o.Advertise, o.Routes, o.Idle = p.address, p.open(), 500*time.Millisecond
	})
	p.w.Store(w)
	p.serve()
	created := time.Now()
	key := w.create("one", nil)
	_, inside := w.available(key)
	creation := time.Since(created)
	w.keep(inside, "customer")
	w.patch(key, hibernated)
	hc := w.get(key)
	w.wait("the kubeconfig", func() error {
		if hc = w.get(key); hc.Status.KubeConfig == nil {
			return errStill
		}
		return nil
	})
	w.asleep(key)
	w.condition(key, hypershift.Available, "True", "Asleep")
	request := p.customer(hc)

	const clients = 5
	begun := time.Now()
	answers := make(chan error, clients)
	for range clients {
		go func() { answers <- request() }()
	}
	if err := <-answers; err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	t.Logf("the first of %d requests was answered %s after it was sent", clients, took.Round(time.Millisecond))
	if took > 30*time.Second+5*creation { // 3 s, and what a machine takes that has much else to do
		t.Errorf("%s from the wake to the first answer; the creation took %s", took, creation)
	}
	for range clients - 1 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if log, err := os.ReadFile(filepath.Join(w.runtime.StateDir(key), "plane.log")); err != nil || len(log) == 0 {
		t.Errorf("the plane's log: %d bytes, %v", len(log), err)
	}
	if now := w.get(key); now.Generation != hc.Generation ||
		now.Annotations[hypershift.HibernatedAnnotation] != "true" {
		t.Errorf("the wake changed the spec: generation %d, then %d", hc.Generation, now.Generation)
	}

	t.Log("a connection keeps it awake; its end lets it sleep")
	conn, err := tls.Dial("tcp", p.address, &tls.Config{ServerName: serverName(hc), InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	w.power(key, hypershift.Awake)
	pid := w.pid(key)
	<-time.After(2 * w.options.Idle)
	if !w.runs(pid, key) {
		t.Error("it was put to sleep under a connection")
	}
	conn.Close()
	w.asleep(key)

	t.Log("a wake that fails says so, here and in the status")
	good := w.planes.Binaries["1.36.3"]
	broken := filepath.Join(p.dir, "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho 'atoll-kube: out of order' >&2\nexit 1\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	// After a restart of hosting a sleeping plane still sleeps.
	end := func() { w.stop(); p.stop() }
	begin := func(binary string) {
		w.options.Routes, w.planes.Binaries["1.36.3"] = p.open(), binary
		w.start()
		p.serve()
	}
	end()
	begin(broken)
	if err := request(); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("a request that woke nobody: %v", err)
	}
	w.condition(key, hypershift.Available, "False", string(controlplane.PlaneFailed))

	t.Log("while hosting is gone a connection waits")
	end()
	waiting := make(chan error, 1)
	go func() { waiting <- request() }()
	begin(good)
	if err := <-waiting; err != nil {
		t.Error(err)
	}

	t.Log("the order to hibernate is removed: it stays awake")
	w.patch(key, strings.ReplaceAll(hibernated, "true", "false"))
	_, inside = w.available(key)
	w.hasConfigMap(inside, "customer")
	w.power(key, hypershift.Awake)
	w.delete(key)
	w.gone(key)
	w.wait("nobody to answer for it", func() error {
		if err := request(); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			return fmt.Errorf("a request for a cluster that is gone: %v", err)
		}
		return nil
	})
}
