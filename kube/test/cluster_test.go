package test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var errNotYet = errors.New("not yet")

// TestPlaneServes runs what needs no plane of its own on one, all at the same time: upstream's garbage
// collector takes up to half a minute to notice a new custom resource.
func TestPlaneServes(t *testing.T) {
	p, _ := startReady(t, dataDir(t), address(t), "--name", "shared",
		"--external-host", "api.example.org", "--external-host", "192.0.2.7", "--service-cidr", "10.50.0.0/16")
	for name, test := range map[string]func(*plane, *testing.T){
		"a deployment becomes pods, which wait for nodes":    (*plane).deployment,
		"a stateful set, a daemon set and a job become pods": (*plane).workloads,
		"a quota holds": (*plane).quota,
		"a token may do what its account is bound to, and nothing else": (*plane).token,
		"a namespace's deletion takes everything in it":                 (*plane).namespaceDeletion,
		"owned objects go with their owner, in the foreground":          (*plane).foregroundDeletion,
		"owned objects go with their owner, in the background":          (*plane).backgroundDeletion,
		"custom resources are served, checked, watched and collected":   (*plane).customResource,
		"a list that a watch streams ends without a change":             (*plane).streamedList,
		"an event is recorded for a pod without a node":                 (*plane).event,
		"the serving certificate names its hosts":                       (*plane).hosts,
		"only health is open to anyone":                                 (*plane).anonymous,
		"kubectl works under both names":                                (*plane).kubectl,
		"OpenAPI documents are served":                                  (*plane).openAPI,
		"a kubelet joins by a token and serves logs":                    (*plane).kubelet,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(p.in(t), t)
		})
	}
}

// in returns p for a subtest of t.
func (p *plane) in(t *testing.T) *plane {
	q := *p
	q.t = t
	return &q
}

// namespace makes a namespace whose default service account exists, so that pods can be made in it.
func (p *plane) namespace() string {
	p.t.Helper()
	client := p.client()
	ns, err := client.CoreV1().Namespaces().Create(background, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.eventually("service account and root certificates", func() error {
		if _, err := client.CoreV1().ServiceAccounts(ns.Name).Get(background, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := client.CoreV1().ConfigMaps(ns.Name).Get(background, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

var (
	taint    = corev1.Taint{Key: "example.org/test", Effect: corev1.TaintEffectNoSchedule}
	labels   = map[string]string{"app": "test"}
	selector = &metav1.LabelSelector{MatchLabels: labels}
	template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.org/none"}}},
	}
)

func deployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "test"},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template},
	}
}

// pods waits until the namespace has so many pods.
func (p *plane) pods(namespace string, count int) []corev1.Pod {
	p.t.Helper()
	var list *corev1.PodList
	p.eventually(fmt.Sprintf("%d pods in %s", count, namespace), func() error {
		var err error
		if list, err = p.client().CoreV1().Pods(namespace).List(background, metav1.ListOptions{}); err != nil {
			return err
		}
		if len(list.Items) != count {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		return nil
	})
	return list.Items
}

func (p *plane) deployment(t *testing.T) {
	ns := p.namespace()
	if _, err := p.client().AppsV1().Deployments(ns).Create(background, deployment(3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, pod := range p.pods(ns, 3) {
		if pod.Status.Phase != corev1.PodPending || metav1.GetControllerOf(&pod).Kind != "ReplicaSet" {
			t.Errorf("pod %s is %s, of %v", pod.Name, pod.Status.Phase, metav1.GetControllerOf(&pod))
		}
	}
}

func (p *plane) workloads(t *testing.T) {
	client := p.client()
	ns := p.namespace()
	one := int32(1)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: appsv1.StatefulSetSpec{Replicas: &one, Selector: selector, Template: template}}
	if _, err := client.AppsV1().StatefulSets(ns).Create(background, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	once := *template.DeepCopy()
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: once}}
	if _, err := client.BatchV1().Jobs(ns).Create(background, job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.pods(ns, 2)

	// A node lets the daemon set make a pod and the scheduler place it.
	node, err := client.CoreV1().Nodes().Create(background, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + ns}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.CoreV1().Nodes().Delete(background, node.Name, metav1.DeleteOptions{})
	p.eventually("a node that takes pods", func() error {
		node, err := client.CoreV1().Nodes().Get(background, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = []corev1.Taint{taint} // keeps the other tests' pods away
		if node, err = client.CoreV1().Nodes().Update(background, node, metav1.UpdateOptions{}); err != nil {
			return err
		}
		node.Status.Capacity = corev1.ResourceList{"pods": resourceOf("10"), "cpu": resourceOf("4"), "memory": resourceOf("8Gi")}
		node.Status.Allocatable = node.Status.Capacity
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		_, err = client.CoreV1().Nodes().UpdateStatus(background, node, metav1.UpdateOptions{})
		return err
	})
	tolerant := *template.DeepCopy()
	tolerant.Spec.Tolerations = []corev1.Toleration{{Key: taint.Key, Operator: corev1.TolerationOpExists}}
	daemons := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "daemons"}, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: tolerant}}
	if _, err := client.AppsV1().DaemonSets(ns).Create(background, daemons, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("placed pod", func() error {
		for _, pod := range p.pods(ns, 3) {
			if pod.Spec.NodeName == node.Name && metav1.GetControllerOf(&pod).Kind == "DaemonSet" {
				return nil
			}
		}
		return errNotYet
	})
}

func (p *plane) quota(t *testing.T) {
	client := p.client()
	ns := p.namespace()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"secrets": resourceOf("0")}}}
	if _, err := client.CoreV1().ResourceQuotas(ns).Create(background, quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("refusal", func() error {
		_, err := client.CoreV1().Secrets(ns).Create(background, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{DryRun: []string{"All"}})
		if apierrors.IsForbidden(err) {
			return nil
		}
		return fmt.Errorf("got %v", err)
	})
}

