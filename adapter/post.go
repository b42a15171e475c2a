package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"atoll.dev/cluster"
)

// runPostPhase is the last phase: it builds the payloads and runs the post actions. When these could not
// report, the engine reports the failure itself.
func (x *execution) runPostPhase(ctx context.Context) *StepError {
	x.built = x.o.Now()
	err := x.runPostActions(ctx)
	if x.overtaken {
		return err // the task runs again
	}
	lost := x.result.Errors[ParamExtraction] != nil
	if x.result.Reported || err == nil && !lost {
		return err
	}
	if err != nil && (!x.preventsReport(err) || !lost && !x.hasReportAction()) {
		return err
	}
	first := err
	for _, p := range []Phase{ParamExtraction, Preconditions, Resources} {
		if e, ok := errors.AsType[*StepError](x.result.Errors[p]); ok {
			first = e
			break
		}
	}
	if own := x.reportFailure(ctx, first); own != nil {
		return &StepError{PostActions, "status", "reporting the failure", own}
	}
	return err
}

// preventsReport reports whether a failure of the last phase is the task's own: its report could not
// be built, or CLM rejected its content. An unreachable CLM or a refused caller is no such failure.
func (x *execution) preventsReport(err *StepError) bool {
	api, ok := errors.AsType[*APIError](err.Err)
	return !ok || api.Status == http.StatusBadRequest || api.Status == http.StatusUnprocessableEntity
}

// hasReportAction reports whether the task has an action that reports a status.
func (x *execution) hasReportAction() bool {
	for _, a := range x.task.actions {
		if a.call != nil && isStatusReport(a.call.method, a.call.url.text) {
			return true
		}
	}
	return false
}

// runPostActions builds the payloads and runs the actions until the first failure.
func (x *execution) runPostActions(ctx context.Context) *StepError {
	unbuilt := map[string]bool{} // payloads whose condition does not hold
	if err := x.bindReportNames(); err != nil {
		return err
	}
	if err := x.evaluateLet(ctx, PostActions, x.task.let); err != nil {
		return err
	}
	for i := range x.task.payloads {
		p := &x.task.payloads[i]
		if p.when != nil {
			yes, err := x.evaluateCondition(ctx, p.when)
			if err != nil {
				return &StepError{PostActions, p.name, "deciding whether to build the payload", err}
			}
			if !yes {
				unbuilt[p.name] = true
				continue
			}
		}
		v, err := p.build.build(ctx, x.frame(ctx))
		if err != nil {
			return &StepError{PostActions, p.name, "building the payload", err}
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return &StepError{PostActions, p.name, "writing the payload as JSON", err}
		}
		x.scope[p.name] = string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	}
	for i := range x.task.actions {
		r, err := x.runPostAction(ctx, &x.task.actions[i], unbuilt)
		gone := x.isSubjectMissing(err)
		switch {
		case gone:
			r.Status, r.SkipReason = Skip, "ResourceNotFound: "+err.Error()
		case err != nil:
			r.Status, r.Err = Failed, err
		}
		x.result.PostActions = append(x.result.PostActions, r)
		if gone && !x.isResourceMissing(err) {
			return nil // as the original: its subject does not exist, so the following actions are skipped
		}
		if err != nil {
			return &StepError{PostActions, r.Name, "doing the post action", err}
		}
	}
	return nil
}

// isSubjectMissing reports whether a post action failed because its subject does not exist. A 404 without a
// code does not come from CLM; a dry run counts it all the same, as the original does.
func (x *execution) isSubjectMissing(err error) bool {
	api, ok := errors.AsType[*APIError](err)
	return ok && (api.isResourceMissing() || x.api.noRetries && api.Status == http.StatusNotFound && api.Code == "")
}

// isResourceMissing reports whether a call failed because the event's resource does not exist.
func (x *execution) isResourceMissing(err error) bool {
	api, ok := errors.AsType[*APIError](err)
	return ok && api.isResourceMissing() && x.concernsResource(api.URL)
}

