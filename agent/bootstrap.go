package agent

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"atoll.dev/internal/accounttoken"
)

// appliedWorksCRD is Open Cluster Management's definition of AppliedManifestWork,
// unchanged.
//
//go:embed appliedmanifestworks.crd.yaml
var appliedWorksCRD []byte

// DefaultAPIGroups are the API groups in which an agent has all rights by default.
// Rights in rbac.authorization.k8s.io do not include bind and escalate, so the agent
// cannot grant rights that it does not have.
var DefaultAPIGroups = []string{
	"", "apps", "batch", "autoscaling", "policy", "networking.k8s.io", "rbac.authorization.k8s.io",
	"apiextensions.k8s.io",
	"scheduling.k8s.io", "storage.k8s.io", "coordination.k8s.io", "discovery.k8s.io", workv1.GroupName,
	"hypershift.openshift.io", "hosting.atoll.dev", "external-secrets.io",
}

// BootstrapOptions configure the agent's objects and rights in its cluster.
type BootstrapOptions struct {
	Namespace  string   // of its service account; default open-cluster-management-agent
	Name       string   // of service account, role, binding and secret; default atoll-agent
	APIGroups  []string // in which the agent has all rights; default DefaultAPIGroups
	MoreGroups []string // in addition to APIGroups
	// Executors are the service accounts that the agent may impersonate, as
	// namespace/name, to apply works with roles or bindings in their name. Without any the
	// agent may impersonate all, which adds no rights to an agent that may write Secrets
	// and pods, or make tokens. Their namespaces must exist.
	Executors   []string
	ClusterName string // in the kubeconfig; default "management"
}

func (o BootstrapOptions) withDefaults() BootstrapOptions {
	if o.Namespace == "" {
		o.Namespace = "open-cluster-management-agent"
	}
	if o.Name == "" {
		o.Name = "atoll-agent"
	}
	if len(o.APIGroups) == 0 {
		o.APIGroups = DefaultAPIGroups
	}
	if o.ClusterName == "" {
		o.ClusterName = "management"
	}
	return o
}

// renewal ends the name of the Role by which the agent renews its token.
const renewal = "-renewal"

// bootstrapManager is the field manager of the objects that Bootstrap applies.
const bootstrapManager = "atoll-bootstrap"

// Bootstrap prepares a management cluster for its agent, with the rights of an
// administrator, and returns the agent's kubeconfig. It is idempotent: a further run
// changes only objects that differ and returns a new token, which is valid for a day; the
// agent renews it (package accounttoken). The token of earlier versions, which never expired, ends.
func Bootstrap(ctx context.Context, admin *rest.Config, o BootstrapOptions) (kubeconfig []byte, err error) {
	o = o.withDefaults()
	dyn, err := dynamic.NewForConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("bootstrapping: %w", err)
	}
	objects, err := bootstrapObjects(o)
	if err != nil {
		return nil, fmt.Errorf("bootstrapping: %w", err)
	}
	for _, obj := range objects {
		if err := applyObject(ctx, dyn, obj); err != nil {
			return nil, fmt.Errorf("bootstrapping: %s %s: %w", obj.object.GetKind(), obj.object.GetName(), err)
		}
	}
	if err := awaitObject(ctx, dyn.Resource(customResources), "appliedmanifestworks."+workv1.GroupName,
		established); err != nil {
		return nil, fmt.Errorf("bootstrapping: waiting for the kind AppliedManifestWork: %w", err)
	}
	token, err := accounttoken.Request(ctx, dyn, o.Namespace, o.Name)
	if err != nil {
		return nil, fmt.Errorf("bootstrapping: %w", err)
	}
	ca, err := clusterCA(ctx, admin, dyn, o.Namespace)
	if err != nil {
		return nil, fmt.Errorf("bootstrapping: reading the cluster's CA: %w", err)
	}
	kubeconfig, err = agentKubeconfig(admin, o, token, ca)
	if err != nil {
		return nil, err
	}
	if err := awaitRights(ctx, kubeconfig); err != nil {
		return nil, fmt.Errorf("bootstrapping: waiting for the agent's rights: %w", err)
	}
	if err := deleteFormerToken(ctx, dyn, o); err != nil { // last: an agent that runs needs it until there is another
		return nil, fmt.Errorf("bootstrapping: deleting the agent's former token: %w", err)
	}
	return kubeconfig, nil
}

