package interop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

const (
	agentChart     = "../../deploy/charts/agent"
	agentNamespace = "open-cluster-management-agent"
)

// Helm's own engine renders the chart from what `atoll mc join-token` prints; a
// real API server takes every object of it, to the last field; and the rights
// are those of `atoll mc bootstrap`, no more.
func TestTheAgentsChartEqualsBootstrap(t *testing.T) {
	atoll, kube := requireProgram(t, "ATOLL_BIN", "atoll"), requireProgram(t, "ATOLL_KUBE_BIN", "atoll-kube")
	joined := output(t, atoll, "mc", "join-token", "edge-7", "--dir", t.TempDir(), "--mqtt", "mqtt.example:8883",
		"--pki", "https://pki.example:8443", "-o", "yaml")
	var values map[string]any
	if err := yaml.Unmarshal(joined, &values); err != nil {
		t.Fatal(err)
	}
	objects, err := render(values)
	if err != nil {
		t.Fatal(err)
	}

	// The same rights.
	var wanted int
	for _, want := range documents(t, output(t, atoll, "mc", "bootstrap", "--show")) {
		switch want.GetKind() {
		case "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding":
			wanted++
			i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
				return o.GetKind() == want.GetKind() && o.GetName() == want.GetName() &&
					o.GetNamespace() == want.GetNamespace()
			})
			if i < 0 {
				t.Errorf("the chart has no %s %s", want.GetKind(), want.GetName())
				continue
			}
			have := objects[i].DeepCopy()
			for _, o := range []*unstructured.Unstructured{have, want} {
				o.SetLabels(nil)
				o.SetAnnotations(nil) // those of the chart are for Helm and Argo CD
				delete(o.Object, "status")
			}
			if !reflect.DeepEqual(have.Object, want.Object) {
				t.Errorf("%s %s\nof the chart: %v\nof bootstrap: %v", want.GetKind(), want.GetName(), have.Object,
					want.Object)
			}
		}
	}
	if wanted < 4 {
		t.Errorf("bootstrap shows %d objects that matter", wanted)
	}

	// The program accepts the pod's command, and the pod's spec is as required.
	deployment := find(t, objects, "Deployment")
	containers, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	container := containers[0].(map[string]any)
	args, _, _ := unstructured.NestedStringSlice(container, "args")
	output(t, atoll, append(append([]string{"agent"}, args...), "--help")...)
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		command, _, _ := unstructured.NestedStringSlice(container, probe, "exec", "command")
		output(t, atoll, append(command[1:], "--help")...)
	}
	for path, want := range map[string]string{
		"spec.replicas": "1", "spec.strategy.type": "Recreate",
		"spec.template.spec.securityContext.runAsNonRoot": "true",
	} {
		if have, _, _ := unstructured.NestedFieldNoCopy(deployment.Object, strings.Split(path, ".")...); fmt.Sprint(
			have) != want {
			t.Errorf("%s is %v", path, have)
		}
	}
	if readOnly, _, _ := unstructured.NestedBool(container, "securityContext", "readOnlyRootFilesystem"); !readOnly {
		t.Error("the root file system can be written")
	}
	if text := fmt.Sprint(deployment.Object); strings.Contains(text, values["token"].(string)) {
		t.Error("the token is in the Deployment")
	}

	// A real API server accepts the chart. Applying it twice changes nothing.
	cluster := startCluster(t, kube)
	narrow := map[string]any{"apiGroups": []any{"", "apps"}, "ca": "", "tokenSecret": "mine",
		"persistence": map[string]any{"existingClaim": "mine", "size": "2Gi"}}
	for k, v := range values {
		if _, ok := narrow[k]; !ok {
			narrow[k] = v
		}
	}
	bounded, err := render(narrow)
	if err != nil {
		t.Fatal(err)
	}
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": agentNamespace}}}
	cluster.apply(t, namespace)
	for _, o := range slices.Concat(objects, objects) {
		cluster.apply(t, o)
	}
	cluster.awaitRight(t, right{"create", "hypershift.openshift.io", "hostedclusters", true}) // by the default list
	for _, o := range bounded {
		cluster.apply(t, o)
	}
	for _, c := range []right{
		// The first right is lost: once it is, the server knows the narrow ClusterRole.
		{"create", "hypershift.openshift.io", "hostedclusters", false},
		{"create", "", "configmaps", true}, {"delete", "apps", "deployments", true}, {"create", "batch", "jobs", false},
		{"escalate", "rbac.authorization.k8s.io", "clusterroles", false},
		{"update", "rbac.authorization.k8s.io", "clusterroles", false}, {"create", "admissionregistration.k8s.io",
			"validatingwebhookconfigurations", false},
	} {
		cluster.awaitRight(t, c)
	}
	// Here and not in a test of its own, since an API server takes seconds to start.
	t.Run("AllChartsAndExamplesAreAccepted", func(t *testing.T) { acceptsChartsAndExamples(t, cluster) })
}

