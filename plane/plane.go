// Package plane starts, adopts, probes and stops one atoll-kube process: a
// whole Kubernetes control plane in a data directory. Management clusters and
// customers' planes are both planes.
//
// The process outlives its starter: a later process finds it again by the
// lock on its data directory, which the kernel releases when the process
// ends, so a plane is never started twice and a stale file never counts as a
// plane. A supervisor that manages processes itself uses only Config, for
// the command line and the probes.
//
// The package is a tool: services and region import it, it imports none.
package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/internal/beneath"
)

// Config describes a plane.
type Config struct {
	Name          string   // of cluster, context and user in kubeconfigs; default "plane"
	Dir           string   // everything that the plane keeps; made when missing
	Binary        string   // atoll-kube
	Address       string   // HOST:PORT of the API server; the host is an IP address
	ExternalHosts []string // further names and addresses of the serving certificate
	ServiceCIDR   string   // default atoll-kube's own; fixed for the plane's life

	// EtcdQuota is the size of etcd's database in bytes at which it refuses writes; default atoll-kube's own.
	EtcdQuota int64

	// SimulatedNodes makes the plane play the kubelet of Nodes that are
	// annotated kwok.x-k8s.io/node=fake.
	SimulatedNodes bool

	// Egress decides about connections to nodes, pods and webhooks while no node's agent is connected.
	Egress Egress

	// EmulatedVersion is the minor version, as 1.35, whose APIs, features and form of stored objects the plane has; ""
	// is its own.
	EmulatedVersion string
}

// Egress is how a plane reaches its cluster while no node's agent of konnectivity is connected.
type Egress string

// Kinds of egress.
const (
	Direct Egress = ""       // it connects by itself
	Tunnel Egress = "tunnel" // it refuses to connect
)

// Args are the arguments of atoll-kube.
func (c Config) Args() []string {
	args := []string{"serve", "--data-dir", c.Dir, "--listen", c.Address}
	if c.Name != "" {
		args = append(args, "--name", c.Name)
	}
	for _, h := range c.ExternalHosts {
		args = append(args, "--external-host", h)
	}
	if c.ServiceCIDR != "" {
		args = append(args, "--service-cidr", c.ServiceCIDR)
	}
	if c.EtcdQuota > 0 {
		args = append(args, "--etcd-quota", strconv.FormatInt(c.EtcdQuota, 10))
	}
	if c.SimulatedNodes {
		args = append(args, "--simulated-nodes")
	}
	if c.Egress != Direct {
		args = append(args, "--egress", string(c.Egress))
	}
	if c.EmulatedVersion != "" {
		args = append(args, "--emulated-version", c.EmulatedVersion)
	}
	return args
}

// Command returns the command, not started; its output is discarded.
func (c Config) Command() *exec.Cmd { return exec.Command(c.Binary, c.Args()...) }

// AdminKubeconfig is the path of the file that gives all rights in the plane.
// It exists once the plane has been ready.
func (c Config) AdminKubeconfig() string { return filepath.Join(c.Dir, "admin.kubeconfig") }

// RESTConfig returns a client configuration with all rights in the plane, from Kubeconfig.
func (c Config) RESTConfig() (*rest.Config, error) {
	kubeconfig, err := c.Kubeconfig()
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	return cfg, nil
}

// Readiness is the content of the file that a plane writes when it is ready.
type Readiness struct {
	PID     int    `json:"pid"`
	Address string `json:"address"`
	StartMS int64  `json:"start_ms"` // from start to ready
	Version string `json:"version"`  // of Kubernetes

	Walls []string `json:"walls,omitempty"` // that stand around the process, by package kube/walls
}

// ErrNotReady is the error of a plane that does not run or is not ready yet.
var ErrNotReady = errors.New("the plane is not ready")

// Ready returns nil when the plane has written its readiness file and its API
// server reports, over TLS with the plane's own CA, that all parts are well. It
// sends one request and does not wait.
func (c Config) Ready(ctx context.Context) error {
	if _, err := c.Readiness(); err != nil {
		return err
	}
	failing, err := c.Health(ctx)
	if err != nil {
		return err
	}
	if len(failing) > 0 {
		return fmt.Errorf("plane %s: %w: %s", c.Dir, ErrNotReady, strings.Join(failing, ", "))
	}
	return nil
}

// Health requests /readyz of the API server and returns the names of the parts
// that fail, as "etcd". The error is of an API server that does not answer.
func (c Config) Health(ctx context.Context) (failing []string, err error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	tls, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	// A transport of its own: client-go never closes the transports that it makes.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/readyz?verbose", nil)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w: %w", c.Dir, ErrNotReady, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w: %w", c.Dir, ErrNotReady, err)
	}
	for line := range strings.Lines(string(body)) {
		if bad, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(bad, " ")
			failing = append(failing, name)
		}
	}
	if res.StatusCode != http.StatusOK && len(failing) == 0 {
		return nil, fmt.Errorf("plane %s: %w: %s", c.Dir, ErrNotReady, res.Status)
	}
	return failing, nil
}

const readinessLimit = 16 << 10 // bytes of the file

var versionForm = regexp.MustCompile(`^v[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}([-+][-+.0-9A-Za-z]{1,60})?$`)

// Readiness reads the file that the plane wrote when it became ready. A version that is none is an error, and names
// that are not those of walls are left out: the file is the plane's word, and others print it.
func (c Config) Readiness() (Readiness, error) {
	var r Readiness
	data, err := beneath.Read(c.Dir, "ready", readinessLimit)
	if errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("plane %s: %w", c.Dir, ErrNotReady)
	}
	if err != nil {
		return r, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Readiness{}, fmt.Errorf("plane %s: %w: %w", c.Dir, ErrNotReady, err)
	}
	if !versionForm.MatchString(r.Version) {
		return Readiness{}, fmt.Errorf("plane %s: %w: its version is none", c.Dir, ErrNotReady)
	}
	r.Walls = slices.DeleteFunc(r.Walls, func(wall string) bool { return !slices.Contains(knownWalls, wall) })
	return r, nil
}