// awaitRights waits until the agent's kubeconfig works: the API server accepts a new
// token and its rights after a short delay.
func awaitRights(ctx context.Context, kubeconfig []byte) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for {
		_, err := dyn.Resource(appliedWorks).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil || !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// bootstrapObject is one object and its resource.
type bootstrapObject struct {
	gvr    schema.GroupVersionResource
	object *unstructured.Unstructured
}

func bootstrapObjects(o BootstrapOptions) ([]bootstrapObject, error) {
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(appliedWorksCRD, &crd.Object); err != nil {
		return nil, err
	}
	delete(crd.Object, "status")
	groups := slices.Clone(o.APIGroups)
	for _, g := range o.MoreGroups {
		if !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	rbac := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: resource}
	}
	executors, err := executorRules(o.Executors)
	if err != nil {
		return nil, err
	}
	object := func(gvr schema.GroupVersionResource, kind, name, namespace string, rest map[string]any) bootstrapObject {
		md := map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": "atoll"}}
		if namespace != "" {
			md["namespace"] = namespace
		}
		obj := map[string]any{"apiVersion": gvr.GroupVersion().String(), "kind": kind, "metadata": md}
		for k, v := range rest {
			if k == "annotations" {
				md[k] = v
				continue
			}
			obj[k] = v
		}
		return bootstrapObject{gvr, &unstructured.Unstructured{Object: obj}}
	}
	objects := []bootstrapObject{
		{customResources, crd},
		object(namespaces, "Namespace", o.Namespace, "", nil),
		object(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "ServiceAccount", o.Name,
			o.Namespace, nil),
		object(rbac("clusterroles"), "ClusterRole", o.Name, "",
			map[string]any{"rules": append(agentRules(groups), executors[""]...)}),
		object(rbac("clusterrolebindings"), "ClusterRoleBinding", o.Name, "", map[string]any{
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": o.Name},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": o.Name, "namespace": o.Namespace}},
		}),
		// A process outside the cluster renews its own token, whatever the API groups are.
		object(rbac("roles"), "Role", o.Name+renewal, o.Namespace, map[string]any{"rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{"serviceaccounts/token"}, "resourceNames": []any{o.Name},
			"verbs": []any{"create"}}}}),
		object(rbac("rolebindings"), "RoleBinding", o.Name+renewal, o.Namespace, map[string]any{
			"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
				"name": o.Name + renewal},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": o.Name, "namespace": o.Namespace}},
		}),
	}
	for _, ns := range slices.Sorted(maps.Keys(executors)) {
		if ns == "" {
			continue
		}
		name := o.Name + "-executors"
		objects = append(objects,
			object(rbac("roles"), "Role", name, ns, map[string]any{"rules": executors[ns]}),
			object(rbac("rolebindings"), "RoleBinding", name, ns, map[string]any{
				"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
				"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": o.Name, "namespace": o.Namespace}},
			}))
	}
	return objects, nil
}

