package agent

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

// Events.
type (
	event interface{}

	// evSpec brings a spec from the server. ack acknowledges its message.
	evSpec struct {
		spec *spec
		ack  func()
	}
	// evDurable reports that the spec is on disk.
	evDurable struct {
		id   work.ID
		spec *spec
	}
	// evPossibleDurable reports that these objects are on disk as possible
	// objects of the work.
	evPossibleDurable struct {
		id      work.ID
		objects []identity
	}
	// evCeilingDurable reports that a ceiling of sequence ids is on disk.
	evCeilingDurable struct{ ceiling int64 }
	// evMapped answers effDiscover.
	evMapped struct {
		gvk        schema.GroupVersionKind
		gvr        schema.GroupVersionResource
		namespaced bool
		err        *opError
	}
	// evKindsChanged reports that a CustomResourceDefinition changed.
	evKindsChanged struct{}
	// evAMW brings the state of an AMW from the watch.
	evAMW struct{ amw *amwState }
	// evAMWDeleted reports that an AMW does not exist any more.
	evAMWDeleted struct {
		name amwName
		uid  types.UID
	}
	// evAMWsSynced ends the first listing of AMWs.
	evAMWsSynced struct{}
	// evAMWDone answers effCreateAMW, effTakeOverAMW, effDeleteAMW,
	// effFinalizeAMW and effRecordAMW.
	evAMWDone struct {
		id                work.ID
		name              amwName
		op                amwOp
		formerDeleted     amwName   // the former AMW, when the take-over deleted it
		amw               *amwState // its state now; nil: it does not exist
		deletionRequested bool      // the API server accepted the deletion; the watch shows its end
		err               *opError
	}
	// evObject brings the state of an object from a watch.
	evObject struct {
		key objectKey
		obs *observed
	}
	// evApplied answers effApply.
	evApplied struct {
		onlyRead bool // nothing was written
		id       work.ID
		ordinal  int
		key      objectKey
		hash     string
		obs      *observed // its state now; nil when unknown
		err      *opError
		readErr  string // why the object could not be read
	}
	// evRemoved answers effRemove.
	evRemoved struct {
		id      work.ID
		key     objectKey
		outcome removalOutcome
		err     *opError
	}
	// evProbed answers effProbe: up reports whether the API server answers.
	evProbed struct{ up bool }
	// evConnected reports that the bus is connected and subscribed.
	evConnected struct{}
	// evDisconnected reports that the connection to the bus ended.
	evDisconnected struct{}
	// evStatusResync brings the server's request for statuses. latestSequence is that of
	// the statuses that the server has; 0: unknown.
	evStatusResync struct {
		hashes         []work.StatusHash
		latestSequence int64
	}
	// evDigest brings the server's answer to a digest.
	evDigest struct{ answer work.DigestAnswer }
	// evSpecsRequested brings the server's request for works that it lost.
	evSpecsRequested struct{ ids []work.ID }
	// evSent answers effSend.
	evSent struct {
		id       work.ID
		seq      int64
		hash     string
		accepted bool
	}
	// evTick only advances the time.
	evTick struct{}
)

