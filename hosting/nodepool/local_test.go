package nodepool

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/localnodes"
)

// machinesInMemory are Machines without processes. A removed machine stays until end is called.
type machinesInMemory struct {
	mu      sync.Mutex
	changed func(localnodes.Pool)
	missing error
	orders  map[types.UID]localnodes.Order
	ending  map[types.UID]bool
	joined  map[types.UID]bool
	most    int    // machines; 0: any number
	state   string // awake or asleep
}

func newMachinesInMemory() *machinesInMemory {
	return &machinesInMemory{orders: map[types.UID]localnodes.Order{}, ending: map[types.UID]bool{},
		joined: map[types.UID]bool{}}
}

func (m *machinesInMemory) Open(_ context.Context, changed func(localnodes.Pool)) (closeMachines func(), err error) {
	m.changed = changed
	return func() {}, nil
}

func (m *machinesInMemory) Missing() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.missing
}

func (m *machinesInMemory) CanRun(version controlplane.Version) bool { return version == "1.36.3" }
func (m *machinesInMemory) Releases() []controlplane.Version         { return []controlplane.Version{"1.36.3"} }
func (m *machinesInMemory) BridgeOf(cluster controlplane.ID) string  { return "atoll-test" }
func (m *machinesInMemory) Pools() []localnodes.Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	pools := map[localnodes.Pool]bool{}
	for _, o := range m.orders {
		pools[o.Pool] = true
	}
	return slices.Collect(maps.Keys(pools))
}

func (m *machinesInMemory) Of(pool localnodes.Pool) map[types.UID]localnodes.Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[types.UID]localnodes.Machine{}
	for uid, o := range m.orders {
		if o.Pool == pool {
			found[uid] = localnodes.Machine{UID: uid, Node: o.Config.Name, Removing: m.ending[uid],
				Joined: m.joined[uid]}
		}
	}
	return found
}

func (m *machinesInMemory) CheckRoom() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.missing == nil && m.most > 0 && len(m.orders) >= m.most {
		return localnodes.ErrFull
	}
	return m.missing
}

func (m *machinesInMemory) Start(o localnodes.Order) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = "awake"
	if before, exists := m.orders[o.UID]; exists && o.Config.BootstrapToken == "" {
		o.Config.BootstrapToken = before.Config.BootstrapToken
	}
	m.orders[o.UID] = o
	return nil
}

func (m *machinesInMemory) Sleep(localnodes.Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = "asleep"
}

func (m *machinesInMemory) Remove(_ localnodes.Pool, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ending[uid] = true
}

// end ends the removed machines.
func (m *machinesInMemory) end() {
	m.mu.Lock()
	var pools []localnodes.Pool
	for uid := range m.ending {
		pools = append(pools, m.orders[uid].Pool)
		delete(m.orders, uid)
		delete(m.ending, uid)
	}
	m.mu.Unlock()
	for _, pool := range pools {
		m.changed(pool)
	}
}

