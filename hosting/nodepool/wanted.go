package nodepool

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/instancetype"
)

const (
	maxReplicas = 500
)

// wanted is the wanted state of a pool: its spec, decoded and checked. The fields after invalid are findings about the
// machines and networks, which the pool's conditions report.
type wanted struct {
	provider   cluster.NodeProvider
	replicas   int
	version    string             // of Kubernetes, without v
	trust      controlplane.Trust // CAs of the control plane
	instance   instancetype.Type
	diskGiB    int64 // GiB
	labels     map[string]string
	taints     []taint
	autoRepair bool
	paused     bool // spec.pausedUntil: nodes stay as they are
	hibernated bool // its machines do not run
	// awakeSince is when the machine of a Node was started after a pause, in which the Node was not ready.
	awakeSince   map[types.UID]time.Time
	inPlace      bool
	replacement  replacement
	drainTimeout time.Duration // 0: none
	pods         netip.Prefix  // network of all pods, of which each node gets one of hostBits
	hostBits     int
	machines     netip.Prefix // network of the nodes

	invalid        []violation  // reasons why no node can be made
	noRoom         error        // why no further machine of a real node can be started; nil: one can
	machineProblem string       // why a machine does not run; "": no machine has a problem
	networkFull    *networkFull // why the last try made fewer nodes than the pool needs; nil: it made all
}

// violation is a reason why no node can be made, with the condition that it makes False.
type violation struct{ condition, reason, message string }