// Effects.
type (
	effect interface{}

	// effPersist appends rec to the store. Once rec is on disk, the shell calls
	// ack and sends the event then to the core, where these are set.
	effPersist struct {
		rec  record
		ack  func()
		then event
	}
	effDiscover struct{ gvk schema.GroupVersionKind }
	// effCreateAMW creates an AMW, or corrects the spec of an existing one.
	effCreateAMW struct {
		id     work.ID
		name   amwName
		labels map[string]string
	}
	// effTakeOverAMW makes the work's AMW the owner of all objects of a former
	// AMW of the work, records them in it, and deletes the former AMW.
	effTakeOverAMW struct {
		id         work.ID
		name       amwName
		uid        types.UID
		former     amwName
		formerUID  types.UID
		finalizers []string          // those of the former AMW that stay
		objects    []resourceRef     // that the former AMW may own
		orphaned   map[identity]bool // objects that the work owns no more
		applied    []resourceRef     // the objects of both AMWs
	}
	effDeleteAMW struct {
		id   work.ID
		name amwName
		uid  types.UID
	}
	effFinalizeAMW struct {
		id         work.ID
		name       amwName
		uid        types.UID
		finalizers []string // after the change
	}
	effRecordAMW struct {
		id      work.ID
		name    amwName
		uid     types.UID
		applied []resourceRef
		keep    bool // cancels the eviction that another agent began
	}
	// effApply writes a manifest. With onlyRead it reads the object instead;
	// with onlyAuthorize it only checks the rights of the executor.
	effApply struct {
		onlyRead      bool
		onlyAuthorize bool
		id            work.ID
		ordinal       int
		key           objectKey
		gvk           schema.GroupVersionKind
		manifest      json.RawMessage
		owners        []metav1.OwnerReference
		owner         types.UID // of the work's AMW
		owned         bool      // false: the work orphans the object
		readFirst     bool      // the write must keep metadata that only a read shows
		hash          string
		strategy      strategy
		executor      *workv1.ManifestWorkExecutor // nil: the agent's own rights
	}
	// effRemove deletes an object, or only removes the work's owner reference.
	effRemove struct {
		id      work.ID
		key     objectKey
		uid     types.UID // of the instance that the work applied; "" when unknown
		owner   types.UID // of the work's AMW; "" when that does not exist
		amw     amwName   // its name
		release bool      // the object stays
		obs     *observed // from a watch, maybe out of date; nil when unknown
	}
	// effObserve makes watches report an object, with the values that the rules
	// find in it and with a fingerprint that includes the fields of these
	// managers beside those of the agent.
	effObserve struct {
		key      objectKey
		rules    []*ruleset
		managers []string
	}
	effUnobserve struct{ key objectKey }
	// effWatch starts the watch of a kind.
	effWatch struct {
		gvr   schema.GroupVersionResource
		scope watchScope
	}
	// effWatchKinds starts the watch of CustomResourceDefinitions.
	effWatchKinds struct{}
	effProbe      struct{}
	// effResync sends the list of works to the server.
	effResync struct{ versions []work.SpecVersion }
	// effPublish sends an event of the comparison by digests.
	effPublish struct {
		kind string
		data any
	}
	effSend struct{ event *statusEvent }
)

type amwOp int

const (
	amwCreate amwOp = iota
	amwTakeOver
	amwDelete
	amwFinalize
	amwRecord
)

type removalOutcome int

const (
	removalGone     removalOutcome = iota // the object does not exist, or the work does not own it (any more)
	removalDeleting                       // the API server accepted the deletion; a watch shows its end
)

// opError is the error of a call to the API server.
type opError struct {
	kind    errorKind
	message string
	reason  string // of the manifest's Applied condition; "" means AppliedManifestFailed
	// namespace is the missing namespace, for kind errNamespace.
	namespace string
}

type errorKind int

const (
	errRefused   errorKind = iota // the API server refused the call
	errTransport                  // the API server did not answer
	errNoKind                     // the API server does not know the kind
	errNamespace                  // the namespace does not exist
	errConflict                   // the object changed meanwhile
	errDenied                     // the executor lacks a right
)

func (e *opError) Error() string { return e.message }

// mapping is the result of discovery for one kind.
type mapping struct {
	gvr          schema.GroupVersionResource
	namespaced   bool
	known        bool
	inFlight     bool
	outdated     bool // a CustomResourceDefinition changed while discovery is in flight
	askedAt      time.Time
	notBefore    time.Time // a change of a CustomResourceDefinition starts no discovery before
	err          string
	failures     int // discoveries in a row without an answer
	waitingWorks map[work.ID]bool
}

// amwState is an AppliedManifestWork.
type amwState struct {
	name       amwName
	work       work.ID // from its annotation; "" without one
	uid        types.UID
	rv         uint64
	deleting   bool
	finalizers []string
	applied    []resourceRef
	foreign    bool // its spec differs from the spec that this agent writes
	evicting   bool // another agent has begun the time limit after which it deletes the AMW
}
