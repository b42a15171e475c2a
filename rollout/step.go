package rollout

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Verdict is the result of all gates of a target.
type Verdict string

// Verdicts. A gate that cannot be read does not pass.
const (
	Unreadable Verdict = "unreadable"
	Passing    Verdict = "passing"
	Failing    Verdict = "failing"
)

// Health is the health of a target. The zero value is unreadable.
type Health struct {
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"` // the gate, and what it read
}

// Observation is the health of the changed targets at one time. A target that it does not have is unreadable.
type Observation map[Target]Health

// Effect is the action of the driver after a step.
type Effect struct {
	Kind    EffectKind `json:"kind"`
	Targets []Target   `json:"targets,omitempty"`
	Reason  string     `json:"reason"` // the subject of the commit
	// HandEdits says how a Restore treats values that somebody has set since the change.
	HandEdits HandEdits `json:"handEdits,omitempty"`
}

// EffectKind is a kind of effect.
type EffectKind string

// Kinds of effects. Each is one commit with the record of the rollout.
const (
	Apply   EffectKind = "apply"   // set the change in the configuration of the targets
	Restore EffectKind = "restore" // set the earlier values again in the configuration of the targets
	Record  EffectKind = "record"  // commit the record only
)

// maxObservationGap is the longest time between two observations that counts as a part of a soak. A driver observes
// every 30 seconds.
const maxObservationGap = 5 * time.Minute

// savedShare is the part of a soak after which the driver commits how long it has soaked, so that the next driver after
// a crash repeats a quarter of the soak at most.
const savedShare = 4

// Step returns the state after an observation at the time now, and the effects. It depends on its arguments only. It
// returns at most one effect that changes targets, and never one while a gate of a changed target fails or cannot be
// read.
func (p Plan) Step(s State, seen Observation, now time.Time) (State, []Effect) {
	if s.Phase != Running && s.Phase != Paused {
		s.passedAt = time.Time{}
		return s, nil
	}
	s.Targets = maps.Clone(s.Targets)
	if reason := p.failureReason(s, seen, now); reason != "" {
		if p.rollout.OnFailure == RevertOnFailure {
			s, effects, _ := s.revert(reason, KeepHandEdits, now)
			return s, effects
		}
		s.Phase, s.Reason, s.Halts = Halted, reason, s.Halts+1
		s.Soaked, s.savedSoak, s.passedAt = 0, 0, time.Time{} // a gate that passed before the halt must pass again
		return s, []Effect{{Kind: Record, Reason: "Halted: " + reason}}
	}
	s, recovered := p.markHealthy(s, seen, now)
	if s.Phase == Paused {
		s.passedAt = time.Time{}
		return s, recovered
	}
	unreadable := firstUnreadable(s, seen)
	s, soaked := p.addSoak(s, unreadable, now)
	if s.Phase == Done {
		return s, soaked
	}
	s, applied := p.changeNextTargets(s, unreadable, now)
	switch {
	case len(applied) > 0:
		return s, applied // its commit has the whole state
	case len(soaked) > 0:
		return s, soaked
	}
	return s, recovered
}

// failureReason returns why the rollout must stop, or "": a gate fails, or a target is not healthy within
// its deadline.
func (p Plan) failureReason(s State, seen Observation, now time.Time) string {
	for _, t := range sortedTargets(s.Targets) {
		state := s.Targets[t]
		if h := seen[t]; h.Verdict == Failing {
			return fmt.Sprintf("%s: %s", t, h.Reason)
		}
		if state.Healthy.IsZero() && now.Sub(state.Changed) >= p.rollout.Deadline && seen[t].Verdict != Passing {
			return fmt.Sprintf("%s: its gates could not be read for %s: %s", t, p.rollout.Deadline, seen[t].Reason)
		}
	}
	return ""
}

// markHealthy marks the targets in flight whose gates pass, once their change had time to arrive.
func (p Plan) markHealthy(s State, seen Observation, now time.Time) (State, []Effect) {
	var healthy []Target
	for t, state := range s.Targets {
		if state.Healthy.IsZero() && seen[t].Verdict == Passing && now.Sub(state.Changed) >= p.rollout.Settle {
			state.Healthy = now.UTC()
			s.Targets[t] = state
			healthy = append(healthy, t)
		}
	}
	if len(healthy) == 0 {
		return s, nil
	}
	slices.Sort(healthy)
	return s, []Effect{{Kind: Record, Targets: healthy, Reason: fmt.Sprintf("%s healthy", targetsText(healthy))}}
}

// firstUnreadable returns the first changed target, by name, whose gates do not all pass in this
// observation, or "".
func firstUnreadable(s State, seen Observation) Target {
	first := Target("")
	for t := range s.Targets {
		if seen[t].Verdict != Passing && (first == "" || t < first) {
			first = t
		}
	}
	return first
}