// The error names the missing value.
func TestTheAgentsChartNamesMissingValues(t *testing.T) {
	all := map[string]any{"name": "edge-7", "mqtt": "m:1", "pki": "https://p:2", "ca_hash": "sha256:x"}
	if _, err := render(all); err != nil {
		t.Fatal(err)
	}
	for missing := range all {
		values := map[string]any{}
		for k, v := range all {
			if k != missing {
				values[k] = v
			}
		}
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), missing+": ") &&
			!strings.Contains(err.Error(), missing+" or ") && !strings.Contains(err.Error(), "or "+missing) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

// render renders the chart of the agent.
func render(values map[string]any) ([]*unstructured.Unstructured, error) {
	return renderChart(agentChart, "atoll-agent", agentNamespace, values)
}

// renderChart is `helm template`: the chart's objects, those of crds/ first. Values that break the schema are an error.
func renderChart(path, release, namespace string, values map[string]any) ([]*unstructured.Unstructured, error) {
	chart, err := loader.Load(path)
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependenciesWithMerge(chart, values); err != nil {
		return nil, err
	}
	data, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: release, Namespace: namespace,
		Revision: 1, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, data)
	if err != nil {
		return nil, err
	}
	var texts [][]byte
	for _, crd := range chart.CRDObjects() {
		texts = append(texts, crd.File.Data)
	}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			texts = append(texts, []byte(text))
		}
	}
	var objects []*unstructured.Unstructured
	for _, text := range texts {
		some, err := decode(text)
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

func decode(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			delete(o.Object, "status")
			objects = append(objects, o)
		}
	}
}

func documents(t *testing.T, text []byte) []*unstructured.Unstructured {
	t.Helper()
	objects, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func find(t *testing.T, objects []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == kind {
			return o
		}
	}
	t.Fatalf("no %s", kind)
	return nil
}

// requireProgram returns the absolute path of programPath. It ends the test when the file does not exist.
func requireProgram(t *testing.T, variable, name string) string {
	t.Helper()
	path, err := filepath.Abs(programPath(variable, name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("build first, with `make build`: %v", err)
	}
	return path
}

func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s %v: %s", filepath.Base(name), args, failed.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// chartCluster is a real API server.
type chartCluster struct {
	dynamic *dynamic.DynamicClient
	typed   *kubernetes.Clientset
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

func startCluster(t *testing.T, kube string) *chartCluster {
	t.Helper()
	dir := t.TempDir()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(kube, "serve", "--data-dir", dir, "--listen", address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	for end := time.Now().Add(waitLimit); ; <-time.After(100 * time.Millisecond) {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err == nil {
			config.QPS, config.Burst = 500, 500
			c := &chartCluster{}
			if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
				t.Fatal(err)
			}
			if c.typed, err = kubernetes.NewForConfig(config); err != nil {
				t.Fatal(err)
			}
			if _, err = c.typed.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err == nil {
				c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.typed.Discovery()))
				return c
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the API server does not start: %v", err)
		}
	}
}

// apply is server-side apply, which refuses a field that does not exist.
func (c *chartCluster) apply(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	c.patch(t, o, metav1.PatchOptions{})
}

// dryRun is apply without an effect: the API server validates the object and stores nothing.
func (c *chartCluster) dryRun(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	c.patch(t, o, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
}

func (c *chartCluster) patch(t *testing.T, o *unstructured.Unstructured, options metav1.PatchOptions) {
	t.Helper()
	mapping, err := c.mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	var r dynamic.ResourceInterface = c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		r = c.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	force := true
	options.FieldManager, options.Force, options.FieldValidation = "helm", &force, metav1.FieldValidationStrict
	if _, err := r.Patch(t.Context(), o.GetName(), types.ApplyPatchType, body, options); err != nil {
		t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
}

// right is whether the agent's service account may do something.
type right struct {
	verb, group, resource string
	allowed               bool
}

// awaitRight waits until the API server's answer about a right is that of r. The server knows new rights a moment after
// they are written.
func (c *chartCluster) awaitRight(t *testing.T, r right) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s %s.%s is allowed: %v", r.verb, r.resource, r.group, r.allowed), func() error {
		review, err := c.typed.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + agentNamespace + ":atoll-agent",
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: r.verb, Group: r.group, Resource: r.resource,
					Namespace: "default"},
			}}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed != r.allowed {
			err = fmt.Errorf("the server says %v", review.Status.Allowed)
		}
		return err
	})
}
