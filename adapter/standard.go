package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"atoll.dev/cluster"
)

// standardReport is a compiled Report. It is the node that builds the report's body.
type standardReport struct {
	adapter cluster.Adapter
	now     func() time.Time
	work    *workView // nil when the report is about no ManifestWork

	applied, available, healthy, finalized *reasonRule // conditions that the task writes out; nil for the standard ones
	health                                 []reasonRule
	data                                   node
}

type reasonRule struct {
	aheadOf string
	when    *expr // nil for waiting and pending
	reason  node
	message node
}

// verdict is the status, reason and message of a condition.
type verdict struct{ status, reason, message any }

// compileReport compiles the standard report, which is the payload statusPayload.
func (c *compiler) compileReport(r *Report) *standardReport {
	s := &standardReport{now: c.now, data: literal{map[string]any{}}}
	if c.config != nil {
		s.adapter = c.config.Adapter.Name
	}
	needed := []string{"generation", "is_deleting"}
	if r.Work != nil {
		needed = append(needed, "targetCluster", "before")
		s.work = c.compileWorkView(r.Work)
	}
	c.checkNames(r.Place, needed)
	s.applied, s.available = c.compileOverride(r.Conditions.Applied), c.compileOverride(r.Conditions.Available)
	s.healthy, s.finalized = c.compileOverride(r.Conditions.Health), c.compileOverride(r.Conditions.Finalized)
	s.health = c.compileReasonRules(r.Health)
	if r.Data.Set() {
		s.data = c.compileReportData(r.Data)
	}
	return s
}

// compileReportAction is the post action that sends the standard report.
func (c *compiler) compileReportAction(r *Report) action {
	send := &call{
		method: "PUT", url: c.compileTemplate(r.URL), body: c.compileTemplate(Text{"{{ .statusPayload }}", r.Place}),
		headers: []header{{"Content-Type", c.compileTemplate(Text{"application/json", r.Place})}},
	}
	c.checkURL(send.method, r.URL)
	return action{name: "updateStatus", call: send}
}

// reportPayload is the name of the standard report's body, as HyperFleet's files call it.
const reportPayload = "statusPayload"

func (c *compiler) compileOverride(r *ReasonRule) *reasonRule {
	if r == nil {
		return nil
	}
	out := c.compileReasonRule(*r)
	return &out
}

func (c *compiler) compileReasonRules(list []ReasonRule) (out []reasonRule) {
	for _, r := range list {
		out = append(out, c.compileReasonRule(r))
	}
	return out
}

func (c *compiler) compileReasonRule(r ReasonRule) reasonRule {
	out := reasonRule{aheadOf: r.AheadOf, reason: c.compileScalar(r.Reason), message: c.compileScalar(r.Message)}
	if r.If.Value != "" {
		out.when = c.compileExpr(r.If)
	}
	return out
}

// compileScalar compiles a template or an {expression}; an absent value is "".
func (c *compiler) compileScalar(v Value) node {
	if !v.Set() {
		return literal{""}
	}
	if m, ok := v.Value.(map[string]any); ok {
		if n, is := c.compileDefinition(v, m, "", reportValues); is {
			return n
		}
	}
	if _, ok := v.Value.(string); !ok {
		c.fail(v.Place, "a text or {expression: ...} is expected")
		return literal{""}
	}
	return c.compileDocument(v, templates)
}

func (c *compiler) compileWorkView(w *ReportedWork) *workView {
	out := &workView{
		resource: w.Resource, object: w.Object, ready: w.Ready, ignoreUnversioned: w.Unversioned == "ignored",
		subject: w.Subject,
	}
	setDefaultText(&out.subject, "it")
	if w.Waiting != nil {
		out.waiting = c.compileReasonRule(*w.Waiting)
	}
	if w.Pending != nil {
		out.pending = c.compileReasonRule(*w.Pending)
	}
	out.taskReasons, out.blockers = c.compileReasonRules(w.Ladder), c.compileReasonRules(w.Blockers)
	return out
}

// build makes the body: an error of any expression is the report's, so that no condition is null.
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

// runFailed reports whether the run has failed so far.
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
		make := c.standard
		if c.override != nil {
			make = func() (verdict, error) { return b.overrideVerdict(c.override) }
		}
		v, err := make()
		if err != nil {
			return nil, fmt.Errorf("condition %s: %w", c.kind, err)
		}
		out = append(out, map[string]any{"type": c.kind, "status": v.status, "reason": v.reason, "message": v.message})
	}
	return out, nil
}

// overrideVerdict is a condition that the task writes out.
func (b *reportBuilder) overrideVerdict(r *reasonRule) (verdict, error) {
	yes, err := b.holds(r)
	if err != nil {
		return verdict{}, err
	}
	return b.renderVerdict(*r, statusOf(yes))
}

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

// firstThatHolds returns the status, reason and message of the first rule that holds.
func (b *reportBuilder) firstThatHolds(rules []reasonRule) (v verdict, found bool, err error) {
	for i := range rules {
		yes, err := b.holds(&rules[i])
		if err != nil {
			return v, false, err
		}
		if yes {
			v, err = b.renderVerdict(rules[i], conditionTrue)
			return v, err == nil, err
		}
	}
	return v, false, nil
}

// conditionTrue is the status of a condition that holds.
const conditionTrue = "True"

// statusOf returns the status of a condition that holds or not.
func statusOf(holds bool) string {
	if holds {
		return conditionTrue
	}
	return "False"
}

// appliedVerdict is True when the agent has applied the work's present content.
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

// availableVerdict is True when the object is ready. A run that failed has seen nothing new: it
// leaves the status of the last report on this generation.
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

// healthVerdict is True after a run that succeeded.
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

// finalizedVerdict is True when the resource is being deleted and nothing that the adapter made is
// left.
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

// blocker returns the verdict of the first blocker that keeps the resource from being finalized.
func (b *reportBuilder) blocker() (verdict, bool, error) {
	if b.deleting && len(b.work.blockers) > 0 {
		v, found, err := b.firstThatHolds(b.work.blockers)
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
