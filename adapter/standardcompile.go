package adapter

// compileReport compiles the standard report. Its body is the payload reportPayload.
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
		method: "PUT", url: c.compileTemplate(r.URL), body: c.compileTemplate(Text{"{{ ." + reportPayload + " }}", r.Place}),
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
