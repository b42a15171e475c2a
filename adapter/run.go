package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"time"
)

// execution is one run of a task. scope has the names that templates and expressions see: the
// params, captures and payloads so far, and adapter, resources, event, env and config.
type execution struct {
	*Engine
	event     Event
	scope     map[string]any
	adapter   map[string]any // scope["adapter"]
	resources map[string]any // scope["resources"]
	deleting  bool           // the event's resource is being deleted, by an answer of CLM
	blocked   bool           // an object is being deleted, so the resources after it wait
	built     time.Time      // when the payloads were built
	overtaken bool           // CLM kept a report of a later time instead of this run's
	result    *Result
}

// Run runs the task for one event. It always returns a result; when ctx ends, the remaining steps
// fail with its error. Two goroutines must not call it for one resource at the same time.
//
// When CLM discards the task's report as older than the stored one, the task runs again: only new
// observations may get a later time.
func (e *Engine) Run(ctx context.Context, ev Event) *Result {
	for again := 0; ; again++ {
		x := e.begin(ev)
		x.run(ctx)
		if x.overtaken && again < maxOvertaken && ctx.Err() == nil {
			continue
		}
		x.finish()
		return x.result
	}
}

func (e *Engine) begin(ev Event) *execution {
	x := &execution{
		Engine: e, event: ev, resources: map[string]any{},
		adapter: map[string]any{
			"name": string(e.o.Config.Adapter.Name), "version": e.o.Config.Adapter.Version,
			"executionStatus": string(Success), "resourcesSkipped": false, "skipReason": "",
			"errorReason": "", "errorMessage": "", "executionError": nil, "resourceErrors": map[string]any{},
		},
		result: &Result{Event: ev, Status: Success, Errors: map[Phase]error{}, Discovered: map[string]any{}},
	}
	x.scope = map[string]any{"adapter": x.adapter, "resources": x.resources, "event": ev.document(), "env": e.env,
		"config": e.config}
	return x
}

// document returns the event as expressions see it, without the members that it does not have.
func (ev Event) document() map[string]any {
	m := map[string]any{}
	put := func(m map[string]any, name, value string) {
		if value != "" {
			m[name] = value
		}
	}
	put(m, "id", ev.ID)
	put(m, "kind", ev.Kind)
	put(m, "href", ev.Href)
	if ev.Generation != 0 {
		m["generation"] = ev.Generation
	}
	if o := ev.OwnerReferences; o != nil {
		owner := map[string]any{}
		put(owner, "id", o.ID)
		put(owner, "kind", o.Kind)
		put(owner, "href", o.Href)
		m["owner_references"] = owner
	}
	return m
}

func (x *execution) run(ctx context.Context) {
	if err := x.evaluateParams(ctx); err != nil {
		if x.endIfResourceMissing(err) {
			return
		}
		x.recordFailure(err, "ParameterExtractionFailed")
		x.skip("ParameterExtractionFailed: " + err.Err.Error())
	} else if err := x.checkPreconditions(ctx); err != nil {
		if x.endIfResourceMissing(err) {
			return
		}
		x.recordFailure(err, "PreconditionFailed")
		x.skip(err.Error())
	}
	if !x.result.Skipped {
		if err := x.applyResources(ctx); err != nil {
			x.recordFailure(err, "ResourceFailed")
		}
	}
	if err := x.runPostPhase(ctx); err != nil {
		if x.endIfResourceMissing(err) {
			return
		}
		x.recordFailure(err, "PostActionFailed")
	}
}

// recordFailure records the failure of a phase in the result and for expressions, where the first failure
// counts.
func (x *execution) recordFailure(err *StepError, reason string) {
	x.result.Status = Failed
	x.result.Errors[err.Phase] = err
	x.adapter["executionStatus"] = string(Failed)
	switch {
	case x.adapter["executionError"] != nil:
	case err.Phase == Resources: // a template or an expression failed; the original reports it so
		x.adapter["executionError"] = map[string]any{"phase": reason, "step": "", "message": err.Error()}
	default:
		x.adapter["executionError"] = err.document()
	}
	if x.adapter["errorReason"] == "" {
		x.adapter["errorReason"], x.adapter["errorMessage"] = reason, err.Error()
	}
}

