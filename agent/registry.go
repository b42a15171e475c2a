package agent

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// registry lists the objects that the core observes. Watches receive every object of
// a kind; the agent keeps observations of the listed ones only.
type registry struct {
	mu      sync.RWMutex
	entries map[schema.GroupVersionResource]map[nameKey]interest
}

// interest lists the parts that an observation of one object must have.
type interest struct {
	rules    []*ruleset
	managers []string
}

type nameKey struct{ namespace, name string }

func newRegistry() *registry {
	return &registry{entries: map[schema.GroupVersionResource]map[nameKey]interest{}}
}

func (r *registry) set(key objectKey, rules []*ruleset, managers []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := r.entries[key.GroupVersionResource]
	if names == nil {
		names = map[nameKey]interest{}
		r.entries[key.GroupVersionResource] = names
	}
	names[nameKey{key.Namespace, key.Name}] = interest{rules, managers}
}

func (r *registry) drop(key objectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.entries[key.GroupVersionResource], nameKey{key.Namespace, key.Name})
}

func (r *registry) rules(gvr schema.GroupVersionResource, n nameKey) (rules []*ruleset, wanted bool) {
	w, wanted := r.interest(gvr, n)
	return w.rules, wanted
}

func (r *registry) interest(gvr schema.GroupVersionResource, n nameKey) (w interest, wanted bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	w, wanted = r.entries[gvr][n]
	return w, wanted
}

// needsContent reports whether rules must read the object's content.
func (r *registry) needsContent(key objectKey) bool {
	rules, _ := r.rules(key.GroupVersionResource, nameKey{key.Namespace, key.Name})
	return len(rules) > 0
}

// absent lists the registered objects of a kind that are not in there.
func (r *registry) absent(gvr schema.GroupVersionResource, there map[nameKey]bool) []nameKey {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var gone []nameKey
	for n := range r.entries[gvr] {
		if !there[n] {
			gone = append(gone, n)
		}
	}
	return gone
}

// observe reduces an object to its observation. content is nil when only the
// metadata is known.
func (r *registry) observe(key objectKey, obj metav1.Object, content map[string]any,
	gvk schema.GroupVersionKind) *observed {
	w, _ := r.interest(key.GroupVersionResource, nameKey{key.Namespace, key.Name})
	o := observeMetadata(obj, w.managers)
	if content == nil || len(w.rules) == 0 {
		return o
	}
	o.feedback = make(map[string]feedback, len(w.rules))
	for _, rs := range w.rules {
		o.feedback[rs.key] = rs.read(gvk, content)
	}
	return o
}

func observeMetadata(obj metav1.Object, managers []string) *observed {
	o := &observed{
		exists: true, uid: obj.GetUID(), rv: version(
			obj.GetResourceVersion()), deleting: obj.GetDeletionTimestamp() != nil,
		fingerprint: fingerprint(obj.GetManagedFields(), managers), hasOwnMetadata: appliesMetadata(obj.GetManagedFields()),
	}
	for _, ref := range obj.GetOwnerReferences() {
		if isAppliedWork(ref) {
			o.owners = append(o.owners, ref.UID)
		}
	}
	return o
}

// fingerprint returns a hash of the fields that the API server records for the
// agent's field managers and for the managers in named; "" without such fields.
func fingerprint(fields []metav1.ManagedFieldsEntry, named []string) string {
	var parts []string
	for _, f := range fields {
		ours := isAgentManager(f.Manager) || slices.Contains(named, f.Manager)
		written := f.Operation == metav1.ManagedFieldsOperationApply || f.Manager == updateManager
		if !ours || !written || f.Subresource != "" || f.FieldsV1 == nil {
			continue
		}
		// The same set may come in another order from another decoder.
		var set any
		if err := json.Unmarshal(f.FieldsV1.Raw, &set); err != nil {
			continue
		}
		canonical, err := json.Marshal(set)
		if err != nil {
			continue
		}
		at := ""
		if f.Time != nil {
			at = f.Time.UTC().Format(time.RFC3339)
		}
		parts = append(parts, f.Manager+" "+f.APIVersion+" "+at+" "+string(canonical))
	}
	if len(parts) == 0 {
		return ""
	}
	slices.Sort(parts)
	return hexSHA256([]byte(strings.Join(parts, "\n")))[:32]
}
