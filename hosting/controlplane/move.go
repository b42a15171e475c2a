package controlplane

import (
	"encoding/json"
	"strings"
)

// movePrefix is the beginning of the ID of the RestoreOrder by which a plane arrives from another management cluster.
// It is not possible in the ID of a customer's order.
const movePrefix = "move."

// ArrivalOrder returns the ID of the RestoreOrder of a move.
func ArrivalOrder(move string) string { return movePrefix + move }

// MoveOf returns the move of a RestoreOrder; "" when it is another order.
func MoveOf(order string) string {
	move, isMove := strings.CutPrefix(order, movePrefix)
	if !isMove {
		return ""
	}
	return move
}

// StagedRecord is a file beside the data of a plane that arrives: its Departure, as JSON.
const StagedRecord = "record.json"

// Departure is how a plane ran on the management cluster that it has left. A version before knew the LastStart only.
type Departure struct {
	LastStart
	Shown
}

// Shown are parts of a HostedCluster's status that go with a plane, as JSON; nil: the status has none.
type Shown struct {
	Upgrade json.RawMessage `json:",omitempty"` // the last one
	Restore json.RawMessage `json:",omitempty"` // of the last order
}

// LeavingState is how far a plane has left this management cluster.
type LeavingState string

// States of a Leaving, in their order. From LeavingStores on the plane never runs here again, unless its data cannot be
// packed: then the state becomes LeavingRefused.
const (
	LeavingWaits  LeavingState = "waits"  // for the target; the plane runs
	LeavingStops  LeavingState = "stops"  // the target waits: the plane has to stop
	LeavingStores LeavingState = "stores" // the data goes to the store
	LeavingDone   LeavingState = "done"
	// LeavingRefused: the data cannot move, and the other side can not have it. The plane runs here as before.
	LeavingRefused LeavingState = "refused"
)

// Leaving is the state of a plane's move to another management cluster.
type Leaving struct {
	State    LeavingState
	Endpoint string // HOST:PORT of the target's router; "" while it waits
	Message  string // the reason why it waits, or cannot move
}