func (e *StepError) document() map[string]any {
	return map[string]any{"phase": string(e.Phase), "step": e.Step, "message": e.Op + ": " + e.Err.Error()}
}

// skip records that the run skips resources. The first reason stays.
func (x *execution) skip(reason string) {
	x.result.Skipped, x.adapter["resourcesSkipped"] = true, true
	if x.result.SkipReason == "" {
		x.result.SkipReason, x.adapter["skipReason"] = reason, reason
	}
}

// endIfResourceMissing ends the run when the failure is that the resource does not exist in CLM any more.
func (x *execution) endIfResourceMissing(err *StepError) bool {
	api, ok := errors.AsType[*APIError](err.Err)
	if !ok || !api.isResourceMissing() || !x.concernsResource(api.URL) {
		return false
	}
	x.result.Gone = true
	x.skip("ResourceNotFound: " + api.Error())
	return true
}

// concernsResource reports whether a URL is that of the event's resource, of its owner, or of its
// statuses.
func (x *execution) concernsResource(url string) bool {
	u, err := x.api.resolve(url)
	if err != nil {
		return false
	}
	path := u.Path
	if i := strings.Index(path, "/api/"); i > 0 {
		path = path[i:]
	}
	path = strings.TrimSuffix(strings.TrimSuffix(path, "/"), "/statuses")
	href := strings.TrimSuffix(x.event.Href, "/")
	if x.event.ID == "" {
		return false
	}
	return path == href || strings.HasPrefix(href, path+"/") || strings.HasSuffix(path, "/"+x.event.ID)
}

func (x *execution) finish() {
	r := x.result
	r.Params = maps.Clone(x.scope)
	delete(r.Params, "resources")
	r.Seen = x.resourcesOfTask()
	r.Params["adapter"] = map[string]any{"name": x.adapter["name"], "version": x.adapter["version"]}
}

// resourcesOfTask returns the objects of the task's resources, each with its nested objects.
func (x *execution) resourcesOfTask() map[string]any {
	seen := map[string]any{}
	for i := range x.task.resources {
		if name := x.task.resources[i].name; x.resources[name] != nil {
			seen[name] = x.resources[name]
		}
	}
	return seen
}

// log writes a log action's message.
func (x *execution) log(ctx context.Context, l *logAction) {
	if l == nil {
		return
	}
	level := map[string]slog.Level{"debug": slog.LevelDebug, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
		"error": slog.LevelError}[l.level]
	if !x.o.Log.Enabled(ctx, level) {
		return
	}
	message, err := l.message.render(x.scope)
	if err != nil {
		x.o.Log.WarnContext(ctx, "a log message cannot be written", slog.String("id", x.event.ID),
			slog.Any("error", err))
		return
	}
	x.o.Log.Log(
		ctx,
		level,
		"message of a log action of the task",
		slog.String("message", message),
		slog.String("id", x.event.ID),
	)
}

