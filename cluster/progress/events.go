package progress

import (
	"cmp"
	"slices"
	"time"

	"atoll.dev/api/clm"
)

// Stage is a stage that a cluster passes on its way up. An event has a Stage when it
// reaches the stage, or when it reports the cause of a wait for the stage.
type Stage string

const (
	StageAccepted      Stage = "Accepted"
	StagePlaced        Stage = "Placed"
	StageOrdered       Stage = "Ordered"
	StagePlaneStarting Stage = "PlaneStarting"
	StageAPIServing    Stage = "APIServing"
	StageReady         Stage = "Ready"
	StageNodesReady    Stage = "NodesReady" // of all node pools that the cluster has
)

// planeStages are the stages of the control plane, in their order.
var planeStages = []Stage{StagePlaced, StageOrdered, StagePlaneStarting, StageAPIServing, StageReady}

// EventType is the kind of an event.
type EventType string

const (
	Normal  EventType = "Normal"
	Waiting EventType = "Waiting" // a stage is not reached yet, and why
	Warning EventType = "Warning" // somebody must change something
)

// Event is a change of a cluster or of one of its node pools.
type Event struct {
	Time    time.Time
	Type    EventType
	Stage   Stage // "" for events of no stage
	Reason  string
	Message string
	Since   time.Duration // since the cluster was accepted

	// The record of history that the event comes from: readers know by it which
	// events they have read.
	Resource string // id
	Seq      int64
}

// History has the records of one resource in the order of its changes. The
// status of a record is as the lifecycle manager stores it: {"reports":[...]}
// with the reports that the change touched.
type History struct {
	ID, Name string
	Created  time.Time // zero: when the first record was made
	Records  []clm.HistoryRecord
}

// Events computes the events of a cluster, the oldest first, from its history
// and those of its node pools. More records only add events at the end, as long
// as records come in the order of their times.
func Events(visibility Visibility, clusterHistory History, pools ...History) []Event {
	type step struct {
		history *History
		record  clm.HistoryRecord
	}
	var steps []step
	for _, r := range clusterHistory.Records {
		steps = append(steps, step{&clusterHistory, r})
	}
	for i := range pools {
		for _, r := range pools[i].Records {
			steps = append(steps, step{&pools[i], r})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int {
		return cmp.Or(a.record.Time.Compare(b.record.Time), cmp.Compare(a.record.Seq, b.record.Seq))
	})
	n := narrator{visibility: visibility, start: clusterHistory.Created, pools: map[string]*poolState{}}
	for _, s := range steps {
		n.now, n.resource, n.seq = s.record.Time, s.history.ID, s.record.Seq
		if n.start.IsZero() {
			n.start = n.now
		}
		if s.history == &clusterHistory {
			n.readClusterRecord(s.record)
		} else {
			n.readPoolRecord(s.history, s.record)
		}
		n.addNodesReady()
	}
	return n.events
}
