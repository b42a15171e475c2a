package hosting

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/internal/accounttoken"
)

//go:embed bootstrap.yaml
var bootstrapManifests []byte

//go:embed externalsecrets.crd.yaml
var externalSecretsCRD []byte

//go:embed managedclusters.crd.yaml
var managedClustersCRD []byte

// BootstrapOptions describe what Bootstrap makes in a management cluster.
type BootstrapOptions struct {
	// PullSecret has the registry credentials that hosted clusters get: the
	// content of a .dockerconfigjson. Without it, an existing Secret stays.
	PullSecret  []byte
	ClusterName string // in the kubeconfig; default "management"
}

const (
	account          = "atoll-hosting" // service account, and the prefix of its objects' names
	pullSecretName   = "pull-secret"
	bootstrapManager = "atoll-bootstrap"
	bootstrapTimeout = 30 * time.Second
	pollEvery        = 10 * time.Millisecond
)

// Manifests returns the YAML that Bootstrap applies, without the pull secret.
func Manifests() []byte {
	return bytes.Join([][]byte{hypershift.HostedClusterCRD, hypershift.NodePoolCRD, apihosting.CredentialCRD,
		externalSecretsCRD, managedClustersCRD, bootstrapManifests}, []byte("---\n"))
}

// Bootstrap prepares a management cluster for hosting, with the rights of an
// administrator, and returns hosting's kubeconfig, whose token is valid for a day. Hosting renews the token
// (package accounttoken). It may be run again at any time: it changes what differs and returns a new token. The token
// of earlier versions, which never expired, ends.
func Bootstrap(ctx context.Context, admin *rest.Config, o BootstrapOptions) (kubeconfig []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	dyn, err := dynamic.NewForConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("bootstrapping hosting: %w", err)
	}
	b := bootstrapping{dyn}
	if err := b.applyAll(ctx); err != nil {
		return nil, fmt.Errorf("bootstrapping hosting: %w", err)
	}
	if err := b.pullSecret(ctx, o.PullSecret); err != nil {
		return nil, fmt.Errorf("bootstrapping hosting: the pull secret: %w", err)
	}
	token, err := accounttoken.Request(ctx, dyn, apihosting.SystemNamespace, account)
	if err != nil {
		return nil, fmt.Errorf("bootstrapping hosting: %w", err)
	}
	if kubeconfig, err = b.kubeconfig(ctx, admin, o.ClusterName, token); err != nil {
		return nil, fmt.Errorf("bootstrapping hosting: %w", err)
	}
	if err := awaitRights(ctx, kubeconfig); err != nil {
		return nil, fmt.Errorf("bootstrapping hosting: waiting for its rights: %w", err)
	}
	if err := b.deleteFormerToken(ctx); err != nil { // last: a hosting that runs needs it until there is another
		return nil, fmt.Errorf("bootstrapping hosting: deleting its former token: %w", err)
	}
	return kubeconfig, nil
}

type bootstrapping struct{ dyn dynamic.Interface }

func secrets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
}

func configMaps() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

func admission(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource}
}

func customResources() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
}

// applyAll applies the manifests, and waits until the kinds are served.
func (b bootstrapping) applyAll(ctx context.Context) error {
	var kinds []string
	for document := range bytes.SplitSeq(Manifests(), []byte("---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return err
		}
		if object.GetKind() == "CustomResourceDefinition" {
			if foreign, err := b.foreign(ctx, object); err != nil || foreign {
				if err != nil {
					return err
				}
				continue
			}
			kinds = append(kinds, object.GetName())
		}
		err := b.apply(ctx, object)
		if apierrors.IsNotFound(err) && object.GetKind() == "ValidatingAdmissionPolicy" {
			err = fmt.Errorf("a management cluster needs Kubernetes 1.30: %w", err)
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	for _, name := range kinds {
		if err := b.awaitKind(ctx, name); err != nil {
			return fmt.Errorf("waiting for %s: %w", name, err)
		}
	}
	return nil
}

// foreign reports whether External Secrets Operator or Open Cluster Management has installed its own kind.
func (b bootstrapping) foreign(ctx context.Context, crd *unstructured.Unstructured) (bool, error) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	if group != externalSecrets().Group && group != managedClusters().Group {
		return false, nil
	}
	there, err := b.dyn.Resource(customResources()).Get(ctx, crd.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return there.GetLabels()["app.kubernetes.io/managed-by"] != "atoll", nil
}

func (b bootstrapping) apply(ctx context.Context, object *unstructured.Unstructured) error {
	gvr := customResources()
	switch object.GetKind() {
	case "CustomResourceDefinition":
	case "Namespace":
		gvr = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	case "ServiceAccount":
		gvr = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	case "ValidatingAdmissionPolicy":
		gvr = admission("validatingadmissionpolicies")
	case "ValidatingAdmissionPolicyBinding":
		gvr = admission("validatingadmissionpolicybindings")
	case "Secret":
		gvr = secrets()
	case "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding":
		resource := map[string]string{"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
			"Role": "roles", "RoleBinding": "rolebindings"}
		gvr = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1",
			Resource: resource[object.GetKind()]}
	default:
		return errors.New("not a kind that is bootstrapped")
	}
	body, err := json.Marshal(object.Object)
	if err != nil {
		return err
	}
	var r dynamic.ResourceInterface = b.dyn.Resource(gvr)
	if ns := object.GetNamespace(); ns != "" {
		r = b.dyn.Resource(gvr).Namespace(ns)
	}
	force := true
	_, err = r.Patch(ctx, object.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
		FieldManager: bootstrapManager, Force: &force})
	return err
}