// evaluateParams is the first phase: it binds the params.
func (x *execution) evaluateParams(ctx context.Context) *StepError {
	for i := range x.task.params {
		p := &x.task.params[i]
		if p.let != nil {
			if err := x.evaluateLet(ctx, ParamExtraction, p.let); err != nil {
				return err
			}
			continue
		}
		if err := x.evaluateParam(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// evaluateParam binds one parameter. An optional one whose source has nothing gets its default; an
// expression that fails for another reason than absence fails the phase.
func (x *execution) evaluateParam(ctx context.Context, p *param) *StepError {
	if p.when != nil {
		yes, err := x.evaluateCondition(ctx, p.when)
		if err != nil {
			return &StepError{ParamExtraction, p.Name, "evaluating when", err}
		}
		if !yes {
			x.scope[p.Name] = p.Default.Value
			return nil
		}
	}
	v, err := x.readSource(ctx, p)
	if err == nil && !isGiven(v) && p.Default.Set() {
		v = p.Default.Value
	}
	if err == nil && v != nil && p.call == nil && p.expr == nil { // answers and expressions keep their types
		v, err = convert(v, p.Type)
	}
	switch {
	case err == nil && v == nil && p.Required:
		err = errors.New("there is none")
		fallthrough
	case err != nil && p.Required:
		return &StepError{ParamExtraction, p.Name, "taking the required parameter from " + p.Source.describe(), err}
	case err != nil && ctx.Err() != nil:
		return &StepError{ParamExtraction, p.Name, "taking the parameter", context.Cause(ctx)}
	case err != nil && p.expr != nil:
		v, err = substitute(p.expr, p.Default, err, func(e *expr, err error) { x.warn(ctx, e, err) })
		if err != nil {
			return &StepError{ParamExtraction, p.Name, "taking the parameter from an expression", err}
		}
	case err != nil:
		x.o.Log.DebugContext(ctx, "an optional parameter has its default", slog.String("id", x.event.ID),
			slog.String("param", p.Name), slog.Any("error", err))
		v = p.Default.Value
	}
	if v != nil {
		x.scope[p.Name] = v
	}
	return nil
}

// isGiven reports whether a source gave a value; "" counts as none, so that the default replaces it.
func isGiven(v any) bool { return v != nil && v != "" }

func (s Source) describe() string {
	switch {
	case s.APICall != nil:
		return "api_call"
	case s.File != nil:
		return "the file " + s.File.Path
	case s.Expression.Value != "":
		return "an expression"
	}
	return s.From.Value
}

func (x *execution) readSource(ctx context.Context, p *param) (any, error) {
	switch {
	case p.call != nil:
		return x.callObject(ctx, p.call)
	case p.expr != nil:
		v, err := p.expr.eval(ctx, x.scope)
		return jsonable(v), err
	case p.Source.File != nil:
		content, err := readFile(p.Source.File)
		if err == nil && p.Required && strings.TrimSpace(content) == "" {
			return nil, fmt.Errorf("%s is empty", p.Source.File.Path)
		}
		return content, err
	}
	first, rest, _ := strings.Cut(p.Source.From.Value, ".")
	switch first {
	case "env":
		v, ok := x.o.LookupEnv(rest)
		if !ok {
			return nil, fmt.Errorf("the variable %s is not set", rest)
		}
		return v, nil
	case "event", "config":
		doc, _ := x.scope[first].(map[string]any)
		return lookupPath(doc, strings.Split(rest, "."))
	}
	path := strings.Split(p.Source.From.Value, ".")
	if _, ok := x.scope[first]; ok {
		return lookupPath(x.scope, path)
	}
	event, _ := x.scope["event"].(map[string]any) // old files write id for event.id
	return lookupPath(event, path)
}

// callObject makes an api_call and decodes its answer. It notes when the answer is the event's
// resource and is being deleted.
func (x *execution) callObject(ctx context.Context, c *call) (map[string]any, error) {
	out, err := x.api.do(ctx, c, x.scope)
	if err != nil {
		return nil, err
	}
	object, err := decodeObject(out.body)
	if err == nil && x.event.ID != "" && object["id"] == x.event.ID && isGiven(object["deleted_time"]) {
		x.deleting = true
	}
	return object, err
}

// isStatusReport reports whether a call sends a status report.
func isStatusReport(method, url string) bool {
	url, _, _ = strings.Cut(url, "?")
	return (method == http.MethodPut || method == http.MethodPost || method == http.MethodPatch) &&
		strings.HasSuffix(strings.TrimSuffix(url, "/"), "/statuses")
}
