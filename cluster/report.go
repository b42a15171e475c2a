package cluster

import (
	"encoding/json"
	"slices"
	"strings"

	"atoll.dev/api/clm"
	"atoll.dev/api/rotation"
	"atoll.dev/internal/jsonvalue"
)

// Adapter is the name of an adapter: of its directory below adapters/, of its
// subscription, and of its reports.
type Adapter string

const (
	AdapterPlacement     Adapter = "placement"      // decides which management cluster hosts a cluster
	AdapterPullSecret    Adapter = "pull-secret"    // orders the registry credentials of a control plane
	AdapterHostedCluster Adapter = "hosted-cluster" // orders the control plane
	AdapterNodePool      Adapter = "node-pool"      // orders the nodes
	AdapterCredential    Adapter = "credential"     // orders the certificate of a credential

	// AdapterMaestro is no adapter of a task file: Maestro reports with this name
	// whether the agent of a management cluster is connected.
	AdapterMaestro Adapter = "maestro"
)

// ConditionType is the type of a condition in a report.
type ConditionType string

const (
	ConditionApplied   ConditionType = "Applied"   // the management cluster has the objects
	ConditionAvailable ConditionType = "Available" // the adapter's objects exist and work
	ConditionHealth    ConditionType = "Health"    // the adapter itself works
	ConditionFinalized ConditionType = "Finalized" // nothing is left of a deleted resource
)

// Statuses of a condition.
const (
	StatusTrue  = "True"
	StatusFalse = "False"
)

// Reason is the reason of a condition in a report: a word for programs. The
// message beside it is for people.
type Reason string

// Reasons that adapters choose.
const (
	ReasonHealthy         Reason = "Healthy"
	ReasonExecutionFailed Reason = "ExecutionFailed" // in Health with ":" and the phase that failed
	ReasonNotDeleting     Reason = "NotDeleting"     // of Finalized, while the resource is wanted
	ReasonDeleting        Reason = "Deleting"

	// Placement.
	ReasonPlaced           Reason = "Placed"
	ReasonNoCapacity       Reason = "NoCapacity" // no management cluster has room
	ReasonPlacementUnknown Reason = "PlacementUnknown"
	ReasonNeverPlaced      Reason = "NeverPlaced"   // deleted before it had a placement
	ReasonPlaceInUse       Reason = "PlaceInUse"    // the reservation stays until other adapters are done
	ReasonPlaceReleased    Reason = "PlaceReleased" // the reservation is removed

	// Works on a management cluster, in the order in which a work passes them.
	ReasonWaitingForPlacement    Reason = "WaitingForPlacement"
	ReasonWaitingForControlPlane Reason = "WaitingForControlPlane"
	ReasonOrdered                Reason = "Ordered" // Maestro has the work, the agent has not applied it
	ReasonRefused                Reason = "Refused" // the management cluster's API refused an object
	ReasonApplied                Reason = "Applied"
	ReasonPending                Reason = "Pending"  // applied, and nobody acts on it yet
	ReasonUpdating               Reason = "Updating" // the latest generation is not acted on yet
	ReasonPlaneStarting          Reason = "PlaneStarting"
	ReasonVersionNotAvailable    Reason = "VersionNotAvailable" // the management cluster cannot run the release
	ReasonInvalidConfiguration   Reason = "InvalidConfiguration"
	ReasonManagementClusterLost  Reason = "ManagementClusterLost" // its agent is not connected
	ReasonChildrenStillThere     Reason = "ChildrenStillThere"    // node pools are deleted first
	ReasonPlaneStillThere        Reason = "PlaneStillThere"
	ReasonWorkStillThere         Reason = "WorkStillThere"
	ReasonGone                   Reason = "Gone"
)

