package hypershift

// MoveAnnotation of a HostedCluster is Atoll's: a MoveOrder as JSON. The HostedClusters of both management clusters
// have it while a plane moves from one to the other, with the same ID.
const MoveAnnotation = "atoll.dev/move"

// MoveRole is the side of a move that a management cluster is on.
type MoveRole string

// Sides of a move.
const (
	MoveLeaves  MoveRole = "leaves"  // its plane goes to the other management cluster, and never runs here again
	MoveArrives MoveRole = "arrives" // its plane comes from the other one, and does not start before it has the data
	// MoveRecovers: its plane was lost with the other one, and does not start before it has the data of its backup.
	MoveRecovers MoveRole = "recovers"
)

// MoveOrder orders that a plane moves between two management clusters with the same store of backups.
type MoveOrder struct {
	ID   string   `json:"id"` // a-z, 0-9 and -; at most 63 characters
	Role MoveRole `json:"role"`
}

// MovePhase is the progress of a move on one side.
type MovePhase string

// Phases of a move.
const (
	MoveWaiting  MovePhase = "Waiting"  // for the other side; a plane that leaves still serves
	MoveStopping MovePhase = "Stopping" // the plane that leaves stops
	MoveStoring  MovePhase = "Storing"  // its data goes to the store; it never runs here again
	MoveLeft     MovePhase = "Left"     // the data is stored; the router forwards to the other side
	MoveArriving MovePhase = "Arriving" // the plane that arrives has its data, and starts
	MoveArrived  MovePhase = "Arrived"  // it was ready
	MoveFailed   MovePhase = "Failed"   // the order cannot be executed; the plane is unchanged
	// MoveWithdrawn: the order was withdrawn in time, and the plane runs on the source.
	MoveWithdrawn MovePhase = "Withdrawn"
)

// MoveStatus is the state of the last order. No member is omitted, as in RestoreStatus.
type MoveStatus struct {
	ID      string    `json:"id"`
	Role    MoveRole  `json:"role"`
	Phase   MovePhase `json:"phase"`
	Message string    `json:"message"`
}

// HasLeft reports whether the plane of the HostedCluster has left for another management cluster. Objects of the
// cluster that this one still has are not in the plane any more.
func (s HostedClusterStatus) HasLeft() bool {
	return s.Move != nil && s.Move.Role == MoveLeaves && s.Move.Phase == MoveLeft
}
