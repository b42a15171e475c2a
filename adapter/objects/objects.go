// Package objects is the adapter's transport to a Kubernetes API. It applies the objects of a task
// by server-side apply, under a field manager of the adapter's own, and watches them, so that the
// adapter repairs the changes of others at once.
//
// It learns the kinds from the API server's discovery. Package adapter uses it through its
// interfaces Transport and Watcher; only the command line imports it.
package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/adapter"
	"atoll.dev/api/work"
	"atoll.dev/internal/secreterror"
)

// Options configure Objects.
type Options struct {
	Config  *rest.Config // with QPS and Burst
	Adapter string       // the adapter's name: in its field manager, and the label of its objects
	Log     *slog.Logger // default: none

	// Kinds are the task's kinds. They are watched from the beginning, so that a new process
	// watches the objects of an earlier one; other kinds are watched when they are used first.
	Kinds []schema.GroupVersionKind

	RecreateWait time.Duration // how long Apply waits for an object to be gone; default 30 s
	Pace         float64       // objects per second that Watch reports because they existed when it began; default 50
}

// Objects is the transport. Use New.
type Objects struct {
	dynamic dynamic.Interface
	kinds   *kinds
	manager string
	label   string
	log     *slog.Logger
	wait    time.Duration
	paced   *adapter.PacedQueue

	mu      sync.Mutex
	applied map[place]applied
	watched map[schema.GroupVersionKind]bool
	newKind chan struct{} // has a token when watched has a new kind
	follows map[schema.GroupVersionKind]*follower
}

// place identifies an object.
type place struct {
	schema.GroupVersionResource
	namespace, name string
}

// applied is the result of the last Apply of an object.
type applied struct {
	hash    string // of the manifest
	version string // the resourceVersion after it; the object has the wanted content while it has this version
	writing int    // writes in progress
	held    *held  // the change that a watch reported during a write
}

// held is a change that a watch reported during a write, and that may be this write.
type held struct {
	version string
	report  func()
}

var (
	_ adapter.Transport = (*Objects)(nil)
	_ adapter.Watcher   = (*Objects)(nil)
)

const (
	annotationGeneration = "hyperfleet.io/generation"
	annotationEvent      = "atoll.dev/event"

	// LabelAdapter is the label of applied objects; its value is the adapter's name.
	LabelAdapter = "atoll.dev/adapter"
	// managerPrefix begins the names of field managers. Each adapter has its own field manager, so
	// that two adapters that share an object do not remove each other's fields.
	managerPrefix = "hyperfleet-adapter-"
)

// labelValue matches the values that Kubernetes allows for labels.
var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// New returns a transport. It does not call the API yet.
func New(o Options) (*Objects, error) {
	if !labelValue.MatchString(o.Adapter) {
		return nil,
			fmt.Errorf("the adapter's name %q cannot be a label: use at most 63 letters, digits, '-', '_' and '.'",
				o.Adapter)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	config := rest.CopyConfig(o.Config)
	config.WarningHandler = rest.NoWarnings{} // the log would have them, and a webhook's may quote a Secret
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("the Kubernetes API: %w", err)
	}
	disc, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("the Kubernetes API: %w", err)
	}
	t := &Objects{
		dynamic: dyn, kinds: newKinds(disc), manager: managerPrefix + o.Adapter, label: o.Adapter, log: o.Log,
		wait: cmp.Or(o.RecreateWait, 30*time.Second), paced: adapter.NewPacedQueue(cmp.Or(o.Pace, 50)),
		follows: map[schema.GroupVersionKind]*follower{}, applied: map[place]applied{},
		watched: map[schema.GroupVersionKind]bool{}, newKind: make(chan struct{}, 1),
	}
	for _, k := range o.Kinds {
		t.watchKind(k)
	}
	return t, nil
}