// Reasons that hosting chooses and adapters pass on.
const (
	ReasonAsExpected        Reason = "AsExpected"
	ReasonPortTaken         Reason = "PortTaken"
	ReasonDiskFull          Reason = "DiskFull"
	ReasonBinaryMissing     Reason = "BinaryMissing"
	ReasonPlaneFailed       Reason = "PlaneFailed"
	ReasonDataMissing       Reason = "DataMissing"
	ReasonMoving            Reason = "Moving"    // the control plane is between two management clusters
	ReasonMovedAway         Reason = "MovedAway" // another management cluster has the control plane
	ReasonPlaneHangs        Reason = "PlaneHangs"
	ReasonOutOfMemory       Reason = "OutOfMemory"       // it is started again
	ReasonEtcdFull          Reason = "EtcdFull"          // it refuses writes until objects are deleted
	ReasonBackupFailing     Reason = "BackupFailing"     // writes are not stored in the store of backups
	ReasonDrillFailed       Reason = "DrillFailed"       // the backup could not be restored for practice
	ReasonEtcdCorrupt       Reason = "EtcdCorrupt"       // it has found damage in its data
	ReasonRestoring         Reason = "Restoring"         // the control plane gets data from a backup
	ReasonRestoreFailed     Reason = "RestoreFailed"     // of a clone: it has no data
	ReasonUpgradeFailed     Reason = "UpgradeFailed"     // the control plane runs the release before
	ReasonRollbackFailed    Reason = "RollbackFailed"    // the control plane runs the release that it should leave
	ReasonIssuerUnreachable Reason = "IssuerUnreachable" // the keys of an issuer cannot be read
	ReasonValidationFailed  Reason = "ValidationFailed"
	ReasonInvalidReplicas   Reason = "InvalidReplicas"
	ReasonInvalidRequest    Reason = "InvalidRequest" // of a credential: no certificate will come
	ReasonExpired           Reason = "Expired"        // of a credential: no certificate will come
	ReasonAsleep            Reason = "Asleep"
	ReasonWaking            Reason = "Waking"

	// oldVersionNotAvailable is an earlier spelling of ReasonVersionNotAvailable,
	// which stored reports may still have.
	oldVersionNotAvailable Reason = "version-not-available"
)

// ReasonLost is Maestro's reason of Available while an agent is not connected.
const ReasonLost Reason = "Lost"

// finalReasons need a change of the spec or of the management cluster.
var finalReasons = []Reason{
	ReasonRefused, ReasonVersionNotAvailable, oldVersionNotAvailable, ReasonInvalidConfiguration,
	ReasonPlaneFailed, ReasonPortTaken, ReasonDiskFull, ReasonBinaryMissing,
	ReasonValidationFailed, ReasonInvalidReplicas, ReasonRestoreFailed, ReasonUpgradeFailed, ReasonRollbackFailed,
}

// IsFinal reports whether a cluster or node pool with this reason does not
// become available before somebody changes its spec or the management cluster.
func (r Reason) IsFinal() bool { return slices.Contains(finalReasons, r) }

// IsUnsignable reports whether a credential with this reason never gets a
// certificate.
func (r Reason) IsUnsignable() bool {
	return slices.Contains([]Reason{ReasonRefused, ReasonInvalidRequest, ReasonExpired}, r)
}

// IsExecutionFailure reports whether the adapter's run failed, in whichever
// phase.
func (r Reason) IsExecutionFailure() bool {
	return strings.HasPrefix(string(r), string(ReasonExecutionFailed))
}

// PlacementData is the data of a report of AdapterPlacement.
type PlacementData struct {
	State             string            `json:"state"`
	ManagementCluster ManagementCluster `json:"management_cluster"` // "" before the placement
	Why               string            `json:"why"`                // reason for the wait, for the owner of the cluster
	DecidedTime       string            `json:"decided_time"`       // RFC 3339
	Move              json.RawMessage   `json:"move"`               // as fleet's Placement has it
}

// PullSecretData is the data of a report of AdapterPullSecret.
type PullSecretData struct {
	TargetCluster ManagementCluster `json:"target_cluster"`
	Secret        string            `json:"secret"` // its name, once it is there
	// PreviousCluster still has objects of it, after a move; "" when none has.
	PreviousCluster ManagementCluster `json:"previous_cluster"`
}

// HostedClusterData is the data of a report of AdapterHostedCluster. A member is empty
// until hosting has reported its value; then it keeps the last value.
type HostedClusterData struct {
	TargetCluster ManagementCluster `json:"target_cluster"`
	Namespace     string            `json:"namespace"`
	HostedCluster string            `json:"hosted_cluster"`
	ServerName    string            `json:"server_name"`
	Endpoint      Endpoint          `json:"endpoint"`
	Version       string            `json:"version"`     // of Kubernetes, with which the control plane was ready last
	Power         string            `json:"power"`       // Awake, Asleep or Waking
	Serving       bool              `json:"serving"`     // when hosting reported last, also on an earlier generation
	Move          json.RawMessage   `json:"move"`        // as fleet's Placement has it
	MoveStatus    json.RawMessage   `json:"move_status"` // see MoveReport
	Degraded      string            `json:"degraded"`
	Progressing   string            `json:"progressing"`
	Stages        StageTimes        `json:"stages"`
	Restore       json.RawMessage   `json:"restore"`   // see RestoreReport
	Backups       json.RawMessage   `json:"backups"`   // see BackupReport
	Upgrade       json.RawMessage   `json:"upgrade"`   // see UpgradeReport
	Rotations     json.RawMessage   `json:"rotations"` // see RotationReports
	Size          json.RawMessage   `json:"size"`      // see SizeReport
	SizeOrdered   Size              `json:"size_ordered"`
}

// RestoreReport returns the state of the last restore. Its ID is empty when there was no restore.
func (d HostedClusterData) RestoreReport() RestoreData { return decodeData[RestoreData](d.Restore) }

