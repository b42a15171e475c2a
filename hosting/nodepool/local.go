package nodepool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/localnodes"
	realnode "atoll.dev/node"
)

// Machines run the nodes of pools with the provider local; localnodes.Machines implements it. All methods return at
// once, and may be repeated.
type Machines interface {
	// Open finds the machines of an earlier process. It calls changed after each change of a pool's machines, from any
	// goroutine. Machines run on after the end of ctx; closeMachines waits for the end of this process's work.
	Open(ctx context.Context, changed func(localnodes.Pool)) (closeMachines func(), err error)
	// Missing returns what this machine lacks for real nodes, nil when it has all.
	Missing() error
	// CanRun reports whether the machine has the programs of a release.
	CanRun(version controlplane.Version) bool
	// Releases lists the releases whose programs the machine has.
	Releases() []controlplane.Version
	// BridgeOf returns the name of a cluster's bridge.
	BridgeOf(cluster controlplane.ID) string
	// Pools lists the pools that have machines.
	Pools() []localnodes.Pool
	// Of lists the machines of a pool by the UID of their Nodes.
	Of(pool localnodes.Pool) map[types.UID]localnodes.Machine
	// CheckRoom returns why no further machine can be started, nil when one can: localnodes.ErrFull, or the error of
	// Missing.
	CheckRoom() error
	// Start starts a machine. To a machine that exists it passes the order's token and addresses of the API server.
	Start(order localnodes.Order) error
	// Sleep stops the machines of a pool and keeps their homes.
	Sleep(pool localnodes.Pool)
	// Remove stops a machine of a pool and deletes its home.
	Remove(pool localnodes.Pool, uid types.UID)
}

// noMachines are the Machines of a management cluster that makes no real nodes.
type noMachines struct{}

var errNoMachines = errors.New("this management cluster makes no local nodes")

func (noMachines) Open(context.Context, func(localnodes.Pool)) (closeMachines func(), err error) {
	return func() {}, nil
}

func (noMachines) Missing() error                                      { return errNoMachines }
func (noMachines) CanRun(controlplane.Version) bool                    { return false }
func (noMachines) Releases() []controlplane.Version                    { return nil }
func (noMachines) BridgeOf(controlplane.ID) string                     { return "" }
func (noMachines) Pools() []localnodes.Pool                            { return nil }
func (noMachines) Of(localnodes.Pool) map[types.UID]localnodes.Machine { return nil }
func (noMachines) CheckRoom() error                                    { return errNoMachines }
func (noMachines) Start(localnodes.Order) error                        { return errNoMachines }
func (noMachines) Sleep(localnodes.Pool)                               {}
func (noMachines) Remove(localnodes.Pool, types.UID)                   {}

const (
	// maxLeaving is the number of machines that a pool may have beyond its replicas and its surge, while others are
	// drained or stopped.
	maxLeaving = 2
	// roomRetry is the pause before a pool tries again to get machines for which there was no room.
	roomRetry = 10 * time.Second
)

// poolOf returns the key of a pool's machines.
func poolOf(pool *hypershift.NodePool) localnodes.Pool {
	return localnodes.Pool{Cluster: controlplane.ID{Namespace: pool.Namespace, Name: pool.Spec.ClusterName},
		Name: pool.Name}
}

// hasRealNodes reports whether kubelets report the pool's Nodes.
func (w *wanted) hasRealNodes() bool { return w.provider != cluster.Simulated }

// checkHost adds the reasons why no real node of the pool can be made.
func (w *wanted) checkHost(m Machines) {
	if !w.hasRealNodes() {
		return
	}
	add := func(condition, reason, format string, args ...any) {
		w.invalid = append(w.invalid, violation{condition, reason, fmt.Sprintf(format, args...)})
	}
	if !w.pods.Addr().Is4() || !w.machines.Addr().Is4() {
		add(ValidPlatformConfig, ValidationFailed, "real nodes need IPv4 networks")
	}
	if w.provider == cluster.External {
		return
	}
	w.noRoom = m.CheckRoom()
	if err := m.Missing(); err != nil {
		add(ValidPlatformConfig, ProviderUnavailable, "%s", err)
	} else if w.version != "" && !m.CanRun(controlplane.Version(w.version)) {
		add(hypershift.ValidReleaseImage, ValidationFailed,
			"spec.release.image: this management cluster has the programs of real nodes of %v only", m.Releases())
	}
}

