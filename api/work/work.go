// Package work holds the wire shapes by which ManifestWorks travel between
// sources, Maestro and agents: event types, extension names, and the JSON
// data of spec, status and resync events, as Open Cluster Management defines
// them. The ManifestWork types themselves are open-cluster-management.io/api.
//
// It contains no logic but the formula of a work's id and the rule about Secrets, and
// imports nothing of ours.
package work

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// DataType names manifest bundles; event types are DataType + ".spec." or
// ".status." + an action.
const DataType = "io.open-cluster-management.works.v1alpha1.manifestbundles"

// Event types.
const (
	SpecCreate         = DataType + ".spec.create_request"
	SpecUpdate         = DataType + ".spec.update_request"
	SpecDelete         = DataType + ".spec.delete_request"
	SpecResync         = DataType + ".spec.resync_request"
	SpecResyncResponse = DataType + ".spec.resync_response"

	StatusUpdate         = DataType + ".status.update_request"
	StatusResync         = DataType + ".status.resync_request"
	StatusResyncResponse = DataType + ".status.resync_response"

	// Heartbeat keeps gRPC streams alive; it has no source.
	Heartbeat = "io.open-cluster-management.cloudevents.heartbeat"

	// Seen is Atoll's addition: an agent publishes it every 10 s as its heartbeat,
	// with SeenData. Servers that do not know it drop it.
	Seen = "dev.atoll.agent.v1.seen"

	// Atoll's resync by digests; docs/decisions/021. Others drop these events.
	// An agent sends AgentDigest when it connects and now and then; the server
	// answers with ServerDigest; when they differ, the agent sends AgentWorks.
	AgentDigest  = "dev.atoll.agent.v1.digest"   // Digest
	AgentWorks   = "dev.atoll.agent.v1.works"    // BucketWorks
	ServerDigest = "dev.atoll.maestro.v1.digest" // DigestAnswer

	// A server asks for works that it does not know, to have them adopted.
	ServerSpecs = "dev.atoll.maestro.v1.specs" // SpecsWanted
	AgentSpec   = "dev.atoll.agent.v1.spec"    // HeldSpec, one for each that the agent holds
)

// Extension names. All are lower case, as MQTT user properties and gRPC
// attributes carry them with the prefix "ce-".
const (
	ExtResourceID        = "resourceid"        // bundle id
	ExtResourceVersion   = "resourceversion"   // generation of the spec; in a status the one observed
	ExtClusterName       = "clustername"       // consumer name
	ExtOriginalSource    = "originalsource"    // who owns the spec; present but empty on an agent's spec resync
	ExtSequenceID        = "sequenceid"        // of a status: snowflake, decimal; on a status resync, the latest that the server stored
	ExtDeletionTimestamp = "deletiontimestamp" // RFC 3339
	ExtStatusHash        = "statushash"        // hex sha256 of the status
	ExtMetadata          = "metadata"          // JSON ObjectMeta of the source's work
	ExtLogTracing        = "logtracing"        // JSON map

	// Atoll's additions, ignored by others.
	ExtIfMatch = "atollifmatch" // source to server: apply only if the bundle's ETag version is this
	// agent to server, on a status: when the spec of resourceversion arrived, RFC 3339 with
	// nanoseconds
	ExtReceivedAt = "atollreceivedat"
	ExtAppliedAt  = "atollappliedat" // agent to server, on a status: when its manifests were first all applied
	// server to agent, on a spec: the life of the server's database in which its generation counts
	ExtLife    = "atolllife"
	ExtDigests = "atolldigests" // agent to server, on a spec resync: "1", the agent speaks digests, too
)

// OpIDKey is the key of the operation id inside ExtLogTracing.
const OpIDKey = "logging.open-cluster-management.io/op-id"

// Reasons and types that the agent's final acknowledgement of a deletion carries.
const (
	ConditionDeleted     = "Deleted"
	ReasonDeleted        = "ManifestsDeleted"
	MessageDeletedFormat = "The manifests are deleted from the cluster %s"
)

// Bundle is the data of a spec event.
type Bundle struct {
	Manifests       []json.RawMessage             `json:"manifests"`
	DeleteOption    *workv1.DeleteOption          `json:"deleteOption,omitempty"`
	ManifestConfigs []workv1.ManifestConfigOption `json:"manifestConfigs,omitempty"`
	Executer        *workv1.ManifestWorkExecutor  `json:"executer,omitempty"` // the contract's spelling
}

// Status is the data of a status event. Agents may leave Bundle out; Maestro
// fills it in towards sources.
type Status struct {
	Bundle         *Bundle                    `json:"manifestBundle,omitempty"`
	Conditions     []metav1.Condition         `json:"conditions,omitempty"`
	ResourceStatus []workv1.ManifestCondition `json:"resourceStatus,omitempty"`
}

// SpecVersions is the data of a spec resync request: what the agent has. An
// empty list asks for everything.
type SpecVersions struct {
	Versions []SpecVersion `json:"resourceVersions"`
}

// SpecVersion is one bundle that the agent has, at its generation.
type SpecVersion struct {
	ID      ID    `json:"resourceID"`
	Version int64 `json:"resourceVersion"`
}

// StatusHashes is the data of a status resync request: what the asker has. An
// empty list asks for everything.
type StatusHashes struct {
	Hashes []StatusHash `json:"statusHashes"`
}

// StatusHash is the hash of one bundle's status, as ExtStatusHash.
type StatusHash struct {
	ID   ID     `json:"resourceID"`
	Hash string `json:"statusHash"`
}

// Digest is the data of AgentDigest: how many works the agent holds, and their
// hash (internal/digest, of the items of WorkState).
type Digest struct {
	Works int    `json:"works"`
	Root  string `json:"root"`
}

// DigestAnswer is the data of ServerDigest. With Ask, the server wants to know
// the agent's digest. With Same, both hold the same. Else the buckets are the
// server's, 1<<Bits of them, and it wants the agent's works in those that
// differ.
type DigestAnswer struct {
	Ask     bool   `json:"ask,omitempty"`
	Same    bool   `json:"same,omitempty"`
	Bits    int    `json:"bits,omitempty"`
	Buckets []byte `json:"buckets,omitempty"`
}

// BucketWorks is the data of AgentWorks: all works that the agent holds in some
// buckets. Several may follow one answer; each stands for itself.
type BucketWorks struct {
	Bits    int         `json:"bits"`
	Buckets []int       `json:"buckets"`
	Works   []WorkState `json:"works"`
}

// WorkState is the state of a work that server and agent compare. A work under deletion has no status in it.
type WorkState struct {
	ID       ID    `json:"id"`
	Version  int64 `json:"v"`
	Deleting bool  `json:"d,omitempty"`
	// ExtLife of the spec; generations of different lives cannot be compared
	Life   string `json:"l,omitempty"`
	Status string `json:"s,omitempty"` // the first 16 digits of its ExtStatusHash; "" while it has none
}

// SpecsWanted is the data of ServerSpecs.
type SpecsWanted struct {
	IDs []ID `json:"ids"`
}

// HeldSpec is the data of AgentSpec: a work as the agent got it.
type HeldSpec struct {
	ID       ID              `json:"id"`
	Version  int64           `json:"v"`
	Metadata string          `json:"metadata,omitempty"` // the source's ObjectMeta, JSON
	Bundle   json.RawMessage `json:"bundle"`             // Bundle
}