// BackupReport returns the period to which the cluster can be restored. Its From is empty when there is no such period.
func (d HostedClusterData) BackupReport() BackupData { return decodeData[BackupData](d.Backups) }

// SizeReport returns the size class of the control plane. Its Class is empty while the control plane has none.
func (d HostedClusterData) SizeReport() SizeData { return decodeData[SizeData](d.Size) }

// RotationReports returns the states of the last rotations, by kind of key.
func (d HostedClusterData) RotationReports() map[rotation.Key]RotationData {
	return decodeData[map[rotation.Key]RotationData](d.Rotations)
}

// Endpoint is the address of the API of a cluster.
type Endpoint struct {
	Host string `json:"host"`
	Port int    `json:"port"`
}

// StageTimes are the times at which a stage was seen first, in RFC 3339; "" for
// a stage that was not seen.
type StageTimes struct {
	Ordered       string `json:"ordered"`
	PlaneStarting string `json:"plane_starting"`
	APIServing    string `json:"api_serving"`
	Ready         string `json:"ready"`
}

// NodePoolData is the data of a report of AdapterNodePool.
type NodePoolData struct {
	TargetCluster ManagementCluster `json:"target_cluster"`
	NodePool      string            `json:"node_pool"`
	Replicas      int               `json:"replicas"` // nodes that are Ready
	Version       string            `json:"version"`
	Conditions    json.RawMessage   `json:"conditions"` // of the NodePool, as hosting or HyperShift wrote them
	// PreviousCluster still has objects of it, after a move; "" when none has.
	PreviousCluster ManagementCluster `json:"previous_cluster"`
}

// CredentialData is the data of a report of AdapterCredential.
type CredentialData struct {
	TargetCluster ManagementCluster `json:"target_cluster"`
	Certificate   string            `json:"certificate"` // PEM
	CABundle      string            `json:"ca_bundle"`   // PEM
	Server        string            `json:"server"`      // URL
	TLSServerName string            `json:"tls_server_name"`
	ExpiresAt     string            `json:"expires_at"` // RFC 3339
	// PreviousCluster still has objects of it, after a move; "" when none has.
	PreviousCluster ManagementCluster `json:"previous_cluster"`
}

// Reports are the reports of adapters on one resource.
type Reports []clm.AdapterStatus

// Find returns the report of an adapter; ok is false when the adapter has not reported.
func (r Reports) Find(adapter Adapter) (report clm.AdapterStatus, ok bool) {
	i := slices.IndexFunc(r, func(s clm.AdapterStatus) bool { return s.Adapter == string(adapter) })
	if i < 0 {
		return clm.AdapterStatus{}, false
	}
	return r[i], true
}

// Condition returns a condition of a report; the zero value when the report has
// no condition of the type.
func Condition(report clm.AdapterStatus, kind ConditionType) clm.AdapterCondition {
	i := slices.IndexFunc(report.Conditions, func(c clm.AdapterCondition) bool { return c.Type == string(kind) })
	if i < 0 {
		return clm.AdapterCondition{}
	}
	return report.Conditions[i]
}

// Available returns the condition Available of an adapter's report; the zero
// value when there is none.
func (r Reports) Available(adapter Adapter) clm.AdapterCondition {
	report, _ := r.Find(adapter)
	return Condition(report, ConditionAvailable)
}

// Placement reads the data of AdapterPlacement. Here as in the other functions
// that read data, a member that is missing or of a wrong type is empty.
func (r Reports) Placement() PlacementData { return dataOf[PlacementData](r, AdapterPlacement) }

// HostedCluster reads the data of AdapterHostedCluster.
func (r Reports) HostedCluster() HostedClusterData {
	return dataOf[HostedClusterData](r, AdapterHostedCluster)
}

// NodePool reads the data of AdapterNodePool.
func (r Reports) NodePool() NodePoolData { return dataOf[NodePoolData](r, AdapterNodePool) }

func dataOf[T any](r Reports, adapter Adapter) T {
	report, _ := r.Find(adapter)
	return decodeData[T](report.Data)
}

// decodeData decodes the data of a report, or a member of it. A member of a wrong type is empty, and the others are
// decoded.
func decodeData[T any](text json.RawMessage) (data T) {
	if len(text) > 0 {
		data, _ = jsonvalue.DecodeAs[T](text)
	}
	return data
}

// ManagementClusters returns the names of the management clusters in the data of the
// reports, each once: those that host the resource.
func (r Reports) ManagementClusters() (names []ManagementCluster) {
	for _, report := range r {
		d := decodeData[struct {
			ManagementCluster ManagementCluster `json:"management_cluster"`
			TargetCluster     ManagementCluster `json:"target_cluster"`
		}](report.Data)
		for _, name := range []ManagementCluster{d.ManagementCluster, d.TargetCluster} {
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
