package adapter

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// workTask is a task with a standard report. Its verbs are more of params, of the manifest's
// annotations, of post, and of the report.
const workTask = `
params:
- {name: id, source: event.id}
- {name: cluster, required: true, source: {api_call: {method: GET, url: "/clusters/{{ .id }}"}}}
- {name: generation, source: cluster.generation, type: int, required: true}
- let: {is_deleting: has(cluster.deleted_time), before: '{}', targetCluster: '"edge-1"'}
%s
resources:
- name: work
  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: w, annotations: {hyperfleet.io/generation: "1"%s}}}
  discovery: {by_name: w}
  nested_discoveries: [{name: object, discovery: {by_name: o}}]
post:
  let: {pendingText: '"generation " + string(generation) + " is being made"'}
%s
  report:
    url: /clusters/{{ .id }}/statuses
    work:
      resource: work
      object: object
      ready: Ready
      waiting: {reason: Waiting}
      pending: {reason: Pending, message: {expression: pendingText}}
%s
`

func runWorkTask(t *testing.T, params, annotations, post, report string) (*Result, map[string]any) {
	t.Helper()
	cluster := `{"id": "` + clusterID + `", "generation": 3, "name": "n"}`
	api := newCLM(t, map[string]string{"GET " + clusterPath: cluster})
	task := fmt.Sprintf(workTask, params, annotations, post, report)
	r := newEngine(t, task, api, newShelf()).Run(t.Context(), clusterEvent(3))
	return r, api.report(t)
}

func messageOf(report map[string]any, kind string) string {
	list, _ := report["conditions"].([]any)
	return fmt.Sprint(conditionOf(list, kind)["message"])
}

func TestAStandardReportHasAllConditions(t *testing.T) {
	r, report := runWorkTask(t, "", "", "", `
    data:
      name: {expression: cluster.name}
      version: {feedback: version, default: none}
      made: {since: work.ordered}`)
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	got := strings.Join(conditionsOf(report), " ")
	if want := "Applied=False(Ordered) Available=False(Ordered) Health=True(Healthy) " +
		"Finalized=False(NotDeleting)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	data := report["data"].(map[string]any)
	if data["name"] != "n" || data["version"] != "none" || data["made"] != "2026-03-01T12:00:00.900000Z" ||
		report["observed_generation"] != 3.0 || report["adapter"] != "cl-test" {
		t.Errorf("%v", report)
	}
}

// Each name of let reads earlier names, and later expressions read all; payloads of HyperFleet's
// form, too.
func TestLaterExpressionsReadNamesOfLet(t *testing.T) {
	r, report := runWorkTask(t, `- let: {a: '"x"', b: a + a, c: '{"k": b}'}`, "", "",
		`    data: {c: {expression: c.k + b}}`)
	if r.Err() != nil || report["data"].(map[string]any)["c"] != "xxxx" {
		t.Errorf("%v %v", r.Err(), report["data"])
	}
}

// The rules of a task keep their places, and the first true one counts.
func TestOwnRungsPrecedeTheStandardRungs(t *testing.T) {
	for _, c := range []struct{ ladder, want string }{
		{"{ahead_of: ordered, if: 'true', reason: Mine}", "Mine"},
		{"{ahead_of: updating, if: 'true', reason: Mine}", "Ordered"},
		{"{ahead_of: waiting, if: 'false', reason: Mine}, {ahead_of: failed, if: '!failed', reason: Second}", "Second"},
	} {
		_, report := runWorkTask(t, "", "", "", "      ladder: ["+c.ladder+"]")
		if got := conditionsOf(report)[1]; got != "Available=False("+c.want+")" {
			t.Errorf("%s: %s, want %s", c.ladder, got, c.want)
		}
	}
}

// A template fails in no step of its own, so Health has its message alone.
func TestHealthReportsAFailedTemplate(t *testing.T) {
	r, report := runWorkTask(t, "", `, a: "{{ .nobody }}"`, "", "")
	message := messageOf(report, "Health")
	if r.Status != Failed || !strings.HasPrefix(message, "resources work: rendering the manifest: ") ||
		!strings.Contains(message, "nobody") {
		t.Errorf("%s: %q", r.Status, message)
	}
}

