package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"atoll.dev/api/work"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// kube makes the core's calls to the Kubernetes API. A method carries out one
// effect and returns the event that answers it. All methods are idempotent and safe
// for concurrent use.
type kube struct {
	dynamic   dynamic.Interface
	metadata  metadata.Interface
	discovery *discovery.DiscoveryClient
	registry  *registry

	config     *rest.Config
	allowances allowances

	consumer         work.Consumer
	hubHash, agentID string
	otherHubs        atomic.Int64 // AppliedManifestWorks of other hubs that are in the cluster

	mapMu      sync.Mutex
	mapper     meta.RESTMapper // result of the last discovery; nil before the first
	discovered time.Time       // when the last discovery was made
}

func newKube(cfg *rest.Config, wanted *registry, consumer work.Consumer, hubHash, agentID string) (*kube, error) {
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	md, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	disc, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &kube{
		config:    cfg,
		dynamic:   dyn,
		metadata:  md,
		discovery: disc,
		registry:  wanted,
		consumer:  consumer,
		hubHash:   hubHash,
		agentID:   agentID,
	}, nil
}

// callTimeout bounds every call.
const callTimeout = 30 * time.Second

// call makes the call of an effect and returns the event that answers it.
func (k *kube) call(ctx context.Context, e effect) event {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch e := e.(type) {
	case effDiscover:
		return k.discover(e.gvk)
	case effCreateAMW:
		return k.createAMW(ctx, e)
	case effTakeOverAMW:
		return k.takeOverAMW(ctx, e)
	case effDeleteAMW:
		return k.deleteAMW(ctx, e)
	case effFinalizeAMW:
		return k.finalizeAMW(ctx, e)
	case effRecordAMW:
		return k.recordAMW(ctx, e)
	case effApply:
		return k.apply(ctx, e)
	case effRemove:
		return k.remove(ctx, e)
	}
	panic(fmt.Sprintf("agent: no call for %T", e))
}

// checkReady returns nil when the API server is ready.
func (k *kube) checkReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := k.discovery.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// refreshAfter is the least time between two runs of discovery for unknown kinds.
const refreshAfter = 100 * time.Millisecond

func (k *kube) discover(gvk schema.GroupVersionKind) event {
	m, err := k.mapping(gvk)
	switch {
	case meta.IsNoMatchError(err):
		return evMapped{gvk: gvk, err: &opError{kind: errNoKind, message: fmt.Sprintf(
			"the server doesn't have a resource type %q", gvk.Kind)}}
	case err != nil:
		return evMapped{gvk: gvk, err: &opError{kind: errTransport, message: err.Error()}}
	}
	return evMapped{gvk: gvk, gvr: m.Resource, namespaced: m.Scope.Name() == meta.RESTScopeNameNamespace}
}

// mapping returns the mapping of a kind. It runs discovery when the last result does
// not have the kind.
func (k *kube) mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	k.mapMu.Lock()
	defer k.mapMu.Unlock()
	if k.mapper != nil {
		m, err := k.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if !meta.IsNoMatchError(err) || time.Since(k.discovered) < refreshAfter {
			return m, err
		}
	}
	groups, err := restmapper.GetAPIGroupResources(k.discovery)
	if err != nil {
		return nil, err
	}
	k.mapper, k.discovered = restmapper.NewDiscoveryRESTMapper(groups), time.Now()
	return k.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
}

// kindsChanged discards the last result of discovery.
func (k *kube) kindsChanged() {
	k.mapMu.Lock()
	defer k.mapMu.Unlock()
	k.mapper = nil
}

