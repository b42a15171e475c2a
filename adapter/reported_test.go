package adapter

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// reportedTask reports the state that it finds, with a time in whole seconds, as the original's
// task files do.
const reportedTask = `
params: [{name: available, source: env.AVAILABLE, required: true}]
post:
  payloads:
  - name: status
    build:
      adapter: cl-test
      observed_generation: {expression: event.generation}
      observed_time: '{{ now | date "2006-01-02T15:04:05Z07:00" }}'
      conditions:
      - {type: Applied, status: "True", reason: Done}
      - {type: Available, status: "{{ .available }}", reason: Looked}
      - {type: Health, status: "True", reason: Fine}
  post_actions: [{name: report, api_call: {method: PUT, url: "{{ .event.href }}/statuses", body: "{{ .status }}"}}]
`

// reports are CLM's statuses of one resource, by the original's rules: 204 for an older report, 201
// with the stored one for an equal time, 400 for a time too far from CLM's clock.
type reports struct {
	*httptest.Server
	now        func() time.Time
	generation int64

	mu     sync.Mutex
	stored map[string]map[string]any // by adapter
	puts   []int                     // the answers
}

func newReports(t testing.TB, now func() time.Time) *reports {
	r := &reports{now: now, generation: 1, stored: map[string]map[string]any{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *reports) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Header().Set("Date", r.now().UTC().Format(http.TimeFormat))
	if req.Method == http.MethodGet {
		items := slices.Collect(maps.Values(r.stored))
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "total": len(items)})
		return
	}
	var body map[string]any
	if json.NewDecoder(req.Body).Decode(&body) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	status, shown := r.put(body)
	r.puts = append(r.puts, status)
	w.WriteHeader(status)
	if shown != nil {
		_ = json.NewEncoder(w).Encode(shown)
	}
}

func (r *reports) put(body map[string]any) (int, map[string]any) {
	at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(body["observed_time"]))
	ahead := at.Sub(r.now())
	if err != nil || ahead > 5*time.Minute || ahead < -30*time.Minute {
		return http.StatusBadRequest, map[string]any{"code": "HYPERFLEET-VAL-000"}
	}
	adapter, generation := body["adapter"].(string), body["observed_generation"].(float64)
	available := body["conditions"].([]any)[1].(map[string]any)["status"]
	body["last_report_time"] = at.Format(time.RFC3339Nano)
	was := r.stored[adapter]
	if int64(generation) > r.generation {
		return http.StatusNoContent, nil
	}
	if was != nil {
		last, _ := time.Parse(time.RFC3339Nano, was["last_report_time"].(string))
		same := was["observed_generation"] == generation
		switch {
		case generation < was["observed_generation"].(float64), same && at.Before(last), available == "Unknown":
			return http.StatusNoContent, nil
		case same && at.Equal(last):
			return http.StatusCreated, was
		}
	}
	r.stored[adapter] = body
	return http.StatusCreated, body
}

func (r *reports) available() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stored["cl-test"] == nil {
		return "nothing"
	}
	return r.stored["cl-test"]["conditions"].([]any)[1].(map[string]any)["status"].(string)
}

// reporter is one process of an adapter with a clock of its own.
type reporter struct {
	*testing.T
	engine *Engine
	api    *reports
	clock  time.Duration // what its clock is wrong by
	sees   string        // the value of Available
}

func (r *reports) reporter(t *testing.T) *reporter {
	x := &reporter{T: t, api: r}
	x.engine = newEngine(t, reportedTask, nil, nil, func(o *Options) {
		o.Config.Clients.API.BaseURL, o.API = r.URL, r.Client()
		o.Now = func() time.Time { return r.now().Add(x.clock) }
		o.LookupEnv = func(name string) (string, bool) { return x.sees, name == "AVAILABLE" }
	})
	return x
}

// see runs the task on the present state and requires that CLM stores its report.
func (x *reporter) see(available string) {
	x.Helper()
	x.sees = available
	if r := x.engine.Run(x.Context(), clusterEvent(1)); !r.Reported || r.Err() != nil {
		x.Errorf("Available=%s: reported %v, %v", available, r.Reported, r.Err())
	}
	if got := x.api.available(); got != available {
		x.Errorf("the adapter sees Available=%s, and CLM shows %s", available, got)
	}
}

// A report that CLM discards as old is built again: after any step of a clock CLM shows the
// adapter's last observation.
func TestReportsAreInOrderWhenClocksStep(t *testing.T) {
	for name, steps := range map[string][]time.Duration{
		"back by 8 s":                    {0, -8 * time.Second, -7 * time.Second},
		"ahead by 8 s, and back":         {0, 8 * time.Second, 0, time.Second},
		"ahead by 4 min, and back":       {0, 4 * time.Minute, 0, 0},
		"ahead by an hour, and back":     {0, time.Hour, 0, time.Hour},
		"back by an hour, and forward":   {0, -time.Hour, 0, -time.Hour},
		"standing still within a second": {0, 0, 0, 0},
	} {
		for _, way := range []string{"one process", "a new process each time", "two replicas in turn"} {
			t.Run(name+", "+way, func(t *testing.T) {
				at := today()
				api := newReports(t, func() time.Time { return at })
				first, second := api.reporter(t), api.reporter(t)
				for i, step := range steps {
					x := first
					switch {
					case way == "two replicas in turn" && i%2 == 1:
						x = second
					case way == "a new process each time":
						x = api.reporter(t)
					}
					x.clock = step
					x.see([]string{"True", "False"}[i%2])
				}
			})
		}
	}
}

// Reports that CLM discards for other reasons.
func TestDiscardedReportsAreClassified(t *testing.T) {
	at := today()
	api := newReports(t, func() time.Time { return at })
	x := api.reporter(t)
	x.see("True")
	at, x.sees = at.Add(time.Second), "Unknown"
	if r := x.engine.Run(t.Context(), clusterEvent(1)); r.Err() != nil || len(api.puts) != 2 {
		t.Errorf("Unknown after True is discarded by contract: %v after %v", r.Err(), api.puts)
	}
	x.sees = "True"
	if r := x.engine.Run(t.Context(), clusterEvent(5)); r.Err() == nil || !strings.Contains(r.Err().Error(),
		"discarded the report on generation 5") {
		t.Errorf("a report on a generation that CLM does not have counts as delivered: %v", r.Err())
	}
	api.generation = 5
	if r := x.engine.Run(t.Context(), clusterEvent(5)); r.Err() != nil {
		t.Error(r.Err())
	}
	before := len(api.puts)
	if r := x.engine.Run(t.Context(), clusterEvent(1)); r.Err() != nil || len(api.puts) != before+1 {
		t.Errorf("a report on an old generation is of no use, and no failure: %v after %v", r.Err(), api.puts[before:])
	}
}

// CLM that always has a later report does not keep a task running for ever.
func TestAnAlwaysOvertakenTaskFails(t *testing.T) {
	at := today()
	api := newReports(t, func() time.Time { return at })
	x := api.reporter(t)
	x.see("True")
	api.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at = at.Add(time.Second)
		api.stored["cl-test"]["last_report_time"] = at.Add(time.Minute).Format(time.RFC3339Nano)
		api.ServeHTTP(w, req)
	})
	r := x.engine.Run(t.Context(), clusterEvent(1))
	if r.Err() == nil || len(api.puts) != 1+1+maxOvertaken {
		t.Errorf("%v after %v", r.Err(), api.puts)
	}
}
