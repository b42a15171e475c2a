package adapter

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

func namespaceTask(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("testdata/dryrun/namespace-task.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// clusterAnswer is the answer to GET clusterPath.
const clusterAnswer = `{"id":"x","name":"c","generation":3,"spec":{"provider":"aws"},` +
	`"status":{"conditions":[{"type":"Reconciled","status":"False"}]}}`

func TestATaskAppliesItsResourcesAndReports(t *testing.T) {
	api := newCLM(t, map[string]string{"GET " + clusterPath: clusterAnswer})
	s := newShelf()
	e := newEngine(t, namespaceTask(t), api, s)
	r := e.Run(t.Context(), clusterEvent(3))
	if r.Status != Success || !r.Reported || r.Err() != nil {
		t.Fatalf("%+v %v", r, r.Err())
	}
	got := conditionsOf(api.report(t))
	want := []string{"Applied=True(NamespaceApplied)", "Available=Unknown(Pending)", "Health=True(Healthy)",
		"Finalized=False(Deletion)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	rep := api.report(t)
	if rep["observed_generation"] != 3.0 || rep["observed_time"] != "2026-03-01T12:00:00.9Z" ||
		rep["adapter"] != "cl-test" {
		t.Errorf("%v", rep)
	}
	settings := s.objects[identity{"v1", "ConfigMap", clusterID, "settings"}]
	if diff := cmp.Diff(map[string]any{"region": "local-1", "retries": "3"}, settings["data"]); diff != "" {
		t.Error(diff)
	}
	s.objects[identity{"v1", "Namespace", "", clusterID}]["status"] = map[string]any{"phase": "Active"}
	r = e.Run(t.Context(), clusterEvent(3))
	if r.Resources[0].Operation != Skipped || r.Resources[0].ObjectName != clusterID {
		t.Errorf("%+v", r.Resources)
	}
	if got := conditionsOf(api.report(t))[1]; got != "Available=True(Active)" {
		t.Error(got)
	}
}

func TestAnUnmetPreconditionSkipsResourcesAndIsReported(t *testing.T) {
	api := newCLM(t, map[string]string{"GET " + clusterPath: strings.Replace(clusterAnswer, "aws", "moon", 1)})
	s := newShelf()
	r := newEngine(t, namespaceTask(t), api, s).Run(t.Context(), clusterEvent(3))
	if r.Status != Success || !r.Skipped || len(s.log) != 0 || !strings.Contains(r.SkipReason,
		"cluster.spec.provider in [aws gcp] (actual: moon)") {
		t.Errorf("%+v %v", r, s.log)
	}
	if got := conditionsOf(api.report(t))[2]; got != "Health=False(ResourcesSkipped)" {
		t.Error(got)
	}
}

// Defect 7.2 p of the original: no report.
func TestAMissingRequiredParamIsReported(t *testing.T) {
	const task = `
params:
- {name: clusterId, source: event.id, required: true}
- {name: token, source: env.TOKEN, required: true}
- {name: later, source: event.generation}
post:
  payloads:
  - name: status
    build:
      adapter: "{{ .adapter.name }}"
      conditions:
      - {type: Health, status: "False", reason: {expression: '"ExecutionFailed:" + adapter.executionError.phase'}, message: {expression: adapter.executionError.step}}
      observed_time: '{{ now | date "2006-01-02T15:04:05.000Z07:00" }}'
      OWN
  post_actions:
  - {name: report, when: {expression: "true"}, api_call: {method: PUT, url: "/clusters/{{ .clusterId }}/statuses", body: "{{ .status }}"}}
`
	for _, c := range []struct {
		name, own string
		want      []string
	}{
		{"by the task itself", "", []string{"Health=False(ExecutionFailed:param_extraction)"}},
		{"by the engine, when the task's payload needs what is missing", `secret: "{{ .token }}"`,
			[]string{"Applied=False(ParameterExtractionFailed)", "Available=False(ParameterExtractionFailed)",
				"Health=False(ParameterExtractionFailed)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newCLM(t, nil)
			r := newEngine(t, strings.Replace(task, "OWN", c.own, 1), api, nil).Run(t.Context(), clusterEvent(2))
			if r.Status != Failed || !r.Reported || r.Errors[ParamExtraction] == nil {
				t.Errorf("%+v", r)
			}
			report := api.report(t)
			if diff := cmp.Diff(c.want, conditionsOf(report)); diff != "" {
				t.Error(diff)
			}
			if c.own != "" && (report["observed_generation"] != 2.0 ||
				report["observed_time"] != "2026-03-01T12:00:00.9Z") {
				t.Errorf("%v: not the time of the report", report)
			}
		})
	}
}

// A report replaces the last one. A failed run keeps the task's data, such as the placement.
func TestTheEnginesOwnReportKeepsTheData(t *testing.T) {
	const task = `
params: [{name: token, source: env.TOKEN, required: true}]
post:
  payloads: [{name: status, build: {secret: "{{ .token }}"}}]
  post_actions: [{name: report, api_call: {method: PUT, url: "{{ .event.href }}/statuses", body: "{{ .status }}"}}]
`
	const last = `{"items":[{"adapter":"other","data":{"at":"mc-2"}},{"adapter":"cl-test","data":{"at":"mc-1"}}]}`
	api := newCLM(t, map[string]string{"GET " + clusterPath + "/statuses": last})
	e := newEngine(t, task, api, nil)
	if r := e.Run(t.Context(), clusterEvent(1)); !r.Reported {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(map[string]any{"at": "mc-1"}, api.report(t)["data"]); diff != "" {
		t.Error(diff)
	}
	api.answers["GET "+clusterPath+"/statuses"] = func() (int, string) { return 503, "{}" }
	api.requests = nil
	if r := e.Run(t.Context(), clusterEvent(1)); r.Reported || r.Errors[PostActions] == nil {
		t.Errorf("%+v", r)
	}
	for _, r := range api.requests {
		if r.method == "PUT" {
			t.Errorf("reported without knowing the last report: %s", r.body)
		}
	}
}

// A run that could not observe keeps known conditions: an outage of the database does not make
// Available False. Conditions of another generation are unknown.
func TestTheEnginesOwnReportKeepsKnownConditions(t *testing.T) {
	const task = `
params: [{name: token, source: env.TOKEN, required: true}]
post:
  payloads: [{name: status, build: {secret: "{{ .token }}"}}]
  post_actions: [{name: report, api_call: {method: PUT, url: "{{ .event.href }}/statuses", body: "{{ .status }}"}}]
`
	const last = `{"items":[{"adapter":"cl-test","observed_generation":2,"data":{"id":9007199254740993},"conditions":[
		{"type":"Applied","status":"True","reason":"Done"},{"type":"Available","status":"True","reason":"AsExpected","message":"the API answers"},{"type":"Health","status":"True","reason":"Healthy"}]}]}`
	api := newCLM(t, map[string]string{"GET " + clusterPath + "/statuses": last})
	e := newEngine(t, task, api, nil)
	for generation, want := range map[int64][]string{
		2: {"Applied=True(Done)", "Available=True(AsExpected)", "Health=False(ParameterExtractionFailed)"},
		3: {"Applied=False(ParameterExtractionFailed)", "Available=False(ParameterExtractionFailed)",
			"Health=False(ParameterExtractionFailed)"},
	} {
		if r := e.Run(t.Context(), clusterEvent(generation)); !r.Reported {
			t.Errorf("%+v", r)
		}
		report := api.report(t)
		if diff := cmp.Diff(want, conditionsOf(report)); diff != "" || report["observed_generation"] != float64(
			generation) {
			t.Errorf("generation %d: %s in %v", generation, diff, report)
		}
		if sent := api.requests[len(api.requests)-1].body; !strings.Contains(sent, "9007199254740993") {
			t.Errorf("the data have changed: %s", sent)
		}
	}
}

// A report that CLM refuses is no report: the engine makes one.
func TestARefusedReportIsReplaced(t *testing.T) {
	const task = `
post:
  payloads: [{name: status, build: {adapter: x, conditions: {expression: nobody.knows}}}]
  post_actions: [{name: report, api_call: {method: PUT, url: "{{ .event.href }}/statuses", body: "{{ .status }}"}}]
`
	api := newCLM(t, nil)
	first := true
	api.answers["PUT "+clusterPath+"/statuses"] = func() (int, string) {
		if first {
			first = false
			return 400, `{"code":"HYPERFLEET-VAL-001","detail":"conditions are required"}`
		}
		return 201, `{}`
	}
	r := newEngine(t, task, api, nil).Run(t.Context(), clusterEvent(1))
	if r.Status != Failed || !r.Reported || conditionsOf(
		api.report(t))[1] != "Available=False(AdapterExecutionFailed)" {
		t.Errorf("%+v %v", r, api.report(t))
	}
}

func TestNotFoundAnswersAreClassified(t *testing.T) {
	const task = `
params: [{name: id, source: event.id}]
preconditions:
- name: a
  api_call: {method: GET, url: "URL"}
post:
  payloads: [{name: status, build: {adapter: x, status: {expression: adapter.executionStatus}, skipped: {expression: adapter.resourcesSkipped}}}]
  post_actions: [{name: report, api_call: {method: PUT, url: "/clusters/{{ .id }}/statuses", body: "{{ .status }}"}}]
`
	for _, c := range []struct {
		name, url, code string
		gone            bool
		status          Status
	}{
		{"the resource is gone", "/clusters/{{ .id }}", "HYPERFLEET-NTF-002", true, Success},
		{"its statuses are", "/clusters/{{ .id }}/statuses", "HYPERFLEET-NTF-001", true, Success},
		{"something else is", "/channels/stable", "HYPERFLEET-NTF-001", false, Success},
		{"the route is wrong", "/clutsers/{{ .id }}", "HYPERFLEET-NTF-000", false, Failed},
		{"it is not CLM", "/clusters/{{ .id }}", "", false, Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newCLM(t, nil)
			path := "/api/hyperfleet/v1" + strings.Replace(c.url, "{{ .id }}", clusterID, 1)
			api.answers["GET "+path] = func() (int, string) { return 404, `{"code":"` + c.code + `"}` }
			r := newEngine(t, strings.Replace(task, "URL", c.url, 1), api, nil).Run(t.Context(), clusterEvent(1))
			if r.Gone != c.gone || r.Status != c.status || !r.Skipped || r.Reported == c.gone {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestApplyStopsAtAFailureAndDeleteContinues(t *testing.T) {
	const one = `
- name: NAME
  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: NAME, namespace: x, annotations: {hyperfleet.io/generation: "1"}}}
  discovery: {namespace: x, by_name: NAME}
`
	names := []string{"first", "second", "third"}
	task := func(lifecycle string) string {
		text := "params: [{name: is_deleting, source: {expression: 'event.generation > 1'}}]\nresources:"
		for _, n := range names {
			text += strings.TrimRight(strings.ReplaceAll(one, "NAME", n), "\n") + lifecycle
		}
		return text + "\npost: {payloads: [{name: p, build: {adapter: {expression: toJson(adapter.resourceErrors)}}}]}"
	}
	boom := errors.New("boom")
	s := newShelf()
	s.fail = func(op, name string) error {
		if name == "second" {
			return boom
		}
		return nil
	}
	e := newEngine(t, task("\n  lifecycle: {delete: {when: {expression: is_deleting}}}"), newCLM(t, nil), s)
	r := e.Run(t.Context(), clusterEvent(1))
	if len(r.Resources) != 2 || r.Resources[1].Status != Failed || !errors.Is(r.Err(), boom) {
		t.Errorf("%+v", r.Resources)
	}
	for _, n := range names {
		s.objects[identity{"v1", "ConfigMap", "x", n}] = Object{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": n, "namespace": "x"}}
	}
	r = e.Run(t.Context(), clusterEvent(2))
	if len(r.Resources) != 3 || r.Resources[2].Operation != Deleted || len(s.objects) != 1 ||
		!errors.Is(r.Err(), boom) {
		t.Errorf("%+v %v", r.Resources, s.objects)
	}
	if p := r.Params["p"].(string); !strings.Contains(p, `\"second\"`) || strings.Contains(p, `\"third\"`) {
		t.Error(p)
	}
}

func TestExecutionsRunConcurrently(t *testing.T) {
	api := newCLM(t, map[string]string{})
	s := newShelf()
	e := newEngine(t, namespaceTask(t), api, s)
	const n = 16
	for i := range n {
		api.answers["GET /api/hyperfleet/v1/clusters/c-"+string(rune('a'+i))] = func() (int, string) {
			return 200, clusterAnswer
		}
	}
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			id := "c-" + string(rune('a'+i))
			for range 5 {
				r := e.Run(t.Context(), Event{ID: id, Kind: "Cluster", Href: "/api/hyperfleet/v1/clusters/" + id,
					Generation: 3})
				if r.Err() != nil || r.Discovered["clusterNamespace"].(Object)["metadata"].(map[string]any)["name"] != id {
					return errors.Join(r.Err(), errors.New(id))
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if len(s.objects) != 2*n {
		t.Errorf("%d objects", len(s.objects))
	}
}

// An expression above its cost limit fails, and the task continues.
func TestAnExpensiveExpressionFails(t *testing.T) {
	const task = `
params: [{name: p, default: cheap, source: {expression: "lists.range(1000000000).size()"}}, {name: q, default: cheap, source: {expression: "'a'.replace('a', 'PAD').replace('x', 'PAD')"}}]
`
	r := newEngine(t, strings.ReplaceAll(task, "PAD", strings.Repeat("x", 20_000)), nil, nil).Run(t.Context(),
		clusterEvent(1))
	if r.Status != Success || r.Params["p"] != "cheap" || r.Params["q"] != "cheap" {
		t.Errorf("%v %.20v %.20v", r.Err(), r.Params["p"], r.Params["q"])
	}
}
