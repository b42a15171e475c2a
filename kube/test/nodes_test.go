package test

import (
	"fmt"
	"net/netip"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podNetwork is that of node i.
func podNetwork(i int) string { return fmt.Sprintf("10.128.%d.0/28", i) }

// simulatedNode makes a node that the plane is to simulate, and waits until it is ready and its lease there.
func (p *plane) simulatedNode(i int) {
	p.t.Helper()
	client := p.client()
	name := fmt.Sprint("simulated-", i)
	room := corev1.ResourceList{"pods": resourceOf("20"), "cpu": resourceOf("4"), "memory": resourceOf("8Gi")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}},
		Spec:       corev1.NodeSpec{PodCIDR: podNetwork(i), PodCIDRs: []string{podNetwork(i)}},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("10.0.0.", i)}}},
	}
	if _, err := client.CoreV1().Nodes().Create(background, node, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.readyNode(name)
	p.eventually("lease of "+name, func() error {
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(background, name, metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].Name != name) {
			return fmt.Errorf("renewed at %v, owned by %v", lease.Spec.RenewTime, lease.OwnerReferences)
		}
		return err
	})
}

func (p *plane) readyNode(name string) {
	p.t.Helper()
	p.eventually(name+" being ready", func() error {
		node, err := p.client().CoreV1().Nodes().Get(background, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0 {
				return nil
			}
		}
		return fmt.Errorf("conditions %v, taints %v", node.Status.Conditions, node.Spec.Taints)
	})
}

// running waits until the namespace has so many pods, all of them running and ready on one of the
// simulated nodes, each with an address of its own from its node's network.
func (p *plane) running(namespace string, count int) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%d running pods in %s", count, namespace), func() error {
		seen := map[string]string{}
		for _, pod := range p.pods(namespace, count) {
			var i int
			if _, err := fmt.Sscanf(pod.Spec.NodeName, "simulated-%d", &i); err != nil || pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%s is %s on %q", pod.Name, pod.Status.Phase, pod.Spec.NodeName)
			}
			for _, c := range pod.Status.ContainerStatuses {
				if !c.Ready {
					return fmt.Errorf("%s has a container that is not ready", pod.Name)
				}
			}
			ip, err := netip.ParseAddr(pod.Status.PodIP)
			if err != nil || !netip.MustParsePrefix(podNetwork(i)).Contains(ip) || pod.Status.HostIP != fmt.Sprint("10.0.0.", i) {
				p.t.Fatalf("%s has the address %q on a host %q", pod.Name, pod.Status.PodIP, pod.Status.HostIP)
			}
			if other := seen[pod.Status.PodIP]; other != "" {
				p.t.Fatalf("%s and %s have the same address", pod.Name, other)
			}
			seen[pod.Status.PodIP] = pod.Name
		}
		return nil
	})
}

// Pods run on simulated nodes, end when they are deleted, and keep their addresses when the plane is
// killed and comes back.
func TestSimulatedNodes(t *testing.T) {
	dir, listen := dataDir(t), address(t)
	p, _ := startReady(t, dir, listen, "--simulated-nodes")
	ns := p.namespace()
	stranger := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}}
	if _, err := p.client().CoreV1().Nodes().Create(background, stranger, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.simulatedNode(1)
	p.simulatedNode(2)

	many := deployment(6)
	many.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "before", Image: "example.org/none"}}
	if _, err := p.client().AppsV1().Deployments(ns).Create(background, many, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.running(ns, 6)

	once := *template.DeepCopy()
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	jobs := p.namespace()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: once}}
	if _, err := p.client().BatchV1().Jobs(jobs).Create(background, job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("end of a job", func() error {
		job, err := p.client().BatchV1().Jobs(jobs).Get(background, "job", metav1.GetOptions{})
		if err == nil && job.Status.Succeeded != 1 {
			return errNotYet
		}
		return err
	})

	p.kill()
	p, _ = startReady(t, dir, listen, "--simulated-nodes")
	p.readyNode("simulated-1")
	p.readyNode("simulated-2")
	if _, err := p.client().AppsV1().Deployments(ns).Patch(background, "test", "application/merge-patch+json", []byte(`{"spec":{"replicas":12}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p.running(ns, 12)
	if err := p.client().AppsV1().Deployments(ns).Delete(background, "test", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.pods(ns, 0)

	left, err := p.client().CoreV1().Nodes().Get(background, "stranger", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range left.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			t.Errorf("a node that nobody is to simulate says %s", c.Type)
		}
	}
}
