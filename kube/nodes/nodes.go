// Package nodes simulates kubelets inside this process: it links KWOK (sigs.k8s.io/kwok) and lets it
// play the part of the kubelet for the Nodes that carry the annotation kwok.x-k8s.io/node=fake. Such a
// Node becomes Ready and stays so by a lease; pods that the scheduler binds to it run, with an
// address, and end when they are deleted; pods of Jobs succeed at once. Nothing is executed: there are
// no containers, logs or networks.
//
// KWOK's own wiring of its controllers is for many processes that compete for nodes by leases, and it
// loses sight of the addresses that pods have when the process starts anew. Here is one process for
// each plane, so that the lease only says that the node lives, and package code keeps the addresses.
// The stages are KWOK's, unchanged.
//
// Only package serve uses it.
package nodes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/kwok/pkg/config/resources"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
	"sigs.k8s.io/kwok/pkg/utils/gotpl"
	"sigs.k8s.io/kwok/pkg/utils/informer"
	"sigs.k8s.io/kwok/pkg/utils/queue"
)

// simulated selects the Nodes, by annotation; every other node is left alone.
const simulated = "kwok.x-k8s.io/node=fake"

const (
	// leaseSeconds is how long a node's lease lasts. KWOK renews it after a quarter of that: half as often
	// as a kubelet, since every renewal is a write, and often enough for the controller manager, which
	// waits 50 s.
	leaseSeconds = 80

	// holder of the leases. It is the same in every run of a plane, whose data directory has one process
	// at a time, so that a plane that starts again, or wakes, need not wait for its own lease to end.
	holder = "atoll-kube"

	// nodeIP and nodeName are of nodes that bring no InternalIP or no Hostname of their own; without them
	// KWOK's stages would take away the one that they bring. The address is one for documentation, which
	// nobody has.
	nodeIP, nodeName = "192.0.2.1", "simulated"

	workers = 4 // that apply stages to nodes, and as many to pods
)

// Run simulates until ctx is done. config configures its client of the API server.
func Run(ctx context.Context, config *rest.Config) error {
	config = rest.AddUserAgent(config, "simulated-nodes")
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.QPS = -1 // the API server's own fairness is the limit
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("the client of simulated nodes: %w", err)
	}
	s := &simulation{client: client, unsynced: queue.NewQueue[string]()}
	if err := s.start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// simulation holds what the parts of a run share.
type simulation struct {
	client   kubernetes.Interface
	nodes    informer.Getter[*corev1.Node] // the simulated ones
	pods     *informer.Informer[*corev1.Pod, *corev1.PodList]
	ips      *addresses
	unsynced queue.Queue[string] // nodes that became ours, whose pods may have been seen and passed over before
}

// start starts everything; it ends with ctx.
func (s *simulation) start(ctx context.Context) error {
	nodeStages, podStages, err := stages()
	if err != nil {
		return err
	}
	nodeEvents := make(chan informer.Event[*corev1.Node], 1)
	podEvents, notedEvents := make(chan informer.Event[*corev1.Pod], 1), make(chan informer.Event[*corev1.Pod], 1)
	// EnableListPager keeps KWOK from beginning each watch with all that there is: it sets resourceVersion 0 otherwise.
	s.pods = informer.NewInformer[*corev1.Pod, *corev1.PodList](s.client.CoreV1().Pods(corev1.NamespaceAll))
	if s.ips, err = newAddresses(ctx, s.client); err != nil {
		return err
	}
	s.nodes, err = informer.NewInformer[*corev1.Node, *corev1.NodeList](s.client.CoreV1().Nodes()).
		WatchWithCache(ctx, informer.Option{AnnotationSelector: simulated, EnableListPager: true}, nodeEvents)
	if err != nil {
		return fmt.Errorf("watching simulated nodes: %w", err)
	}
	if err := s.pods.Watch(ctx, informer.Option{FieldSelector: bound(""), EnableListPager: true}, podEvents); err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}

	leases, err := s.leases(ctx)
	if err != nil {
		return err
	}
	nodes, err := controllers.NewNodeController(controllers.NodeControllerConfig{
		TypedClient:          s.client,
		Lifecycle:            resources.NewStaticGetter(nodeStages),
		NodeIP:               nodeIP,
		NodeName:             nodeName,
		PlayStageParallelism: workers,
		OnNodeManagedFunc: func(node string) {
			leases.TryHold(node)
			s.unsynced.Add(node)
		},
		OnNodeUnmanagedFunc: leases.ReleaseHold,
	})
	if err != nil {
		return fmt.Errorf("preparing simulated nodes: %w", err)
	}
	pods, err := controllers.NewPodController(controllers.PodControllerConfig{
		TypedClient:          s.client,
		NodeCacheGetter:      s.nodes,
		NodeGetFunc:          nodes.Get,
		NodeIP:               nodeIP,
		CIDR:                 defaultPods, // of KWOK's own addresses, which nobody asks for
		Lifecycle:            resources.NewStaticGetter(podStages),
		PlayStageParallelism: workers,
		FuncMap:              gotpl.FuncMap{"PodIPsWith": s.podIPs},
	})
	if err != nil {
		return fmt.Errorf("preparing simulated pods: %w", err)
	}
	if err := leases.Start(ctx); err != nil {
		return fmt.Errorf("starting node leases: %w", err)
	}
	if err := pods.Start(ctx, notedEvents); err != nil {
		return fmt.Errorf("starting simulated pods: %w", err)
	}
	go s.trackPodIPs(ctx, podEvents, notedEvents)
	go s.syncPods(ctx, podEvents)
	if err := nodes.Start(ctx, nodeEvents); err != nil {
		return fmt.Errorf("starting simulated nodes: %w", err)
	}
	return nil
}

// trackPodIPs passes on the events of pods. It marks the addresses of pods as used, and releases those of deleted pods.
func (s *simulation) trackPodIPs(ctx context.Context, from <-chan informer.Event[*corev1.Pod],
	to chan<- informer.Event[*corev1.Pod]) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-from:
			if e.Type == informer.Deleted {
				s.ips.release(e.Object.UID)
			} else {
				s.ips.mark(e.Object)
			}
			select {
			case <-ctx.Done():
				return
			case to <- e:
			}
		}
	}
}

// syncPods looks at the pods of each node that became ours: an event of a pod may have come before its node's.
func (s *simulation) syncPods(ctx context.Context, events chan<- informer.Event[*corev1.Pod]) {
	for {
		node, ok := s.unsynced.GetOrWaitWithDone(ctx.Done())
		if !ok || ctx.Err() != nil {
			return
		}
		for s.pods.Sync(ctx, informer.Option{FieldSelector: bound(node), EnableListPager: true}, events) != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}

// bound selects the pods of a node, or of any.
func bound(node string) string {
	if node == "" {
		return fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	}
	return fields.OneTermEqualSelector("spec.nodeName", node).String()
}