// classifyError returns the kind of an error of the API server; nil for nil.
//
// A 404 has several causes. The API server writes a Status that names the
// missing object: the namespace, or anything else that the write refers to,
// such as the role of a new binding. Where no API serves the path, because the
// kind is unknown, it answers with plain text, which client-go marks as an
// unexpected server response; only then discovery has to look again.
func classifyError(err error) *opError {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*opError](err); ok {
		return own
	}
	e := &opError{kind: errRefused, message: err.Error()}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		e.kind = errTransport
		return e
	}
	s := status.Status()
	switch {
	case s.Code == 503 || s.Code == 504 || s.Code == 429:
		e.kind = errTransport
	case s.Reason == metav1.StatusReasonNotFound && s.Details != nil && s.Details.Kind == "namespaces" &&
		s.Details.Name != "":
		e.kind, e.namespace = errNamespace, s.Details.Name
	case s.Reason == metav1.StatusReasonNotFound && apierrors.HasStatusCause(
		err, metav1.CauseTypeUnexpectedServerResponse):
		e.kind = errNoKind
	case s.Reason == metav1.StatusReasonConflict && !isFieldConflict(s):
		e.kind = errConflict
	}
	return e
}

// isFieldConflict reports whether the conflict is one of field managers in a
// server-side apply, and not one of resource versions.
func isFieldConflict(s metav1.Status) bool {
	return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeFieldManagerConflict
	})
}

func ownersPatch(obj metav1.Object, refs []metav1.OwnerReference) map[string]any {
	return map[string]any{"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion(), "ownerReferences": refs}
}

// metadataPatch returns the merge patch that changes these fields of metadata.
func metadataPatch(fields map[string]any) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": fields})
	if err != nil {
		panic(err) // strings only
	}
	return patch
}

// answeredObject is an object from an answer of the API server, and the part of it
// that the agent keeps.
type answeredObject struct {
	meta metav1.Object
	obs  *observed
}

// patch changes an object and returns its new state. It requests the whole object
// only when rules must read it.
func (k *kube) patch(ctx context.Context, e effApply, kind types.PatchType, body []byte, o metav1.PatchOptions) (
	answeredObject, error) {
	if k.registry.needsContent(e.key) {
		obj, err := k.resource(e.key).Patch(ctx, e.key.Name, kind, body, o)
		if err != nil {
			return answeredObject{}, err
		}
		return k.answered(e, obj), nil
	}
	obj, err := k.metaResource(e.key).Patch(ctx, e.key.Name, kind, body, o)
	if err != nil {
		return answeredObject{}, err
	}
	return answeredObject{obj, k.registry.observe(e.key, obj, nil, e.gvk)}, nil
}

// answered returns an object that the API server answered with in full.
func (k *kube) answered(e effApply, obj *unstructured.Unstructured) answeredObject {
	return answeredObject{obj, k.registry.observe(e.key, obj, obj.Object, e.gvk)}
}

// read returns the state of an object, also when the object does not exist.
func (k *kube) read(ctx context.Context, key objectKey, gvk schema.GroupVersionKind) (*observed, error) {
	var err error
	if k.registry.needsContent(key) {
		var obj *unstructured.Unstructured
		if obj, err = k.resource(key).Get(ctx, key.Name, metav1.GetOptions{}); err == nil {
			return k.registry.observe(key, obj, obj.Object, gvk), nil
		}
	} else {
		var obj *metav1.PartialObjectMetadata
		if obj, err = k.metaResource(key).Get(ctx, key.Name, metav1.GetOptions{}); err == nil {
			return k.registry.observe(key, obj, nil, gvk), nil
		}
	}
	if apierrors.IsNotFound(err) {
		return &observed{}, nil
	}
	return nil, err
}

func (k *kube) resource(key objectKey) dynamic.ResourceInterface {
	r := k.dynamic.Resource(key.GroupVersionResource)
	if key.Namespace == "" {
		return r
	}
	return r.Namespace(key.Namespace)
}

func (k *kube) metaResource(key objectKey) metadata.ResourceInterface {
	r := k.metadata.Resource(key.GroupVersionResource)
	if key.Namespace == "" {
		return r
	}
	return r.Namespace(key.Namespace)
}
