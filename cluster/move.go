package cluster

// MoveData is the state of a move of the control plane on one management cluster, in a report of AdapterHostedCluster.
type MoveData struct {
	ID      string `json:"id"`
	Phase   string `json:"phase"`
	Message string `json:"message"` // why it waits or failed; "" when it goes on
}

// MoveReport returns the state of the last move on the management cluster that the placement names; a zero ID when
// there was none.
func (d HostedClusterData) MoveReport() MoveData { return decodeData[MoveData](d.MoveStatus) }