// runPostAction runs one action. It skips an action whose call has one of the unbuilt payloads.
func (x *execution) runPostAction(ctx context.Context, a *action, unbuilt map[string]bool) (PostActionResult, error) {
	r := PostActionResult{Name: a.name, Status: Success}
	skip := func(reason string) (PostActionResult, error) {
		r.Status, r.SkipReason = Skip, reason
		return r, nil
	}
	if a.call != nil {
		for name := range unbuilt {
			if a.call.body.reads(name) {
				return skip(fmt.Sprintf("its payload %s was not built", name))
			}
		}
	}
	if a.when != nil {
		yes, err := x.evaluateCondition(ctx, a.when)
		if err != nil {
			return r, err
		}
		if !yes {
			return skip("its condition is false: " + a.when.program.String())
		}
	}
	x.log(ctx, a.log)
	if a.call == nil {
		return r, nil
	}
	r.Called = true
	request, err := x.api.render(a.call, x.scope)
	if err != nil {
		return r, err
	}
	send, reports := x.api.send, isStatusReport(a.call.method, request.url.Path)
	if reports {
		send = x.sendReport
	}
	out, err := send(ctx, request)
	if out != nil {
		r.HTTPStatus = out.status
	}
	if err == nil && reports {
		x.result.Reported = true
	}
	return r, err
}

// maxMessage is the longest message in the engine's own report, in bytes.
const maxMessage = 2048

// reportFailure sends the engine's own report of a run whose task could not report. The run
// observed nothing, so Applied and Available of the last report on this generation stay; Health has
// the failure.
func (x *execution) reportFailure(ctx context.Context, why *StepError) error {
	if x.event.Href == "" {
		return errors.New("the event has no href")
	}
	message := why.Error()
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "..."
	}
	reason := "AdapterExecutionFailed"
	if why.Phase == ParamExtraction {
		reason = "ParameterExtractionFailed"
	}
	u, err := x.api.resolve(x.event.Href + "/statuses")
	if err != nil {
		return err
	}
	last, _, err := x.readReport(ctx, *u, x.o.Config.Adapter.Name)
	if err != nil {
		return fmt.Errorf("reading the last report: %w", err)
	}
	generation := max(x.event.Generation, 1)
	var conditions []map[string]any
	for _, kind := range []string{"Applied", "Available", "Health"} {
		c := map[string]any{"type": kind, "status": "False", "reason": reason, "message": message}
		if was := last.condition(kind); was != nil && kind != "Health" && last.Generation == generation {
			c = map[string]any{"type": kind, "status": was.Status, "reason": was.Reason, "message": was.Message}
		}
		conditions = append(conditions, c)
	}
	report := map[string]any{
		"adapter": string(x.o.Config.Adapter.Name), "observed_generation": generation,
		"observed_time": x.o.Now().UTC().Truncate(time.Microsecond), "conditions": conditions,
	}
	if len(last.Data) > 0 && string(last.Data) != "null" {
		report["data"] = last.Data
	}
	body, err := json.Marshal(report)
	if err != nil {
		return err
	}
	if _, err := x.sendReport(ctx, apiRequest{call: &call{method: http.MethodPut}, url: u, body: body}); err != nil {
		return err
	}
	x.result.Reported = true
	x.o.Log.InfoContext(ctx, "the engine reported a failure in place of the task", slog.String("id", x.event.ID),
		slog.String("reason", reason))
	return nil
}

// lastReport has the members of an adapter's last report that the engine reads.
type lastReport struct {
	Adapter    cluster.Adapter `json:"adapter"`
	Generation int64           `json:"observed_generation"`
	ObservedAt time.Time       `json:"last_report_time"`
	Conditions []lastCondition `json:"conditions"`
	Data       json.RawMessage `json:"data"`
}

type lastCondition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (r *lastReport) condition(kind string) *lastCondition {
	for i := range r.Conditions {
		if r.Conditions[i].Type == kind {
			return &r.Conditions[i]
		}
	}
	return nil
}

// readReport reads an adapter's last report; false when there is none. A report replaces the one
// before it, so the engine's own report carries on its data: tasks remember there where they placed
// objects.
func (x *execution) readReport(ctx context.Context, statuses url.URL, adapter cluster.Adapter) (none lastReport,
	found bool, err error) {
	statuses.RawQuery = "size=100"
	out, err := x.api.send(ctx, apiRequest{call: &call{method: http.MethodGet}, url: &statuses})
	if api, ok := errors.AsType[*APIError](err); ok && api.Status == http.StatusNotFound {
		return none, false, nil // the answer to the report itself decides what this means
	}
	if err != nil {
		return none, false, err
	}
	var list struct {
		Items []lastReport `json:"items"`
	}
	if err := json.Unmarshal(out.body, &list); err != nil {
		return none, false, err
	}
	for _, report := range list.Items {
		if report.Adapter == adapter {
			return report, true, nil
		}
	}
	return none, false, nil
}
