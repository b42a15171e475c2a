package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"
)

// Recorded is the record of a rollout, a file in the repository beside that of the rollout. It has all that another
// driver needs to continue.
type Recorded struct {
	Environment string `json:"environment"` // that the rollout changes
	File        string `json:"file"`        // the text of the rollout's file when it began
	Digest      string `json:"digest"`      // of that text
	// Revision is the commit that change.revision of the file named when the rollout began: a branch that has moved since
	// does not give the next region other charts.
	Revision string   `json:"revision,omitempty"`
	Base     string   `json:"base"`  // the commit that the commit of this record follows
	Waves    []Wave   `json:"waves"` // of the plan, as it was when the rollout began
	State    State    `json:"state"`
	Radius   Radius   `json:"radius"` // how many regions and clusters have been changed
	Undo     Undo     `json:"undo,omitempty"`
	Kept     []string `json:"kept,omitempty"` // what a revert has left: somebody had set it, or removed its region
	// Unchecked has a text for each git.revision that was not checked, or not as the remote had it.
	Unchecked []string `json:"unchecked,omitempty"`
	History   []Event  `json:"history"`
}

// Event is a step in the history of a record.
type Event struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// RecordPath returns the path of the record of a rollout's file.
func RecordPath(file string) string {
	return strings.TrimSuffix(strings.TrimSuffix(file, ".yaml"), ".yml") + ".record.json"
}

// digestOf returns the digest of a rollout's file.
func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// newRecord returns the record of a rollout of an environment that begins. data is its file.
func newRecord(environment string, data []byte, p Plan, now time.Time) Recorded {
	return Recorded{Environment: environment, File: string(data), Digest: digestOf(data), Waves: p.Waves,
		State: newState(now), Undo: Undo{}}
}

// decodeRecord reads a record.
func decodeRecord(file string, data []byte) (Recorded, error) {
	var r Recorded
	if err := json.Unmarshal(data, &r); err != nil {
		return Recorded{}, fmt.Errorf("%s is damaged: %w; restore it from an earlier commit", file, err)
	}
	if len(r.Waves) == 0 || r.State.Phase == "" || r.State.Wave < 0 || r.State.Wave > len(r.Waves) {
		return Recorded{}, fmt.Errorf("%s is damaged: it has no plan; restore it from an earlier commit", file)
	}
	if r.State.Targets == nil {
		r.State.Targets = map[Target]TargetState{}
	}
	return r, nil
}

// withRevision returns the rollout with the commit that its revision named when it began.
func (r Recorded) withRevision(rollout Rollout) Rollout {
	if r.Revision != "" {
		rollout.Change.Revision = r.Revision
	}
	return rollout
}

// encode returns the record as its file has it.
func (r Recorded) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// Plan returns the plan of the record for the rollout's file.
func (r Recorded) Plan(rollout Rollout) Plan {
	p := Plan{Waves: r.Waves, rollout: rollout, freezes: rollout.freezes()}
	for _, w := range r.Waves {
		p.Regions, p.Clusters = p.Regions+w.Regions, p.Clusters+w.Clusters
	}
	return p
}

// afterStep returns the record after a step.
func (r Recorded) afterStep(s State, e Effect, base string, now time.Time) Recorded {
	r.State, r.Base = s, base
	r.Undo = maps.Clone(r.Undo)
	if r.Undo == nil {
		r.Undo = Undo{}
	}
	r.History = append(r.History[:len(r.History):len(r.History)], Event{At: now.UTC(), What: e.Reason})
	return r
}

// commitMessage returns the message of the commit of a step.
func (r Recorded) commitMessage(file string, e Effect) string {
	subject := fmt.Sprintf("rollout %s: %s", strings.TrimSuffix(path.Base(file), path.Ext(file)), e.Reason)
	return fmt.Sprintf("%s\n\nPhase %s; %d regions and %d management clusters have been changed.\n",
		strings.Join(strings.Fields(subject), " "), r.State.Phase, r.Radius.Regions, r.Radius.Clusters)
}

// InFlight returns the targets that are changed and not healthy yet, sorted.
func (r Recorded) InFlight() []Target {
	healthy := maps.Clone(r.State.Targets)
	maps.DeleteFunc(healthy, func(_ Target, s TargetState) bool { return !s.Healthy.IsZero() })
	return sortedTargets(healthy)
}