// agentRules returns the rules of the agent in the whole cluster: everything in the API groups.
func agentRules(groups []string) []any {
	var list []any
	for _, g := range groups {
		list = append(list, g)
	}
	verbs := []any{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	return []any{
		map[string]any{"apiGroups": list, "resources": []any{"*"}, "verbs": verbs},
		// The API server's default roles grant discovery and health, too, but a new API
		// server creates these roles a second or two after its start.
		map[string]any{"nonResourceURLs": []any{"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*",
			"/version", "/healthz", "/livez", "/readyz"}, "verbs": []any{"get"}},
		// The agent checks the rights of a work's executor; the answer is only yes or no.
		map[string]any{"apiGroups": []any{"authorization.k8s.io"}, "resources": []any{"subjectaccessreviews"},
			"verbs": []any{"create"}},
	}
}

// executorRules returns the rules that let the agent impersonate executors, by namespace;
// "" stands for all namespaces.
func executorRules(executors []string) (map[string][]any, error) {
	rule := func(names ...any) map[string]any {
		r := map[string]any{"apiGroups": []any{""}, "resources": []any{"serviceaccounts"},
			"verbs": []any{"impersonate"}}
		if len(names) > 0 {
			r["resourceNames"] = names
		}
		return r
	}
	if len(executors) == 0 {
		return map[string][]any{"": {rule()}}, nil
	}
	rules := map[string][]any{}
	for _, x := range executors {
		ns, name, ok := strings.Cut(x, "/")
		if !ok || ns == "" || name == "" {
			return nil, fmt.Errorf("the executor %q is not namespace/name", x)
		}
		rules[ns] = append(rules[ns], rule(name))
	}
	return rules, nil
}

func applyObject(ctx context.Context, dyn dynamic.Interface, b bootstrapObject) error {
	body, err := json.Marshal(b.object.Object)
	if err != nil {
		return err
	}
	var r dynamic.ResourceInterface = dyn.Resource(b.gvr)
	if ns := b.object.GetNamespace(); ns != "" {
		r = dyn.Resource(b.gvr).Namespace(ns)
	}
	force := true
	_, err = r.Patch(ctx, b.object.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
		FieldManager: bootstrapManager, Force: &force})
	return err
}

// awaitTimeout bounds the waits of Bootstrap.
const awaitTimeout = 30 * time.Second

// awaitObject watches an object until it meets the condition.
func awaitObject(ctx context.Context, r dynamic.ResourceInterface, name string,
	ok func(*unstructured.Unstructured) bool) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		obj, err := r.Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		rv := ""
		if err == nil {
			if ok(obj) {
				return nil
			}
			rv = obj.GetResourceVersion()
		}
		w, err := r.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name",
			name).String(), ResourceVersion: rv})
		if err != nil {
			return err
		}
		for e := range w.ResultChan() {
			if obj, is := e.Object.(*unstructured.Unstructured); is && e.Type != watch.Deleted && ok(obj) {
				w.Stop()
				return nil
			}
			if e.Type == watch.Error {
				break
			}
		}
		w.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == "Established" && m["status"] == "True"
	})
}

// deleteFormerToken deletes the Secret in which earlier versions kept a token that never expired. The token ends with
// it.
func deleteFormerToken(ctx context.Context, dyn dynamic.Interface, o BootstrapOptions) error {
	secrets := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(o.Namespace)
	err := secrets.Delete(ctx, o.Name+"-token", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// clusterCA returns the certificates that sign the API server's: those that the administrator trusts, because a proxy
// may have others than the cluster, or else those that the cluster publishes in a namespace.
func clusterCA(ctx context.Context, admin *rest.Config, dyn dynamic.Interface, namespace string) (ca []byte,
	err error) {
	trusted := rest.CopyConfig(admin)
	if err := rest.LoadTLSFiles(trusted); err != nil {
		return nil, err
	}
	if len(trusted.CAData) > 0 {
		return trusted.CAData, nil
	}
	configMaps := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(namespace)
	err = awaitObject(ctx, configMaps, "kube-root-ca.crt", func(o *unstructured.Unstructured) bool {
		text, _, _ := unstructured.NestedString(o.Object, "data", "ca.crt")
		ca = []byte(text)
		return text != ""
	})
	return ca, err
}

func agentKubeconfig(admin *rest.Config, o BootstrapOptions, token string, ca []byte) ([]byte, error) {
	if admin.Host == "" {
		return nil, errors.New("bootstrapping: the administrator's configuration names no server")
	}
	cfg := api.NewConfig()
	cfg.Clusters[o.ClusterName] = &api.Cluster{Server: admin.Host, CertificateAuthorityData: ca,
		TLSServerName: admin.ServerName}
	cfg.AuthInfos[o.Name] = &api.AuthInfo{Token: token}
	cfg.Contexts[o.Name] = &api.Context{Cluster: o.ClusterName, AuthInfo: o.Name, Namespace: o.Namespace}
	cfg.CurrentContext = o.Name
	return clientcmd.Write(*cfg)
}
