package rollout

import (
	"fmt"
	"maps"
	"time"
)

// Phase is how far a rollout has come.
type Phase string

// Phases of a rollout.
const (
	Running  Phase = "Running"
	Paused   Phase = "Paused"   // by an operator: changes no further region until `resume`
	Halted   Phase = "Halted"   // by a gate: changes no further region until `resume`, `revert` or `abort`
	Done     Phase = "Done"     // every target has the change, and the last soak is over
	Aborted  Phase = "Aborted"  // ended; the changed targets keep the change
	Reverted Phase = "Reverted" // ended; the changed targets have their earlier values again
)

// IsEnd reports whether a rollout in this phase never changes anything again.
func (p Phase) IsEnd() bool { return p == Done || p == Aborted || p == Reverted }

// State is the state of a rollout. A step does not change it: it returns another.
type State struct {
	Phase   Phase                  `json:"phase"`
	Reason  string                 `json:"reason,omitempty"` // of the phase, in a sentence
	Wave    int                    `json:"wave"`             // the index of the wave that runs, or soaks
	Targets map[Target]TargetState `json:"targets"`          // those that were changed
	// Soaked is how long all gates have passed since the wave ended, or since a gate failed.
	Soaked Duration `json:"soaked"`
	// Halts is how often a gate has stopped the rollout. Each ends the soak.
	Halts int `json:"halts,omitempty"`
	// Approvals are those of sectors.
	Approvals map[string]Approval `json:"approvals,omitempty"`
	Begun     time.Time           `json:"begun"`
	Ended     time.Time           `json:"ended,omitzero"`

	passedAt  time.Time // when all gates passed last in this soak; not in the record: time without a driver is no soak
	savedSoak Duration  // of Soaked, in the last commit
}

// TargetState is the state of a changed target.
type TargetState struct {
	Changed time.Time `json:"changed"`
	Healthy time.Time `json:"healthy,omitzero"` // zero: in flight
}

// Approval is the permission for a sector.
type Approval struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// newState returns the state of a rollout that begins now.
func newState(now time.Time) State {
	return State{Phase: Running, Targets: map[Target]TargetState{}, Begun: now.UTC()}
}

// InFlight returns how many targets are changed and not healthy yet.
func (s State) InFlight() (n int) {
	for _, t := range s.Targets {
		if t.Healthy.IsZero() {
			n++
		}
	}
	return n
}

// Radius counts the regions and management clusters that a rollout has changed so far.
type Radius struct {
	Regions  int `json:"regions"`
	Clusters int `json:"clusters"`
}

// Radius returns how many regions and management clusters have the change. A region with one changed cluster does not
// count as a region.
func (s State) Radius(fleet Fleet) (r Radius) {
	clusters := map[string]int{}
	for _, region := range fleet.Regions {
		clusters[region.Name] = len(region.Clusters)
	}
	for t := range s.Targets {
		_, whole := s.Targets[Target(t.Region())]
		switch {
		case t.Cluster() == "":
			r.Regions, r.Clusters = r.Regions+1, r.Clusters+clusters[t.Region()]
		case !whole:
			r.Clusters++
		}
	}
	return r
}

// Command is a command of an operator to a rollout.
type Command string

// Commands of operators.
const (
	Pause  Command = "pause"
	Resume Command = "resume"
	Abort  Command = "abort"
	Revert Command = "revert"
	// ForceRevert is a Revert that overwrites hand edits.
	ForceRevert Command = "revert --force"
)

// Command returns the state after a command of an operator, and its effects. The error has the reason why the
// command is not permitted. A command that finds its work done changes nothing.
func (s State) Command(c Command, by string, now time.Time) (State, []Effect, error) {
	if s.Phase.IsEnd() && !((c == Revert || c == ForceRevert) && s.Phase != Reverted) {
		return s, nil, fmt.Errorf("the rollout has ended: %s", s.Phase)
	}
	switch c {
	case Pause:
		switch s.Phase {
		case Paused:
			return s, nil, nil
		case Halted:
			return s, nil, fmt.Errorf("the rollout has stopped by itself already: %s", s.Reason)
		}
		s.Phase, s.Reason = Paused, "paused by "+by
	case Resume:
		if s.Phase == Running {
			return s, nil, nil
		}
		s = s.withFreshDeadlines(now)
		s.Phase, s.Reason = Running, ""
	case Abort:
		s.Phase, s.Reason, s.Ended = Aborted, "aborted by "+by, now.UTC()
	case Revert:
		return s.revert("reverted by "+by, RefuseHandEdits, now)
	case ForceRevert:
		return s.revert("reverted by "+by+" with --force", OverwriteHandEdits, now)
	default:
		return s, nil, fmt.Errorf("unknown command %q", c)
	}
	return s, []Effect{{Kind: Record, Reason: string(s.Phase) + ": " + string(c) + " by " + by}}, nil
}

// withFreshDeadlines lets the deadlines of targets in flight begin again.
func (s State) withFreshDeadlines(now time.Time) State {
	s.Targets = maps.Clone(s.Targets)
	for t, target := range s.Targets {
		if target.Healthy.IsZero() {
			target.Changed = now.UTC()
			s.Targets[t] = target
		}
	}
	return s
}

// Approve returns the state with the approval of a sector of the plan.
func (p Plan) Approve(s State, sector, by string, now time.Time) (State, []Effect, error) {
	if s.Phase.IsEnd() {
		return s, nil, fmt.Errorf("the rollout has ended: %s", s.Phase)
	}
	for _, w := range p.Waves {
		if w.Sector != sector || !w.Approval {
			continue
		}
		if _, already := s.Approvals[sector]; already {
			return s, nil, nil
		}
		approvals := map[string]Approval{sector: {By: by, At: now.UTC()}}
		maps.Copy(approvals, s.Approvals)
		s.Approvals = approvals
		return s, []Effect{{Kind: Record, Reason: "sector " + sector + " approved by " + by}}, nil
	}
	return s, nil, fmt.Errorf("the sector %s needs no approval", sector)
}