// addSoak adds the time since the last observation to the soak of the wave, if all targets of the wave are
// healthy and unreadable, the result of firstUnreadable, is "". When the soak is long enough it goes on to the
// next wave, and after the last wave the rollout is done.
func (p Plan) addSoak(s State, unreadable Target, now time.Time) (State, []Effect) {
	allPass := unreadable == ""
	var effects []Effect
	for s.Wave < len(p.Waves) && p.isWaveHealthy(s, p.Waves[s.Wave]) {
		w := p.Waves[s.Wave]
		if !s.passedAt.IsZero() && allPass && now.Sub(s.passedAt) <= maxObservationGap {
			s.Soaked += Duration(max(now.Sub(s.passedAt), 0))
		}
		if s.passedAt = now; !allPass {
			s.passedAt = time.Time{}
			return s, effects
		}
		if s.Soaked < w.Soak {
			if s.Soaked-s.savedSoak >= max(w.Soak/savedShare, 1) {
				s.savedSoak = s.Soaked
				effects = append(effects, Effect{Kind: Record, Reason: fmt.Sprintf("sector %s, %s: soaked %s of %s",
					w.Sector, w.Name, time.Duration(s.Soaked), time.Duration(w.Soak))})
			}
			return s, effects
		}
		s.Wave, s.Soaked, s.savedSoak, s.passedAt = s.Wave+1, 0, 0, time.Time{}
		effects = []Effect{{Kind: Record, Reason: fmt.Sprintf("sector %s, %s: complete", w.Sector, w.Name)}}
	}
	if s.Wave == len(p.Waves) {
		s.Phase, s.Reason, s.Ended = Done, "", now.UTC()
		effects = []Effect{{Kind: Record, Reason: "Done"}}
	}
	return s, effects
}

// isWaveHealthy reports whether each target of a wave has the change and was marked healthy.
func (p Plan) isWaveHealthy(s State, w Wave) bool {
	for _, t := range w.Targets {
		if s.Targets[t].Healthy.IsZero() {
			return false
		}
	}
	return true
}

// changeNextTargets changes further targets of the present wave. It sets State.Reason instead when a freeze, a missing
// approval or an unreadable gate forbids that.
func (p Plan) changeNextTargets(s State, unreadable Target, now time.Time) (State, []Effect) {
	w := p.Waves[s.Wave]
	var next []Target
	free := p.rollout.MaxInFlight - s.InFlight()
	for _, t := range w.Targets {
		if _, changed := s.Targets[t]; !changed && len(next) < free {
			next = append(next, t)
		}
	}
	end, thawed := p.freezes.firstInstantOutside(now)
	_, isApproved := s.Approvals[w.Sector]
	switch {
	case len(next) == 0:
		s.Reason = ""
		return s, nil
	case unreadable != "":
		s.Reason = fmt.Sprintf("the gates of %s cannot be read", unreadable)
		return s, nil
	case p.needsApproval(w.Sector) && !isApproved:
		s.Reason = fmt.Sprintf("the sector %s waits for approval", w.Sector)
		return s, nil
	case !thawed:
		s.Reason = "frozen without an end"
		return s, nil
	case end.After(now):
		s.Reason = "frozen until " + end.UTC().Format(time.RFC3339)
		return s, nil
	}
	for _, t := range next {
		s.Targets[t] = TargetState{Changed: now.UTC()}
	}
	s.Reason, s.savedSoak = "", s.Soaked
	return s, []Effect{{Kind: Apply, Targets: next, Reason: fmt.Sprintf("sector %s, %s: change %s", w.Sector, w.Name,
		targetsText(next))}}
}

func (p Plan) needsApproval(sector string) bool { return slices.Contains(p.rollout.Approval, sector) }

// revert ends the rollout as reverted, with the effect that gives all changed targets their earlier values.
// It changes all of them at once, also more than maxInFlight: the earlier values have run there before, and
// each target runs the change that failed.
func (s State) revert(reason string, handEdits HandEdits, now time.Time) (State, []Effect, error) {
	targets := sortedTargets(s.Targets)
	s.Phase, s.Reason, s.Ended, s.passedAt = Reverted, reason, now.UTC(), time.Time{}
	return s, []Effect{{Kind: Restore, Targets: targets, Reason: "Reverted: " + reason, HandEdits: handEdits}}, nil
}

func sortedTargets(m map[Target]TargetState) []Target { return slices.Sorted(maps.Keys(m)) }

// targetsText returns the first of some targets, and how many more there are.
func targetsText(targets []Target) string {
	if len(targets) == 1 {
		return string(targets[0])
	}
	return fmt.Sprintf("%s and %d more", targets[0], len(targets)-1)
}
