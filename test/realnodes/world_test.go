//go:build realnodes

package realnodes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
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
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/localnodes"
	"atoll.dev/hosting/nodepool"
	"atoll.dev/hosting/process"
	"atoll.dev/node"
	"atoll.dev/node/supervisor"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// TestMain is also the supervisor and the first process of the nodes.
func TestMain(m *testing.M) {
	var err error
	switch args := os.Args[1:]; {
	case slices.Equal(args, []string{"node", "init"}):
		err = supervisor.RunInit()
	case len(args) == 4 && slices.Equal(args[:3], []string{"node", "run", "--config"}):
		err = runSupervisor(args[3])
	default:
		os.Exit(planetest.Main(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runSupervisor(file string) error {
	config, err := node.ReadConfig(file)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return supervisor.Run(ctx, config, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
}

// limit exceeds every wait of these tests unless something hangs.
const limit = 2 * time.Minute

// onePlane is the plane of the management cluster and of its only hosted cluster.
type onePlane struct{ config plane.Config }

func (p onePlane) Client(controlplane.ID) (controlplane.Admin, error) {
	admin, err := process.AdminOf(p.config)
	admin.ServerName = "localhost"
	return admin, err
}

func (onePlane) SetNodes(controlplane.ID, string, int) {} // nobody chooses a size for this plane

// world is a cluster with two real nodes.
type world struct {
	t          *testing.T
	program    string // atoll-kube, which is also kubectl
	kubeconfig string
	dir        string // has the homes of the nodes
}

// startPlane starts a plane for real nodes, whose program is atoll-node. It skips the test on a machine that cannot run
// real nodes.
func startPlane(t *testing.T) (atollNode string, p *plane.Process, config *rest.Config) {
	t.Helper()
	atollNode, err := filepath.Abs("../../bin/atoll-node")
	if err != nil {
		t.Fatal(err)
	}
	if err := supervisor.MissingError(supervisor.Preflight(atollNode)); err != nil {
		t.Skip(err)
	}
	p = planetest.Start(t)
	if config, err = p.Config.RESTConfig(); err != nil {
		t.Fatal(err)
	}
	return atollNode, p, config
}

const namespace, cluster = "clusters-1", "hc-1"

// skipLong skips a test that loads the machine for half a minute or more where make test runs the short ones.
func skipLong(t *testing.T) {
	t.Helper()
	if os.Getenv("ATOLL_REAL_NODES") == "short" {
		t.Skip("make test-nodes runs it: it loads the machine for half a minute or more")
	}
}

// newWorld starts a plane, hosting's node pools, and a pool of two nodes, and removes all of it at the end. A node that
// is not ready for unhealthyAfter is replaced; 0: after the default time.
func newWorld(t *testing.T, unhealthyAfter time.Duration) *world {
	t.Helper()
	programs, p, config := startPlane(t)
	kubeconfig, err := hosting.Bootstrap(t.Context(), config, hosting.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hostingConfig, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "nodes-") // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	machines, err := localnodes.New(localnodes.Options{Dir: dir, Atoll: self, Log: testsite.Log(t),
		Programs: map[controlplane.Version]string{"1.36.3": programs},
		Images:   []string{filepath.Join(filepath.Dir(programs), "demo-image.tar")}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(hostingConfig)
	if err != nil {
		t.Fatal(err)
	}
	stop := testsite.Run(t, "node pools", func(ctx context.Context) error {
		return nodepool.Run(ctx, nodepool.Options{Client: client, Planes: onePlane{p.Config}, Machines: machines,
			LoadBalancers:  machines,
			UnhealthyAfter: unhealthyAfter, Router: p.Config.Address, Log: testsite.Log(t)})
	})
	t.Cleanup(func() {
		stop()
		homes, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, home := range homes {
			if err := node.Stop(context.Background(), home); err != nil {
				t.Error(err)
			}
		}
	})
	w := &world{t: t, program: p.Config.Binary, kubeconfig: p.Config.AdminKubeconfig(), dir: dir}
	w.order(client)
	return w
}

// orderManifests returns the manifests of a hosted cluster with one node pool, in a namespace of its own.
func orderManifests(pool, provider string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: %[3]s/%[4]s
kind: HostedCluster
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  release: {image: "atoll.dev/release:1.36.3"}
  platform: {type: AWS}
  networking: {clusterNetwork: [{cidr: 10.132.0.0/14}], machineNetwork: [{cidr: 10.90.0.0/16}]}
---
apiVersion: %[3]s/%[4]s
kind: NodePool
metadata: {name: %[2]s-%[5]s, namespace: %[1]s, annotations: {hosting.atoll.dev/provider: %[6]s}}
spec:
  clusterName: %[2]s
  replicas: %[7]d
  release: {image: "atoll.dev/release:1.36.3"}
  platform: {type: AWS, aws: {instanceType: m6a.large}}
  management: {upgradeType: Replace, autoRepair: true}
`, namespace, cluster, hypershift.Group, hypershift.Version, pool, provider, replicas)
}

// order creates a hosted cluster with a pool of two nodes.
func (w *world) order(client dynamic.Interface) {
	w.t.Helper()
	w.apply(orderManifests("w", "local", 2))
	testsite.EventuallyWithin(w.t, "the node pool is Ready", limit, func() error {
		object, err := client.Resource(hypershift.NodePools()).Namespace(namespace).Get(w.t.Context(), cluster+"-w",
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", conditions)
	})
}

// run runs kubectl.
func (w *world) run(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.program, append([]string{"--kubeconfig", w.kubeconfig}, args...)...)
	cmd.Args[0] = "kubectl"
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// apply applies manifests as soon as their kinds and prerequisites exist.
func (w *world) apply(manifests string) {
	w.t.Helper()
	testsite.EventuallyWithin(w.t, "the manifests are applied", limit, func() error {
		_, err := w.run(manifests, "apply", "-f", "-")
		return err
	})
}