func (p *plane) token(t *testing.T) {
	client := p.client()
	ns := p.namespace()
	token, err := client.CoreV1().ServiceAccounts(ns).CreateToken(background, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(p.config())
	config.BearerToken = token.Status.Token
	limited, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	list := func() error {
		_, err := limited.CoreV1().ConfigMaps(ns).List(background, metav1.ListOptions{})
		return err
	}
	if err := list(); !apierrors.IsForbidden(err) {
		t.Errorf("without a binding: %v, want forbidden", err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "default"}},
	}
	if _, err := client.RbacV1().RoleBindings(ns).Create(background, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("permission", list)
	if _, err := limited.CoreV1().Secrets(ns).List(background, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secrets by the role view: %v, want forbidden", err)
	}
	config.BearerToken = token.Status.Token[:len(token.Status.Token)-8] + "AAAAAAAA"
	forged, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forged.CoreV1().ConfigMaps(ns).List(background, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("forged token: %v, want unauthorized", err)
	}
}

func (p *plane) namespaceDeletion(t *testing.T) {
	client := p.client()
	ns := p.namespace()
	if _, err := client.AppsV1().Deployments(ns).Create(background, deployment(2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.pods(ns, 2)
	if err := client.CoreV1().Namespaces().Delete(background, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("end of the namespace", func() error {
		return gone(client.CoreV1().Namespaces().Get(background, ns, metav1.GetOptions{}))
	})
	list, err := client.CoreV1().Pods(ns).List(background, metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("pods left: %d, %v", len(list.Items), err)
	}
}

func (p *plane) foregroundDeletion(t *testing.T) { p.garbage(t, metav1.DeletePropagationForeground) }

func (p *plane) backgroundDeletion(t *testing.T) { p.garbage(t, metav1.DeletePropagationBackground) }

func (p *plane) garbage(t *testing.T, policy metav1.DeletionPropagation) {
	client := p.client()
	ns := p.namespace()
	if _, err := client.AppsV1().Deployments(ns).Create(background, deployment(1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.pods(ns, 1)
	if err := client.AppsV1().Deployments(ns).Delete(background, "test", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		t.Fatal(err)
	}
	p.pods(ns, 0)
	p.eventually("end of the deployment", func() error {
		return gone(client.AppsV1().Deployments(ns).Get(background, "test", metav1.GetOptions{}))
	})
}

func (p *plane) customResource(t *testing.T) {
	ns := p.namespace()
	client, err := dynamic.NewForConfig(p.config())
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	definition := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "boats.example.org")
	definition.Object["spec"] = map[string]any{
		"group": "example.org", "scope": "Namespaced",
		"names": map[string]any{"plural": "boats", "singular": "boat", "kind": "Boat"},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{
			"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{"oars": map[string]any{"type": "integer", "minimum": int64(1)}}}},
		}}}},
	}
	if _, err := definitions.Create(background, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boats := client.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "boats"}).Namespace(ns)
	boat := object("example.org/v1", "Boat", "test")
	boat.Object["spec"] = map[string]any{"oars": int64(2)}
	p.eventually("served resource", func() error {
		boat, err := boats.Create(background, boat, metav1.CreateOptions{})
		if err == nil && boat.GetUID() == "" {
			return errNotYet
		}
		return err
	})
	if _, err := boats.Patch(background, "test", types.MergePatchType, []byte(`{"spec":{"oars":0}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("against the schema: %v, want invalid", err)
	}
	ctx, cancel := context.WithTimeout(background, hangLimit)
	defer cancel()
	changes, err := boats.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	if event, open := <-changes.ResultChan(); !open || event.Object.(*unstructured.Unstructured).GetName() != "test" {
		t.Errorf("watch says %v", event)
	}
	p.streamList(boats, "test")
	owner, err := boats.Get(background, "test", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.org/v1", Kind: "Boat", Name: "test", UID: owner.GetUID()}}}}
	if _, err := p.client().CoreV1().ConfigMaps(ns).Create(background, owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := boats.Delete(background, "test", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("collection of what the boat owns", func() error {
		return gone(p.client().CoreV1().ConfigMaps(ns).Get(background, "owned", metav1.GetOptions{}))
	})
	if err := definitions.Delete(background, "boats.example.org", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (p *plane) event(t *testing.T) {
	ns := p.namespace()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: template.Spec}
	if _, err := p.client().CoreV1().Pods(ns).Create(background, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("event", func() error {
		list, err := p.client().CoreV1().Events(ns).List(background, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err == nil && len(list.Items) == 0 {
			return errNotYet
		}
		return err
	})
}

func object(version, kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}}}
}

// gone turns a read's outcome into nil when the object is not there.
func gone(_ any, err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		return errNotYet
	}
	return err
}