// reconcileMachines makes the machines of a pool with the provider local agree with its Nodes: each Node has a
// machine, and each machine a Node. It makes no machine for a pool that is paused, invalid or being deleted; those
// that exist run. A problem with one machine does not stop the others. It returns after which time to call it again;
// 0: never.
func (k *reconciler) reconcileMachines(ctx context.Context, s *watchedPlane, pool *hypershift.NodePool, w *wanted,
	nodes []*node,
	admin controlplane.Admin) (again time.Duration, err error) {
	if w.provider != cluster.Local {
		return 0, nil
	}
	machines := k.o.Machines.Of(poolOf(pool))
	var problems []error
	if !w.paused {
		problems = append(problems, s.removeWithoutNode(ctx, poolOf(pool), machines, nodes))
	}
	if w.hibernated {
		return 0, errors.Join(problems...)
	}
	mayMake := w.invalid == nil && !w.paused && pool.DeletionTimestamp == nil
	if mayMake {
		if err := s.restrictKubelets(ctx); err != nil {
			return 0, errors.Join(append(problems, err)...)
		}
	}
	var noRoom error
	for _, n := range nodesToRun(nodes, machines, w.replicas+w.replacement.surge) {
		_, exists := machines[n.Metadata.UID]
		if !exists && !mayMake {
			continue
		}
		err := k.reconcileMachine(ctx, s, pool, w, n, machines, admin)
		if errors.Is(err, localnodes.ErrFull) {
			noRoom, again = err, roomRetry
			continue
		}
		problems = append(problems, err)
	}
	if mayMake && k.o.LoadBalancers != nil {
		s.startServices.Do(s.balanceServices)
	}
	if mayMake {
		problems = append(problems, s.applyDNS(ctx, time.Now()), s.sweepTokens(ctx, time.Now()))
	}
	for _, uid := range slices.Sorted(maps.Keys(machines)) {
		if m := machines[uid]; m.Message != "" {
			w.machineProblem = m.Node + ": " + m.Message
		}
	}
	err = errors.Join(problems...)
	if reason := cmp.Or(err, noRoom); reason != nil {
		w.machineProblem = reason.Error()
	}
	return again, err
}

// reconcileMachine starts or updates the machine of a Node. It gives the machine a bootstrap token when it needs one,
// and deletes the token from the plane when the node has joined.
func (k *reconciler) reconcileMachine(ctx context.Context, s *watchedPlane, pool *hypershift.NodePool, w *wanted,
	n *node,
	machines map[types.UID]localnodes.Machine, admin controlplane.Admin) error {
	uid := n.Metadata.UID
	m, exists := machines[uid]
	if !exists { // before the plane gets a token that no machine would use
		if err := k.o.Machines.CheckRoom(); err != nil {
			return err
		}
	}
	order, err := s.orderFor(ctx, pool, *w, n, admin)
	if err != nil {
		return err
	}
	if err := s.applyAPIServerEndpoint(ctx, order.Config.APIServer.Advertised); err != nil {
		return err
	}
	if !exists || m.NeedsToken {
		if order.Config.BootstrapToken, err = s.prepareJoin(ctx, n); err != nil {
			return err
		}
	}
	if err := k.o.Machines.Start(order); err != nil {
		if !exists {
			err = errors.Join(err, s.deleteToken(ctx, uid))
		}
		return err
	}
	if m.Joined {
		return s.deleteTokenOnce(ctx, uid, tokenSecret(uid))
	}
	return nil
}

// nodesToRun returns the Nodes whose machines are to be started or kept up to date now: those that have a machine, and
// as many others as the pool may have machines: most, and maxLeaving beside them. A customer's administrator can create
// Nodes with a pool's label, and can keep deleted or drained Nodes for ever: each machine counts, whatever its Node is
// like.
func nodesToRun(nodes []*node, machines map[types.UID]localnodes.Machine, most int) []*node {
	var found, others []*node
	leaving := len(machines)
	for _, n := range nodes {
		m, has := machines[n.Metadata.UID]
		switch {
		case n.Metadata.DeletionTimestamp != nil || m.Removing:
		case has:
			found = append(found, n)
			if !n.isDraining() {
				leaving--
			}
		case !n.isDraining():
			others = append(others, n)
		}
	}
	byIndex := func(a, b *node) int { return cmp.Compare(a.index(), b.index()) }
	slices.SortStableFunc(found, byIndex)
	slices.SortStableFunc(others, byIndex)
	room := most + min(leaving, maxLeaving) - len(machines)
	return append(found, others[:max(0, min(len(others), room))]...)
}

// removeMachines begins the removal of all machines of a pool, and reports whether none is left.
func (k *reconciler) removeMachines(pool localnodes.Pool) (ended bool) {
	machines := k.o.Machines.Of(pool)
	for uid := range machines {
		k.o.Machines.Remove(pool, uid)
	}
	return len(machines) == 0
}

