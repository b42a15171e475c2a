package adapter

import (
	"context"
	"encoding/json"
	"errors"
)

// Object is a Kubernetes object as encoding/json has it; integers are int64.
type Object = map[string]any

// Event is what a reconcile event says of a resource, the data of a CloudEvent.
// Two events are of the same resource when their ID is equal.
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

// Transport applies objects somewhere, finds and deletes them. Its methods are
// called by several goroutines, for one resource by one at a time.
type Transport interface {
	// Discover returns the objects that a search finds, in the order of
	// namespace and name; none is no error.
	Discover(ctx context.Context, s Search) ([]Object, error)
	// Apply makes an object so.
	Apply(ctx context.Context, a Application) (Applied, error)
	// Delete asks for the deletion of an object that Discover returned. One that
	// is gone already is no error.
	Delete(ctx context.Context, d Deletion) error
}

// Watcher is a Transport that sees what happens to objects that it applied, also
// in an earlier process.
type Watcher interface {
	// Watch calls changed with the event of the resource for which an object was
	// applied (Application.Event) whenever that object, or its status, is not as
	// it was, until ctx ends or it fails. changed only queues, and says whether it
	// did: it does not take what is another replica's. What was there when the
	// first Watch began may have changed before; Watch tells of that, too, slowly.
	// A later Watch goes on where the one before it ended, and tells of what
	// changed in between. One Watch runs at a time.
	Watch(ctx context.Context, changed func(Event) (taken bool)) error
	// Recall has Watch tell, slowly, of all objects that it knows and whose events
	// match, whether or not they changed. It makes no calls.
	Recall(match func(Event) bool)
}

// Doubter is a Transport that knows when what it does not find may be there all
// the same, because who holds it has not been heard yet.
type Doubter interface {
	// Doubt returns what stands for the object of a search by name that Discover
	// has not found, if nobody knows whether it is gone; nil if it is. What is to
	// be deleted is not gone while there is doubt (I9).
	Doubt(ctx context.Context, s Search) (Object, error)
}

// Search says which objects are meant: one by its name, or those with labels.
type Search struct {
	APIVersion, Kind string
	Namespace        string // "*" is any; "" for objects without one
	Name             string
	Labels           map[string]string
	TargetCluster    string // of Maestro: the consumer
}

// Application is one object to be applied.
type Application struct {
	Resource      string // the resource's name in the task config
	Object        Object // has the annotation hyperfleet.io/generation
	Generation    int64
	TargetCluster string          // of Maestro: the consumer
	Recreate      bool            // delete and create instead of a change
	Options       json.RawMessage // of the transport, as the task config has them; may be nil
	Event         Event           // for which resource
	// OnlyExisting: the resource is being deleted, so an object that is gone, or is
	// being deleted itself, is not made again, nor recreated. Then Apply skips.
	OnlyExisting bool
}

// ErrTerminating is the error of Apply for an object that is being deleted, or
// whose namespace is. It can be applied once that is gone.
var ErrTerminating = errors.New("it is still being deleted")

// Operation is what applying came to.
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
	Object    Object // as it is now
}

// Deletion is one object to be deleted.
type Deletion struct {
	Object            Object
	TargetCluster     string
	PropagationPolicy string // Background, Foreground or Orphan; "" is Background
}
