package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"
)

var subjectAccessReviews = schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1",
	Resource: "subjectaccessreviews"}

// authorize returns nil when the work's executor has the rights that the manifest
// needs, by the reviews that OCM's agent makes; otherwise the reason. Without an
// executor the agent's own rights decide.
func (k *kube) authorize(ctx context.Context, e effApply) error {
	if e.executor == nil {
		return nil
	}
	subject := e.executor.Subject
	if subject.Type != workv1.ExecutorSubjectTypeServiceAccount {
		return &opError{kind: errRefused, message: fmt.Sprintf("only support %s type for the executor",
			workv1.ExecutorSubjectTypeServiceAccount)}
	}
	sa := subject.ServiceAccount
	if sa == nil {
		return &opError{kind: errRefused, message: "the executor service account is nil"}
	}
	verbs := []string{"create", "update", "patch", "get"}
	if e.owned {
		verbs = append(verbs, "delete") // asked now, since the deletion itself asks no more
	}
	for _, verb := range verbs {
		ok, err := k.isAllowed(ctx, sa, e.key, verb)
		if err != nil {
			return fmt.Errorf("asking for the executor's rights: %w", err)
		}
		if !ok {
			return deniedError(e.key, "")
		}
	}
	return k.checkEscalation(ctx, sa, e)
}

// deniedError returns the error with the message of the contract, word for word.
func deniedError(key objectKey, why string) error {
	return &opError{kind: errDenied, message: fmt.Sprintf(
		"not allowed to apply the resource %s %s, %s %s%s, will try again in %s",
		key.Group, key.Resource, key.Namespace, key.Name, why, deniedRetry)}
}

// allowances caches for allowanceTTL what executors may do with all objects of a kind
// in a namespace, so that a work of many manifests needs one access review.
type allowances struct {
	mu    sync.Mutex
	until map[allowance]time.Time
}

type allowance struct {
	user, verb, namespace string
	gvr                   schema.GroupVersionResource
}

// allowanceTTL is how long a withdrawn right may still count.
const allowanceTTL = 10 * time.Second

func (a *allowances) has(what allowance) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.until[what])
}

func (a *allowances) add(what allowance) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for w, until := range a.until {
		if until.Before(now) {
			delete(a.until, w)
		}
	}
	if a.until == nil {
		a.until = map[allowance]time.Time{}
	}
	a.until[what] = now.Add(allowanceTTL)
}

// isAllowed reports whether a service account has a right: to all objects of the kind
// in the namespace, or else to this one.
func (k *kube) isAllowed(
	ctx context.Context,
	sa *workv1.ManifestWorkSubjectServiceAccount,
	key objectKey,
	verb string,
) (
	bool, error) {
	what := allowance{user: userOf(sa), verb: verb, namespace: key.Namespace, gvr: key.GroupVersionResource}
	if k.allowances.has(what) {
		return true, nil
	}
	for _, name := range []string{"", key.Name} {
		review := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
			"spec": map[string]any{
				"user": what.user,
				"groups": []any{"system:serviceaccounts", "system:authenticated", "system:serviceaccounts:" +
					sa.Namespace},
				"resourceAttributes": map[string]any{
					"namespace": key.Namespace, "name": name, "verb": verb, "group": key.Group, "version": key.Version,
					"resource": key.Resource,
				},
			},
		}}
		answer, err := k.dynamic.Resource(subjectAccessReviews).Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		if ok, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); ok {
			if name == "" {
				k.allowances.add(what)
			}
			return true, nil
		}
	}
	return false, nil
}

func userOf(sa *workv1.ManifestWorkSubjectServiceAccount) string {
	return "system:serviceaccount:" + sa.Namespace + ":" + sa.Name
}

// checkEscalation makes a dry run of the role or binding as the executor: access
// reviews do not show whether an executor grants rights that it lacks.
func (k *kube) checkEscalation(ctx context.Context, sa *workv1.ManifestWorkSubjectServiceAccount, e effApply) error {
	if e.key.Group != "rbac.authorization.k8s.io" {
		return nil
	}
	switch e.key.Resource {
	case "roles", "rolebindings", "clusterroles", "clusterrolebindings":
	default:
		return nil
	}
	obj, err := prepare(e)
	if err != nil {
		return &opError{kind: errRefused, message: err.Error()}
	}
	cutRemovedKeys(obj)
	obj.SetOwnerReferences(nil)
	cfg := rest.CopyConfig(k.config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: userOf(sa)}
	as, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	var r dynamic.ResourceInterface = as.Resource(e.key.GroupVersionResource)
	if e.key.Namespace != "" {
		r = as.Resource(e.key.GroupVersionResource).Namespace(e.key.Namespace)
	}
	// The check comes before the one whether the object exists.
	_, err = r.Create(ctx, obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsForbidden(err):
		return deniedError(e.key, ", error: permission escalation")
	}
	return err
}