// nameInUse reports whether a machine of an earlier Node with this name still exists.
func (k *reconciler) nameInUse(pool localnodes.Pool, name string, nodes []*node) bool {
	for uid, m := range k.o.Machines.Of(pool) {
		if m.Node == name && !slices.ContainsFunc(nodes, func(n *node) bool { return n.Metadata.UID == uid }) {
			return true
		}
	}
	return false
}

// orderFor returns the order by which Machines.Start starts the machine of a Node, without a bootstrap token.
func (s *watchedPlane) orderFor(ctx context.Context, pool *hypershift.NodePool, w wanted, n *node,
	admin controlplane.Admin) (
	localnodes.Order, error,
) {
	fail := func(err error) (localnodes.Order, error) {
		return localnodes.Order{}, fmt.Errorf("node %s of %s: %w", n.Metadata.Name, s.cluster, err)
	}
	network, advertised, err := s.networkOf(ctx, w, n.Spec.PodCIDR)
	if err != nil {
		return fail(err)
	}
	network.Bridge = s.reconciler.o.Machines.BridgeOf(s.cluster)
	config, err := admin.RESTConfig()
	if err != nil {
		return fail(err)
	}
	direct, err := url.Parse(config.Host)
	if err != nil {
		return fail(err)
	}
	return localnodes.Order{
		Pool: poolOf(pool), UID: n.Metadata.UID, Version: controlplane.Version(w.version),
		Config: realnode.Config{
			Name: n.Metadata.Name, ProviderID: providerID(pool, w.provider, n.Metadata.Name),
			APIServer: realnode.APIServer{
				Address: s.reconciler.o.Router, ServerName: admin.ServerName, CA: string(w.trust.PEM),
				UnnamedAddress: direct.Host, Advertised: advertised,
			},
			Labels:  map[string]string{instanceTypeLabel: w.instance.Name},
			Network: network,
			Resources: realnode.Resources{
				CPU:    *resource.NewQuantity(int64(w.instance.CPU), resource.DecimalSI),
				Memory: *resource.NewQuantity(int64(w.instance.MemoryMiB)<<20, resource.BinarySI),
				Pods:   maxPods,
				Disk:   *resource.NewQuantity(w.diskGiB<<30, resource.BinarySI),
			},
			Konnectivity: true,
		},
	}, nil
}

// networkOf returns the network settings of a real node, without a bridge, and the address under which its pods reach
// the API server. podCIDR is that of the Node.
func (s *watchedPlane) networkOf(ctx context.Context, w wanted, podCIDR string) (n realnode.Network, toAPIServer string,
	err error) {
	place, ok := subnetIndex(w.pods, podCIDR)
	ip, fits := offset(w.machines, firstMachine+place)
	if !ok || !fits {
		return n, "", fmt.Errorf("the podCIDR %q of the node is not one of the cluster's", podCIDR)
	}
	services, err := s.serviceNetwork(ctx)
	if err != nil {
		return n, "", err
	}
	dns, _ := offset(services, dnsService)
	return realnode.Network{
		ClusterCIDR: w.pods.String(), ServiceCIDR: services.String(), ClusterDNS: dns.String(), PodCIDR: podCIDR,
		Address: netip.PrefixFrom(ip, w.machines.Bits()).String(),
	}, advertisedAddress(services, w.pods, w.machines), nil
}

// providerID returns spec.providerID of a Node.
func providerID(pool *hypershift.NodePool, provider cluster.NodeProvider, name string) string {
	return "atoll-" + string(provider) + ":///" + pool.Namespace + "/" + name
}

// advertisedAddresses are the candidates for the address under which pods reach their API server; HyperShift uses the
// first.
var advertisedAddresses = []string{"172.20.0.1", "192.168.255.1", "100.127.255.1", "10.255.255.1"}

// advertisedAddress returns the address under which the pods of a cluster reach its API server: the first candidate
// outside of the cluster's networks.
func advertisedAddress(networks ...netip.Prefix) string {
	for _, text := range advertisedAddresses {
		at := netip.MustParseAddr(text)
		if !slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(at) }) {
			return netip.AddrPortFrom(at, apiServerPort).String()
		}
	}
	return netip.AddrPortFrom(netip.MustParseAddr(advertisedAddresses[0]), apiServerPort).String()
}

const apiServerPort = 6443

// awakeSince returns when each machine was last started after hibernation, by the UID of its Node.
func awakeSince(machines map[types.UID]localnodes.Machine) map[types.UID]time.Time {
	since := map[types.UID]time.Time{}
	for uid, m := range machines {
		since[uid] = m.AwakeSince
	}
	return since
}