// pullSecret creates the secret when it is missing, and replaces its content when
// one is given.
func (b bootstrapping) pullSecret(ctx context.Context, content []byte) error {
	if content == nil {
		_, err := b.dyn.Resource(secrets()).Namespace(apihosting.SystemNamespace).Get(ctx, pullSecretName,
			metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return err
		}
		content = []byte(`{"auths":{}}`)
	}
	if !json.Valid(content) {
		return errors.New("it is not the JSON of a .dockerconfigjson")
	}
	return b.apply(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": dockerConfigType,
		"metadata": map[string]any{"name": pullSecretName, "namespace": apihosting.SystemNamespace,
			"labels": map[string]any{"app.kubernetes.io/managed-by": "atoll"}},
		"data": map[string]any{dockerConfigKey: encode(content)},
	}})
}

// await calls f until it returns done, or ctx ends.
func await(ctx context.Context, f func() (done bool, err error)) error {
	for {
		done, err := f()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}

func (b bootstrapping) awaitKind(ctx context.Context, name string) error {
	return await(ctx, func() (bool, error) {
		crd, err := b.dyn.Resource(customResources()).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return true, err
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			m, _ := c.(map[string]any)
			return m["type"] == "Established" && m["status"] == "True"
		}), nil
	})
}

// deleteFormerToken deletes the Secret in which earlier versions kept a token that never expired. The token ends with
// it.
func (b bootstrapping) deleteFormerToken(ctx context.Context) error {
	err := b.dyn.Resource(secrets()).Namespace(apihosting.SystemNamespace).Delete(ctx, account+"-token",
		metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// authority returns the certificates that sign the API server's, as the cluster publishes them.
func (b bootstrapping) authority(ctx context.Context) (ca []byte, err error) {
	err = await(ctx, func() (bool, error) {
		object, err := b.dyn.Resource(configMaps()).Namespace(apihosting.SystemNamespace).Get(ctx, "kube-root-ca.crt",
			metav1.GetOptions{})
		if err != nil {
			return !apierrors.IsNotFound(err), err
		}
		text, _, _ := unstructured.NestedString(object.Object, "data", "ca.crt")
		ca = []byte(text)
		return true, nil
	})
	return ca, err
}

// secretValue returns a value of a Secret; nil when the Secret has no such key.
func secretValue(s *unstructured.Unstructured, key string) []byte {
	data, _, _ := unstructured.NestedStringMap(s.Object, "data")
	value, err := base64.StdEncoding.DecodeString(data[key])
	if err != nil || data[key] == "" {
		return nil
	}
	return value
}

// kubeconfig returns a kubeconfig with a token. It has the administrator's own CA, since a proxy may have another than
// the cluster.
func (b bootstrapping) kubeconfig(ctx context.Context, admin *rest.Config, cluster, token string) ([]byte, error) {
	trusted := rest.CopyConfig(admin)
	if err := rest.LoadTLSFiles(trusted); err != nil {
		return nil, err
	}
	ca := trusted.CAData
	if len(ca) == 0 {
		var err error
		if ca, err = b.authority(ctx); err != nil {
			return nil, fmt.Errorf("reading the cluster's CA: %w", err)
		}
	}
	if admin.Host == "" {
		return nil, errors.New("the administrator's configuration names no server")
	}
	if cluster == "" {
		cluster = "management"
	}
	cfg := api.NewConfig()
	cfg.Clusters[cluster] = &api.Cluster{Server: admin.Host, CertificateAuthorityData: ca,
		TLSServerName: admin.ServerName}
	cfg.AuthInfos[account] = &api.AuthInfo{Token: token}
	cfg.Contexts[account] = &api.Context{Cluster: cluster, AuthInfo: account, Namespace: apihosting.SystemNamespace}
	cfg.CurrentContext = account
	return clientcmd.Write(*cfg)
}

// awaitRights returns when the kubeconfig works and its limits stand: the API server learns a token, its
// rights, new kinds and policies with a delay.
func awaitRights(ctx context.Context, kubeconfig []byte) error {
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for _, gvr := range []schema.GroupVersionResource{hypershift.HostedClusters(), hypershift.NodePools(),
		apihosting.Credentials(), externalSecrets()} {
		err := await(ctx, func() (bool, error) {
			_, err := dyn.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
			wait := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
			return !wait, err
		})
		if err != nil {
			return err
		}
	}
	return await(ctx, func() (bool, error) { return isPolicyEnforced(ctx, dyn) })
}

// isPolicyEnforced reports whether the policy refuses hosting what RBAC permits: a Secret in its own namespace, which
// this call would not make either way.
func isPolicyEnforced(ctx context.Context, hosting dynamic.Interface) (bool, error) {
	secret := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": "a-test-of-the-policy"}}}
	_, err := hosting.Resource(secrets()).Namespace(apihosting.SystemNamespace).Create(ctx, secret,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return false, errors.New("the admission policy " + account + " does not stand yet")
	case apierrors.IsForbidden(err):
		if strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return true, nil
		}
		return false, err // RBAC
	}
	return true, err
}