// watchKind makes Watch watch objects of the kind.
func (t *Objects) watchKind(k schema.GroupVersionKind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.watched[k] {
		t.watched[k] = true
		select {
		case t.newKind <- struct{}{}:
		default:
		}
	}
}

// Ready returns nil when the API server answers.
func (t *Objects) Ready(ctx context.Context) error {
	return t.kinds.ready(ctx)
}

// Discover finds objects by name or labels, in one namespace, or in all with "*" or without a
// namespace. A kind that the server does not have has no objects.
func (t *Objects) Discover(ctx context.Context, s adapter.Search) ([]adapter.Object, error) {
	gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
	what := fmt.Sprintf("searching %s %s", s.Kind, s.Name)
	k, err := t.kinds.find(ctx, gvk)
	if errors.Is(err, errNoSuchKind) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	namespace := s.Namespace
	if namespace == "*" || !k.namespaced {
		namespace = ""
	}
	if s.Name != "" && (namespace != "" || !k.namespaced) {
		o, err := t.clientFor(k.resource, namespace).Get(ctx, s.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if !labels.SelectorFromSet(s.Labels).Matches(labels.Set(o.GetLabels())) {
			return nil, nil
		}
		return []adapter.Object{o.Object}, nil
	}
	o := metav1.ListOptions{LabelSelector: labels.SelectorFromSet(s.Labels).String(), Limit: 500}
	if s.Name != "" {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.Name).String()
	}
	var found []adapter.Object
	for {
		list, err := t.clientFor(k.resource, namespace).List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		for i := range list.Items {
			item := list.Items[i].Object
			item["apiVersion"], item["kind"] = s.APIVersion, s.Kind // lists of some servers leave them out
			found = append(found, item)
		}
		if o.Continue = list.GetContinue(); o.Continue == "" {
			break
		}
	}
	slices.SortFunc(found, func(a, b adapter.Object) int {
		x, y := unstructured.Unstructured{Object: a}, unstructured.Unstructured{Object: b}
		return cmp.Or(strings.Compare(x.GetNamespace(), y.GetNamespace()), strings.Compare(x.GetName(), y.GetName()))
	})
	return found, nil
}

// clientFor returns the client for objects of a namespace, or for objects without one.
func (t *Objects) clientFor(r schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return t.dynamic.Resource(r)
	}
	return t.dynamic.Resource(r).Namespace(namespace)
}

// Delete deletes this instance of the object. It is an error when another instance has the name,
// which the caller has not seen; that one stays.
func (t *Objects) Delete(ctx context.Context, d adapter.Deletion) error {
	o := unstructured.Unstructured{Object: d.Object}
	what := fmt.Sprintf("deleting %s %s", o.GetKind(), o.GetName())
	k, err := t.kinds.find(ctx, o.GroupVersionKind())
	if errors.Is(err, errNoSuchKind) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	namespace := o.GetNamespace()
	if !k.namespaced {
		namespace = ""
	}
	if err := t.remove(ctx, k.resource, namespace, o.GetName(), o.GetUID(), d.PropagationPolicy); err != nil {
		return fmt.Errorf("%s: %w", what, hideSecrets(d.Object, err))
	}
	return nil
}

// hideSecrets returns the error of a call about an object, whose text quotes no value of a Secret that the object is or
// has inside: the error comes into the report and the log.
func hideSecrets(object adapter.Object, err error) error {
	if !work.HasSecret(object) {
		return err
	}
	return secreterror.Hide(err)
}

// remove deletes an object, with a uid only this instance. An object that does not exist is no
// error.
func (t *Objects) remove(ctx context.Context, r schema.GroupVersionResource, namespace, name string, uid types.UID,
	policy string) error {
	propagation := metav1.DeletionPropagation(cmp.Or(policy, string(metav1.DeletePropagationBackground)))
	o := metav1.DeleteOptions{PropagationPolicy: &propagation}
	if uid != "" {
		o.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	err := t.clientFor(r, namespace).Delete(ctx, name, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