// readSpec decodes a pool's spec and checks it against its cluster. It never fails: what is wrong is in invalid.
// control is the version that the control plane runs.
func readSpec(pool *hypershift.NodePool, hc *hypershift.HostedCluster, control string) wanted {
	s := pool.Spec
	w := wanted{autoRepair: s.Management.AutoRepair, inPlace: s.Management.UpgradeType == "InPlace",
		labels: s.NodeLabels, diskGiB: 120}
	fail := func(condition, reason string, err error) {
		w.invalid = append(w.invalid, violation{condition, reason, err.Error()})
	}
	var err error
	if w.provider, err = cluster.ParseNodeProvider(pool.Annotations[hypershift.NodeProviderAnnotation]); err != nil {
		fail(ValidPlatformConfig, ValidationFailed, err)
	}
	if w.provider != cluster.Simulated {
		w.inPlace = false // a real node is replaced
	}
	if w.provider == cluster.External {
		w.autoRepair = false // hosting has no machine in place of a customer's
	}
	if w.hibernated = isHibernated(hc); w.hibernated && w.provider != cluster.Simulated {
		w.autoRepair = false
	}
	if s.Replicas != nil {
		w.replicas = int(*s.Replicas)
	}
	if a := s.AutoScaling; a != nil {
		// Nothing scales by load here: the pool stays within its bounds.
		w.replicas = min(max(int(pool.Status.Replicas), int(a.Min)), int(a.Max))
	}
	if w.replicas < 0 || w.replicas > maxReplicas {
		fail(ValidPlatformConfig, "InvalidReplicas", fmt.Errorf("spec.replicas: must be from 0 to %d", maxReplicas))
		w.replicas = 0
	}
	if w.replacement, err = readReplacement(s.Management.Replace, w.replicas); err != nil {
		fail(ValidPlatformConfig, ValidationFailed, err)
	}
	if s.NodeDrainTimeout != nil {
		w.drainTimeout = s.NodeDrainTimeout.Duration
	}
	for _, t := range s.Taints {
		w.taints = append(w.taints, taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	if err := w.readMachine(s); err != nil {
		fail(ValidPlatformConfig, ValidationFailed, err)
	}
	image := s.Release.Image
	if image == "" {
		image = hc.Spec.Release.Image
	}
	if err := w.readRelease(image, control); err != nil {
		fail(hypershift.ValidReleaseImage, ValidationFailed, err)
	}
	if err := w.readNetworks(hc); err != nil {
		fail(ValidPlatformConfig, ValidationFailed, err)
	}
	return w
}

func (w *wanted) readMachine(s hypershift.NodePoolSpec) error {
	name := instancetype.Default
	if t := s.Platform.Type; t != "" && t != "AWS" {
		return fmt.Errorf("spec.platform.type: must be AWS, not %s", t)
	}
	if aws := s.Platform.AWS; aws != nil {
		if aws.InstanceType != "" {
			name = aws.InstanceType
		}
		if aws.RootVolume != nil && aws.RootVolume.Size > 0 {
			w.diskGiB = aws.RootVolume.Size
		}
	}
	var known bool
	if w.instance, known = instancetype.Lookup(name); !known {
		return fmt.Errorf("spec.platform.aws.instanceType: %s is unknown", name)
	}
	if s.Arch != "" && s.Arch != w.instance.Arch {
		return fmt.Errorf("spec.arch: %s is a machine of %s, not %s", name, w.instance.Arch, s.Arch)
	}
	return nil
}

// readRelease checks the pool's release against the version that the control
// plane runs. The rules are cluster.CheckNodeVersion.
func (w *wanted) readRelease(image, control string) error {
	version, ok := cluster.ReleaseVersion(image)
	if !ok {
		return fmt.Errorf("spec.release.image: must be %s", cluster.ReleaseImage("VERSION"))
	}
	w.version = version
	if control == "" {
		return errors.New("the control plane's version is not known yet")
	}
	if err := cluster.CheckNodeVersion("", version, control); err != nil {
		return fmt.Errorf("spec.release.image: %w", err)
	}
	return nil
}

// Networks of a HostedCluster that names none.
var (
	defaultPods     = netip.MustParsePrefix(cluster.DefaultClusterNetwork)
	defaultMachines = netip.MustParsePrefix(cluster.DefaultMachineNetwork)
)

const (
	defaultHostBits = 23
	// firstMachine is the index of the first node's address in the network of machines. Addresses before it are left
	// for the network itself.
	firstMachine = 16
)

func (w *wanted) readNetworks(hc *hypershift.HostedCluster) error {
	w.pods, w.machines, w.hostBits = defaultPods, defaultMachines, defaultHostBits
	if n := hc.Spec.Networking.ClusterNetwork; len(n) > 0 {
		p, err := netip.ParsePrefix(n[0].CIDR)
		if err != nil {
			return fmt.Errorf("the cluster's clusterNetwork is none: %s", n[0].CIDR)
		}
		w.pods = p.Masked()
		if n[0].HostPrefix != 0 {
			w.hostBits = int(n[0].HostPrefix)
		} else if p.Addr().Is6() {
			w.hostBits = 64
		}
	}
	if n := hc.Spec.Networking.MachineNetwork; len(n) > 0 {
		p, err := netip.ParsePrefix(n[0].CIDR)
		if err != nil {
			return fmt.Errorf("the cluster's machineNetwork is none: %s", n[0].CIDR)
		}
		w.machines = p.Masked()
	}
	// A network smaller than one node's share is the share of one node.
	w.hostBits = min(max(w.hostBits, w.pods.Bits()), w.pods.Addr().BitLen())
	return nil
}

// isCurrent reports whether a node has the machine type, version and CA that a new node of the pool would have. A
// customer's machine always counts as current: its owner installs the version, and joins again for another CA.
func (w wanted) isCurrent(n *node) bool {
	return w.provider == cluster.External || w.hasInstanceType(n) && n.Status.NodeInfo.KubeletVersion == "v"+w.version &&
		!w.hasEarlierCA(n)
}

// hasEarlierCA reports whether a rotation of the control plane's CA waits until the node is replaced: its kubelet has
// certificates of an earlier CA. Outside of a rotation a node without NodeCAAnnotation is as good as any.
func (w wanted) hasEarlierCA(n *node) bool {
	return w.provider == cluster.Local && w.trust.HasEarlier &&
		controlplane.CAID(n.Metadata.Annotations[controlplane.NodeCAAnnotation]) != w.trust.ID
}

// isUnreadyRealNode reports whether a node is real and not ready, although its machine should run.
func (w wanted) isUnreadyRealNode(n *node) bool {
	return w.provider != cluster.Simulated && !w.hibernated && !n.isReady()
}

// waitsForRoom reports whether a node cannot be ready because there is no room for its machine.
func (w wanted) waitsForRoom(n *node) bool {
	_, exists := w.awakeSince[n.Metadata.UID]
	return w.noRoom != nil && !exists
}

// hasInstanceType reports whether a node has the pool's instance type.
func (w wanted) hasInstanceType(n *node) bool {
	return n.Metadata.Labels[instanceTypeLabel] == w.instance.Name
}

// isHibernated reports whether the pool's machines must not run: the cluster hibernates, and Nodes would keep its plane
// awake.
func isHibernated(hc *hypershift.HostedCluster) bool {
	return hc != nil && hc.Annotations[hypershift.HibernatedAnnotation] == "true"
}
