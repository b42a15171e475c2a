package customer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/cli/terminal"
)

// clusterStages are the stages of a cluster in their order, as the Platform API's events name them.
var clusterStages = []string{"Accepted", "Placed", "Ordered", "PlaneStarting", "APIServing", string(stageReady),
	string(stageNodes)}

// lastStage is the stage at which the progress of a cluster ends.
type lastStage string

const (
	stageReady lastStage = "Ready"
	stageNodes lastStage = "NodesReady" // of clusters that have node pools
)

// lastStageWith returns the last stage of a cluster with so many node pools.
func lastStageWith(nodePools int) lastStage {
	if nodePools > 0 {
		return stageNodes
	}
	return stageReady
}

// timeline records the stages that a cluster has reached, and draws them. It reads no clock.
type timeline struct {
	name, phase string
	begun       time.Time // when the region accepted it
	last        lastStage
	reached     map[string]arrival
	waitReason  string // why the current stage is not reached yet; "" when unknown
}

// arrival is the time at which a stage was reached, with a note.
type arrival struct {
	at   time.Time
	note string
}

// recordStage records that a stage was reached, and reports whether it was not recorded before. Later
// times of the same stage are ignored: they belong to the life of the cluster after its creation.
func (t *timeline) recordStage(stage string, at time.Time, note string) bool {
	if t.reached == nil {
		t.reached = map[string]arrival{}
	}
	if _, known := t.reached[stage]; known || !slices.Contains(clusterStages, stage) {
		return false
	}
	t.reached[stage] = arrival{at, note}
	if t.begun.IsZero() || at.Before(t.begun) {
		t.begun = at
	}
	return true
}

// stages returns the stages of this cluster.
func (t *timeline) stages() []string {
	if _, seen := t.reached[string(stageNodes)]; t.last == stageNodes || seen {
		return clusterStages
	}
	return clusterStages[:len(clusterStages)-1]
}

// isDone reports whether every stage was reached.
func (t *timeline) isDone() bool {
	stages := t.stages()
	return t.currentStage() == len(stages)
}

// currentStage returns the index of the first stage after the last reached one.
func (t *timeline) currentStage() int {
	stages := t.stages()
	for i := len(stages) - 1; i >= 0; i-- {
		if _, ok := t.reached[stages[i]]; ok {
			return i + 1
		}
	}
	return 0
}

// stageSpan returns when a stage began and ended. The current stage ends now. ok is false for a stage
// that was not observed and is not the current one.
func (t *timeline) stageSpan(i int, now time.Time) (from, to time.Time, ok bool) {
	stages := t.stages()
	from = t.begun
	for _, s := range stages[:i] {
		if a, ok := t.reached[s]; ok && a.at.After(from) {
			from = a.at
		}
	}
	a, ok := t.reached[stages[i]]
	switch {
	case ok:
		to = a.at
	case i == t.currentStage():
		to = now
	default:
		return from, from, false
	}
	if to.Before(from) { // two clocks, or two conditions in one report
		to = from
	}
	return from, to, true
}

// endTime returns the time of the last stage when all are reached, and now otherwise.
func (t *timeline) endTime(now time.Time) time.Time {
	if !t.isDone() {
		return now
	}
	last := t.begun
	for _, a := range t.reached {
		if a.at.After(last) {
			last = a.at
		}
	}
	return last
}

// stageLine returns a reached stage as one line: the time since the cluster was accepted, the
// stage, and its duration.
func (t *timeline) stageLine(stage string) string {
	i := slices.Index(clusterStages, stage)
	from, to, _ := t.stageSpan(i, t.reached[stage].at)
	line := fmt.Sprintf("  %8s  %-*s", terminal.FormatDuration(to.Sub(t.begun)), stageColumn, stage)
	if i > 0 {
		line += "  +" + terminal.FormatDuration(to.Sub(from))
	}
	if note := t.reached[stage].note; note != "" {
		line += "  " + terminal.OneLine(note)
	}
	return strings.TrimRight(line, " ")
}

// waitLine returns the reason why the current stage is not reached yet, as one line.
func (t *timeline) waitLine(now time.Time) string {
	stage := t.stages()[min(t.currentStage(), len(t.stages())-1)]
	return fmt.Sprintf("  %8s  %-*s  waits: %s", terminal.FormatDuration(max(now.Sub(t.begun), 0)), stageColumn, stage,
		terminal.OneLine(t.waitReason))
}