// names lists the machines, those that end with a minus.
func (m *machinesInMemory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for uid, o := range m.orders {
		if m.ending[uid] {
			names = append(names, "-"+o.Config.Name)
		} else {
			names = append(names, o.Config.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) awaitMachines(m *machinesInMemory, want ...string) {
	w.t.Helper()
	w.eventually("machines "+strings.Join(want, " "), func() error {
		if got := m.names(); !slices.Equal(got, want) {
			return fmt.Errorf("machines %v", got)
		}
		return nil
	})
}

// realPool creates a pool with a provider of real nodes.
func (w *world) realPool(name string, provider cluster.NodeProvider, replicas int) {
	w.t.Helper()
	w.mc.Create(hypershift.NodePools(), w.namespace, map[string]any{
		"apiVersion": hypershift.Group + "/" + hypershift.Version, "kind": "NodePool",
		"metadata": map[string]any{"name": w.cluster + "-" + name,
			"annotations": map[string]any{hypershift.NodeProviderAnnotation: string(provider)}},
		"spec": map[string]any{"clusterName": w.cluster, "replicas": int64(replicas),
			"release":    map[string]any{"image": "atoll.dev/release:1.36.3"},
			"platform":   map[string]any{"type": "AWS", "aws": map[string]any{"instanceType": "m6a.large"}},
			"management": map[string]any{"upgradeType": "InPlace", "autoRepair": true}},
	})
}

func TestEachNodeOfALocalPoolHasAMachine(t *testing.T) {
	m := newMachinesInMemory()
	w := newWorld(t, Options{Machines: m, Router: "127.0.0.1:6443"})
	m.missing = errors.New("this machine cannot run real nodes: runc is missing")
	w.realPool("a", cluster.Local, 2)
	w.await("a", ValidPlatformConfig, metav1.ConditionFalse, ProviderUnavailable)
	m.mu.Lock()
	m.missing = nil
	m.mu.Unlock()
	w.change("a", map[string]any{"nodeLabels": map[string]any{"tier": "web"}})
	w.awaitMachines(m, "a-0", "a-1")
	w.await("a", Simulated, metav1.ConditionFalse, "Local")
	w.awaitNodes("a", "a-0", "a-1")
	uids := map[string]types.UID{}
	for _, n := range w.nodes("a") {
		uids[n.GetName()] = n.GetUID()
		if n.GetLabels()[simulatedLabel] != "" || n.GetAnnotations()["kwok.x-k8s.io/node"] != "" {
			t.Errorf("node %s is marked as simulated", n.GetName())
		}
	}
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	for name, uid := range uids {
		m.mu.Lock()
		config := m.orders[uid].Config
		m.mu.Unlock()
		if config.Name != name || config.APIServer.Address != "127.0.0.1:6443" || !config.Konnectivity ||
			config.Resources.CPU.String() != "2" {
			t.Errorf("machine of %s: %+v", name, config)
		}
		id, _, _ := strings.Cut(config.BootstrapToken, ".")
		secret, err := w.admin.Resource(secrets).Namespace("kube-system").Get(t.Context(), "bootstrap-token-"+id,
			metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		groups, _, _ := unstructured.NestedString(secret.Object, "data", "auth-extra-groups")
		want := base64.StdEncoding.EncodeToString([]byte("system:bootstrappers:atoll:node:" + name))
		if groups != want {
			t.Errorf("the token of %s has groups %s, want %s", name, groups, want)
		}
	}

	t.Run("a Node that has lost its label gets it back", func(t *testing.T) {
		w.patch(nodeResource(), "", "a-1", map[string]any{"metadata": map[string]any{"labels": map[string]any{
			hypershift.NodePoolLabel: nil}}})
		w.awaitNodes("a", "a-0", "a-1")
		w.awaitMachines(m, "a-0", "a-1")
	})
	t.Run("a deleted Node is made again when its machine has ended", func(t *testing.T) {
		if err := w.admin.Resource(nodeResource()).Delete(t.Context(), "a-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.awaitMachines(m, "-a-0", "a-1")
		w.awaitNodes("a", "a-1")
		m.end()
		w.awaitNodes("a", "a-0", "a-1")
		w.awaitMachines(m, "a-0", "a-1")
		if now := w.nodes("a")[0].GetUID(); now == uids["a-0"] {
			t.Error("the machine runs for the deleted Node")
		}
	})
	t.Run("the machines of a hibernated cluster sleep", func(t *testing.T) {
		hibernate := func(value any) {
			w.patch(hypershift.HostedClusters(), w.namespace, w.cluster, map[string]any{"metadata": map[string]any{
				"annotations": map[string]any{hypershift.HibernatedAnnotation: value}}})
		}
		await := func(state string) {
			w.eventually("machines "+state, func() error {
				m.mu.Lock()
				defer m.mu.Unlock()
				if m.state != state {
					return fmt.Errorf("they are %s", m.state)
				}
				return nil
			})
		}
		hibernate("true")
		await("asleep")
		w.change("a", map[string]any{"pausedUntil": "true"}) // the machines of a paused pool run
		hibernate(nil)
		await("awake")
		w.change("a", map[string]any{"pausedUntil": nil})
	})
	t.Run("a deleted pool waits for its machines", func(t *testing.T) {
		w.delete("a")
		w.awaitNodes("a")
		w.awaitMachines(m, "-a-0", "-a-1")
		if _, err := w.admin.Resource(hypershift.NodePools()).Namespace(w.namespace).Get(t.Context(), w.cluster+"-a",
			metav1.GetOptions{}); err != nil {
			t.Errorf("the pool is gone before its machines: %v", err)
		}
		m.end()
		w.gone("a")
	})
}

func TestNoMoreMachinesRunThanAPoolMayHave(t *testing.T) {
	var nodes []*node
	for i := range 10 {
		n := &node{}
		n.Metadata.Name, n.Metadata.UID = fmt.Sprintf("a-%d", 9-i), types.UID(fmt.Sprintf("u%d", 9-i))
		nodes = append(nodes, n)
	}
	machines := map[types.UID]localnodes.Machine{"u7": {}, "u8": {}}
	names := func() (names []string) {
		for _, n := range nodesToRun(nodes, machines, 2+1) {
			names = append(names, n.Metadata.Name)
		}
		return names
	}
	if got, want := names(), []string{"a-7", "a-8", "a-0"}; !slices.Equal(got, want) {
		t.Errorf("machines for %v, want %v", got, want)
	}
	nodes[2].Metadata.Annotations = map[string]string{drainingAnnotation: "2026-11-23T10:00:00Z"} // a-7
	if got, want := names(), []string{"a-7", "a-8", "a-0", "a-1"}; !slices.Equal(got, want) {
		t.Errorf("with a draining node machines for %v, want %v", got, want)
	}
	// A finalizer keeps deleted Nodes, and a disruption budget keeps drained ones: their machines count.
	machines, nodes = map[types.UID]localnodes.Machine{}, nodes[:0]
	for i := range 20 {
		n := &node{}
		n.Metadata.Name, n.Metadata.UID = fmt.Sprintf("a-%d", i), types.UID(fmt.Sprintf("u%d", i))
		switch i % 3 {
		case 0:
			n.Metadata.DeletionTimestamp = new(metav1.Now())
		case 1:
			n.Metadata.Annotations = map[string]string{drainingAnnotation: "2026-11-23T10:00:00Z"}
		}
		nodes = append(nodes, n)
		if i < 12 {
			machines[n.Metadata.UID] = localnodes.Machine{}
		}
	}
	if got, want := names(), []string{"a-1", "a-2", "a-4", "a-5", "a-7", "a-8", "a-10", "a-11"}; !slices.Equal(got, want) {
		t.Errorf("with many machines of nodes that leave, machines for %v, want %v", got, want)
	}
}

func TestPodsReachTheAPIServerAtAnAddressOfNoNetwork(t *testing.T) {
	p := netip.MustParsePrefix
	if got := advertisedAddress(p("172.31.0.0/16"), p("10.132.0.0/14")); got != "172.20.0.1:6443" {
		t.Errorf("advertised %s", got)
	}
	if got := advertisedAddress(p("172.16.0.0/12"), p("192.168.0.0/16")); got != "100.127.255.1:6443" {
		t.Errorf("advertised %s", got)
	}
}

func TestANodeWithManyTaintsKeepsThem(t *testing.T) {
	n := &node{}
	for i := range maxTaints {
		n.Spec.Taints = append(n.Spec.Taints, taint{Key: fmt.Sprint("k", i), Effect: "NoSchedule"})
	}
	if patch := (wanted{labels: map[string]string{"a": "b"}}).specPatch(n); patch != nil {
		t.Errorf("the patch %v replaces taints that hosting has not read", patch)
	}
}

// The first machine whose Node could not be read kept the machines behind it for ever.
func TestAnUnreadableNodeKeepsNoOtherMachine(t *testing.T) {
	s := watchedPlaneAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		code := http.StatusNotFound
		if strings.HasSuffix(r.URL.Path, "/nodes/w-0") {
			code = http.StatusInternalServerError
		}
		w.WriteHeader(code)
		reason := map[int]metav1.StatusReason{404: metav1.StatusReasonNotFound, 500: metav1.StatusReasonInternalError}
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Code: int32(code), Reason: reason[code],
			Details: &metav1.StatusDetails{Kind: "nodes", Name: path.Base(r.URL.Path)}})
	}))
	machines := newMachinesInMemory()
	s.reconciler = &reconciler{o: Options{Machines: machines}}
	s.tokenDeleted = map[types.UID]bool{}
	pool := localnodes.Pool{Cluster: s.cluster, Name: "hc-1-workers"}
	for i := range 8 {
		o := localnodes.Order{Pool: pool, UID: types.UID(fmt.Sprint("uid-", i))}
		o.Config.Name = fmt.Sprint("w-", i)
		if err := machines.Start(o); err != nil {
			t.Fatal(err)
		}
	}
	err := s.removeWithoutNode(t.Context(), pool, machines.Of(pool), nil)
	if err == nil || !strings.Contains(err.Error(), "w-0") {
		t.Errorf("the Node of w-0 cannot be read: error %v", err)
	}
	for uid, m := range machines.Of(pool) {
		if m.Removing == (m.Node == "w-0") {
			t.Errorf("machine %s (%s) is removed: %t", m.Node, uid, m.Removing)
		}
	}
}