// If an expression of a report fails, the engine sends its own report of the failure, without null.
func TestAFailedExpressionIsReported(t *testing.T) {
	const building = "post_actions statusPayload: building the payload"
	for _, c := range []struct{ name, params, post, report, step, why string }{
		{"let of params", "- let: {a: cluster.nothing.here}", "", "",
			"a: evaluating let", "no such key: nothing"},
		{"an optional param", "- {name: a, source: {expression: 1 / 0}}", "", "",
			"a: taking the parameter from an expression", "division by zero"},
		{"when of a param", "- {name: a, when: {expression: 1 / 0}, source: {expression: '1'}}", "", "",
			"a: evaluating when", "division by zero"},
		{"when of a payload", "", "  payloads: [{name: p, when: {expression: cluster.nothing}, build: {a: '1'}}]", "",
			"post_actions p: deciding whether to build the payload", "no such key"},
		{"a rule", "", "", "      ladder: [{ahead_of: waiting, if: cluster.nothing, reason: R}]",
			building, "condition Applied: "},
		{"a reason", "", "", "      ladder: [{ahead_of: waiting, if: 'true', reason: {expression: cluster.nothing}}]",
			building, "no such key"},
		{"data", "", "", "    data: {a: {expression: cluster.nothing}}", building, "data: expression in line"},
		{"a payload", "", "  payloads: [{name: p, build: {a: {expression: 1 / 0}}}]", "",
			"post_actions p: building the payload", "division by zero"},
		{"an element of a list in a let", "- let: {a: '[{}].map(x, x.nothing)'}", "", "",
			"a: evaluating let", "no such key: nothing"},
		{"an element of a list in a param", "- {name: a, source: {expression: '[1, 0].map(x, 1 / x)'}}", "", "",
			"a: taking the parameter from an expression", "division by zero"},
		{"an element of a list in a payload", "",
			"  payloads: [{name: p, build: {a: {expression: '[0].all(x, 1 / x > 0)'}}}]",
			"", "post_actions p: building the payload", "division by zero"},
		{"an element of a list in data", "", "", "    data: {a: {expression: '[{}].exists(x, x.nothing)'}}", building,
			"data: expression in line"},
	} {
		r, report := runWorkTask(t, c.params, "", c.post, c.report)
		message := messageOf(report, "Health")
		if r.Status != Failed || !r.Reported || !strings.HasPrefix(message, c.step) || !strings.Contains(message, c.why) {
			t.Errorf("%s: %s %q", c.name, r.Status, message)
		}
		if text := fmt.Sprint(report["conditions"]); strings.Contains(text, "nil") {
			t.Errorf("%s: a condition is null: %s", c.name, text)
		}
	}
}

// HyperFleet's files expect null for an absent value. The engine logs such a null once for each expression.
func TestAnAbsentValueIsNullAndLogged(t *testing.T) {
	const task = `
params:
- {name: optional, source: {expression: event.nothing}}
- {name: withDefault, default: d, source: {expression: event.nothing}}
- {name: replaced, default: d, source: {expression: 1 / 0}}
preconditions:
- {name: p, capture: [{name: captured, expression: event.nothing}], expression: "true"}
post:
  payloads:
  - name: out
    build:
      absent: {expression: event.nothing.more}
      index: {expression: '[1][3]'}
      unbound: {expression: nobody}
      withDefault: {expression: event.nothing, default: 7}
      failing: {expression: 1 / 0, default: 8}
      field: {field: event.nothing}
`
	var log bytes.Buffer
	e := newEngine(t, task, nil, nil, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 2 {
		r := e.Run(t.Context(), clusterEvent(1))
		want := `{"absent":null,"failing":8,"field":null,"index":null,"unbound":null,"withDefault":7}`
		if r.Err() != nil || r.Params["out"] != want || r.Params["withDefault"] != "d" || r.Params["replaced"] != "d" {
			t.Errorf("%v %v %v", r.Err(), r.Params["out"], r.Params["replaced"])
		}
		if len(r.Warnings) != 7 { // all but those whose default stands for absence, and the field
			t.Errorf("%d warnings: %v", len(r.Warnings), r.Warnings)
		}
	}
	if n := strings.Count(log.String(), "an expression failed"); n != 7 {
		t.Errorf("the log has %d warnings in two runs, want one for each expression:\n%s", n, &log)
	}
}
