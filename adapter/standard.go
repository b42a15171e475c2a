package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"atoll.dev/cluster"
)

// standardReport is a compiled Report: the node that builds the body of the report.
type standardReport struct {
	adapter cluster.Adapter
	now     func() time.Time
	work    *workView // nil when the report is about no ManifestWork

	// Rules of the task for whole conditions; nil: the standard verdict.
	applied, available, healthy, finalized *reasonRule
	health                                 []reasonRule
	data                                   node
}

// reasonRule is a compiled ReasonRule.
type reasonRule struct {
	aheadOf string // the standard reason before which the rule is tried; "" outside of a ladder
	when    *expr  // nil for waiting and pending
	reason  node
	message node
}

// verdict is the status, reason and message of a condition.
type verdict struct{ status, reason, message any }

// build returns the body of the report. When an expression fails, there is no body: no condition becomes null.
func (s *standardReport) build(ctx context.Context, in frame) (any, error) {
	b := reportBuilder{standardReport: s, ctx: ctx, in: in, failed: runFailed(in.vars)}
	b.deleting, _ = in.vars["is_deleting"].(bool)
	generation, ok := in.vars["generation"]
	if !ok {
		return nil, errors.New("the report has no generation: the parameter is not set")
	}
	if s.work != nil {
		if b.target, ok = in.vars["targetCluster"].(string); !ok {
			return nil, errors.New("the report has no targetCluster: the parameter is not set")
		}
		var err error
		if b.seen, err = s.work.readFacts(in.vars); err != nil {
			return nil, err
		}
	}
	conditions, err := b.conditions()
	if err != nil {
		return nil, err
	}
	data, err := s.data.build(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return map[string]any{
		"adapter": string(s.adapter), "conditions": conditions, "observed_generation": generation,
		"observed_time": s.now().UTC().Format(microseconds), "data": data,
	}, nil
}

// runFailed reports whether the run has failed before its report.
func runFailed(vars map[string]any) bool {
	adapter, _ := vars["adapter"].(map[string]any)
	return adapter["executionStatus"] != string(Success)
}

// reportBuilder builds one body.
type reportBuilder struct {
	*standardReport
	ctx              context.Context
	in               frame
	failed, deleting bool
	target           string
	seen             workFacts
}

// conditions returns the four conditions of the report.
func (b *reportBuilder) conditions() ([]any, error) {
	var out []any
	for _, c := range []struct {
		kind     string
		override *reasonRule
		standard func() (verdict, error)
	}{
		{"Applied", b.applied, b.appliedVerdict},
		{"Available", b.available, b.availableVerdict},
		{"Health", b.healthy, b.healthVerdict},
		{"Finalized", b.finalized, b.finalizedVerdict},
	} {
		decide := c.standard
		if c.override != nil {
			decide = func() (verdict, error) { return b.overrideVerdict(c.override) }
		}
		v, err := decide()
		if err != nil {
			return nil, fmt.Errorf("condition %s: %w", c.kind, err)
		}
		out = append(out, map[string]any{"type": c.kind, "status": v.status, "reason": v.reason, "message": v.message})
	}
	return out, nil
}

// overrideVerdict returns the verdict of a rule of the task for a whole condition.
func (b *reportBuilder) overrideVerdict(r *reasonRule) (verdict, error) {
	holds, err := b.holds(r)
	if err != nil {
		return verdict{}, err
	}
	return b.renderVerdict(*r, statusOf(holds))
}

// holds reports whether the expression of a rule is true.
func (b *reportBuilder) holds(r *reasonRule) (bool, error) {
	v, err := r.when.eval(b.ctx, b.in.vars)
	return isTrue(v), err
}

// renderVerdict returns the verdict with a status and with the reason and the message of a rule.
func (b *reportBuilder) renderVerdict(r reasonRule, status string) (v verdict, err error) {
	v.status = status
	if v.reason, err = r.reason.build(b.ctx, b.in); err != nil {
		return v, err
	}
	v.message, err = r.message.build(b.ctx, b.in)
	return v, err
}

// firstThatHolds returns the verdict of the first rule that holds, with the status True.
func (b *reportBuilder) firstThatHolds(rules []reasonRule) (v verdict, found bool, err error) {
	for i := range rules {
		holds, err := b.holds(&rules[i])
		if err != nil {
			return v, false, err
		}
		if holds {
			v, err = b.renderVerdict(rules[i], conditionTrue)
			return v, err == nil, err
		}
	}
	return v, false, nil
}

// conditionTrue is the status of a condition that holds.
const conditionTrue = "True"

// statusOf returns the status of a condition.
func statusOf(holds bool) string {
	if holds {
		return conditionTrue
	}
	return "False"
}

// appliedVerdict returns the condition Applied: True when the agent has applied the work's present content.
func (b *reportBuilder) appliedVerdict() (verdict, error) {
	v := verdict{status: statusOf(b.seen.applied), reason: "Applied", message: "on management cluster " + b.target}
	switch {
	case b.deleting:
		v.reason, v.message = "Deleting", ""
	case b.seen.applied:
	default:
		state, err := b.chooseReason()
		if err != nil {
			return v, err
		}
		v.reason, v.message = state.reason, state.message
		if b.seen.ordered && len(b.seen.refused) == 0 {
			v.reason = "Ordered"
		}
	}
	return v, nil
}

// availableVerdict returns the condition Available: True when the object is ready. A run that failed has read no new
// state, so it repeats the status of the last report on this generation.
func (b *reportBuilder) availableVerdict() (verdict, error) {
	status := statusOf(b.work.isReady(b.seen))
	if b.failed {
		status = statusOf(wasAvailable(b.in.vars))
	}
	if b.deleting {
		return verdict{status, "Deleting", b.work.subject + " is being deleted"}, nil
	}
	v, err := b.chooseReason()
	v.status = status
	return v, err
}

// healthVerdict returns the condition Health: False after a run that failed, and when a rule of the task for Health
// holds.
func (b *reportBuilder) healthVerdict() (verdict, error) {
	adapter, _ := b.in.vars["adapter"].(map[string]any)
	if !b.failed {
		v, found, err := b.firstThatHolds(b.health)
		if found || err != nil {
			v.status = "False"
			return v, err
		}
		return verdict{conditionTrue, "Healthy", adapter["skipReason"]}, nil
	}
	why, _ := adapter["executionError"].(map[string]any)
	phase, _ := why["phase"].(string)
	setDefaultText(&phase, "unknown")
	step, _ := why["step"].(string)
	message, _ := why["message"].(string)
	setDefaultText(&message, "no details")
	if step != "" { // a template or an expression fails without a step
		message = step + ": " + message
	}
	return verdict{"False", "ExecutionFailed:" + phase, message}, nil
}

// finalizedVerdict returns the condition Finalized: True when the resource is being deleted and no object of the
// adapter is left.
func (b *reportBuilder) finalizedVerdict() (verdict, error) {
	v, blocked, err := b.blocker()
	if err != nil {
		return v, err
	}
	adapter, _ := b.in.vars["adapter"].(map[string]any)
	skipped, _ := adapter["resourcesSkipped"].(bool)
	v.status = statusOf(b.deleting && !b.failed && !blocked && (b.target == "" || !skipped))
	switch {
	case !b.deleting:
		v.reason, v.message = "NotDeleting", ""
	case b.failed:
		v.reason = "ExecutionFailed"
	case !blocked:
		v.reason = "Gone"
	}
	return v, nil
}

// blocker returns the reason and the message of the first blocker that keeps the resource from being finalized;
// found is false when there is none. A task without blockers has one: the work itself.
func (b *reportBuilder) blocker() (v verdict, found bool, err error) {
	if b.deleting && len(b.work.blockers) > 0 {
		v, found, err = b.firstThatHolds(b.work.blockers)
		if !found {
			v.message = ""
		}
		return v, found, err
	}
	if b.deleting && b.seen.ordered {
		return verdict{reason: "WorkStillThere", message: "waiting until " + b.target + " has deleted it"}, true, nil
	}
	return verdict{message: ""}, false, nil
}

// chooseReason returns the reason and the message of the first rule that holds, in the order of
// standardReasons with the task's own rules ahead of those that they name.
func (b *reportBuilder) chooseReason() (verdict, error) {
	for _, name := range standardReasons {
		own := slices.DeleteFunc(slices.Clone(b.work.taskReasons), func(r reasonRule) bool { return r.aheadOf != name })
		if v, found, err := b.firstThatHolds(own); found || err != nil {
			return v, err
		}
		if v, holds, err := b.standardReason(name); holds || err != nil {
			return v, err
		}
	}
	return verdict{}, nil
}

// standardReason returns the reason and the message of a standard rule, and whether the rule holds.
func (b *reportBuilder) standardReason(name string) (v verdict, holds bool, err error) {
	switch name {
	case "waiting":
		if b.target != "" {
			return v, false, nil
		}
		v, err = b.renderVerdict(b.work.waiting, conditionTrue)
		return v, true, err
	case "failed":
		v.reason, v.message = "ExecutionFailed", "the region could not look after "+b.work.subject+"; it tries again"
		return v, b.failed, nil
	case "refused":
		if len(b.seen.refused) == 0 {
			return v, false, nil
		}
		v.reason, v.message = "Refused", b.target+" refused "+b.work.subject+": "+b.seen.refused[0]
		return v, true, nil
	case "ordered":
		v.reason, v.message = "Ordered", "ordered from "+b.target+", which has not taken it up yet"
		return v, !b.seen.applied, nil
	case "updating":
		v.reason, v.message = "Updating", b.target+" is acting on the change"
		return v, b.work.isOutdated(b.seen), nil
	case "reported":
		return b.reportedReason()
	}
	v, err = b.renderVerdict(b.work.pending, conditionTrue)
	return v, true, err
}

// reportedReason returns the reason and message of the object's ready condition. A condition without a reason has that
// of pending.
func (b *reportBuilder) reportedReason() (v verdict, holds bool, err error) {
	c := conditionOf(b.seen.conditions, b.work.ready)
	if c == nil {
		return v, false, nil
	}
	v.reason, v.message = textOf(c["reason"]), textOf(c["message"])
	if v.reason == "" {
		pending, err := b.renderVerdict(b.work.pending, conditionTrue)
		v.reason = pending.reason
		return v, true, err
	}
	return v, true, nil
}
