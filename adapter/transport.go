package adapter

import (
	"context"
	"encoding/json"
	"errors"

	"atoll.dev/api/work"
)

// Object is a decoded Kubernetes object; integers are int64.
type Object = map[string]any

// Event is the data of a reconcile CloudEvent: which resource needs work. Events with the same ID
// are about the same resource.
type Event struct {
	ID              string `json:"id"`
	Kind            string `json:"kind"`
	Href            string `json:"href"`
	Generation      int64  `json:"generation"`
	OwnerReferences *Owner `json:"owner_references,omitempty"`
}

// Owner is a resource's parent.
type Owner struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	Href string `json:"href"`
}

// Transport applies, finds and deletes objects. Several goroutines call its methods, but one at a
// time for each resource.
type Transport interface {
	// Discover returns the objects that match a search, ordered by namespace and name. Without a
	// match it returns none and no error.
	Discover(ctx context.Context, s Search) ([]Object, error)
	// Apply creates or updates an object. It never replaces a higher generation by a lower one. The
	// error is ErrTerminating for an object, or a namespace, that is being deleted.
	Apply(ctx context.Context, a Application) (Applied, error)
	// Delete requests the deletion of an object that Discover returned. An object that does not
	// exist any more is no error. The object may still exist when Delete returns.
	Delete(ctx context.Context, d Deletion) error
}

// Watcher is a Transport that reports changes of the objects that it applied, also in an earlier
// process.
type Watcher interface {
	// Watch calls changed with the event of the resource for which an object was applied
	// (Application.Event) whenever that object or its status changes, until ctx ends or the watch
	// fails. changed only queues the event and returns whether it did; it rejects events of other
	// replicas' resources. Objects that exist when the first Watch begins may have changed before,
	// so Watch reports them too, at a limited pace. A later Watch continues where the one before it
	// ended and reports the changes in between. One Watch runs at a time.
	Watch(ctx context.Context, changed func(Event) (taken bool)) error
	// Recall makes Watch report, at a limited pace, all objects that it knows and whose events
	// match, changed or not. It sends no requests.
	Recall(match func(Event) bool)
}

// AbsenceChecker is a Transport that knows when an object that it does not find may still exist:
// its agent has not reported yet.
type AbsenceChecker interface {
	// Unconfirmed is called for a search by name that found nothing. It returns a stand-in for the
	// object while its absence is not confirmed, and nil when the object does not exist. A deletion
	// has not ended while the absence is unconfirmed (I9).
	Unconfirmed(ctx context.Context, s Search) (Object, error)
}

// Search selects objects: one by its name, or several by labels.
type Search struct {
	APIVersion, Kind string
	Namespace        string // "*" is any; "" for objects without one
	Name             string
	Labels           map[string]string
	TargetCluster    work.Consumer // of Maestro: the consumer
}

// Application is one object to apply.
type Application struct {
	Resource      string // the resource's name in the task config
	Object        Object // has the annotation hyperfleet.io/generation
	Generation    int64
	TargetCluster work.Consumer   // of Maestro: the consumer
	Recreate      bool            // delete and create instead of an update
	Options       json.RawMessage // of the transport, from the task file; may be nil
	Event         Event           // for which resource
	// OnlyExisting is set while the resource is being deleted: Apply skips an object that does not
	// exist or is being deleted, instead of creating it.
	OnlyExisting bool
}

// ErrTerminating is the error of Apply for an object that is being deleted, or whose namespace is
// being deleted. Apply succeeds after the deletion has ended.
var ErrTerminating = errors.New("it is still being deleted")

// Operation is the effect of Apply.
type Operation string

// The operations, as traces and logs name them.
const (
	Created   Operation = "create"
	Updated   Operation = "update"
	Recreated Operation = "recreate"
	Skipped   Operation = "skip"
	Deleted   Operation = "delete" // by the engine, with Transport.Delete
)

// Applied is the result of Apply.
type Applied struct {
	Operation Operation
	Reason    string // why, for people
	Object    Object // its present state
}

// Deletion is one object to delete.
type Deletion struct {
	Object            Object
	TargetCluster     work.Consumer
	PropagationPolicy string // Background, Foreground or Orphan; "" is Background
}
