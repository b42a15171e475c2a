package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/adapter/transporttest"
	"atoll.dev/internal/pgtest"
)

// lostTask needs a file, and cannot report without it. Its times have whole
// seconds, as those of most tasks.
const lostTask = `
params:
- {name: clusterId, source: event.id, required: true}
- {name: generation, source: event.generation, type: int, required: true}
- {name: token, required: true, source: {file: {path: FILE}}}
post:
  payloads:
  - name: status
    build:
      adapter: "{{ .adapter.name }}"
      observed_generation: {expression: generation}
      observed_time: '{{ now | date "2006-01-02T15:04:05Z07:00" }}'
      conditions:
      - {type: Applied, status: "True", reason: Done, message: "with {{ .token }}"}
      - {type: Available, status: "True", reason: Done, message: ""}
      - {type: Health, status: "True", reason: Healthy, message: ""}
  post_actions:
  - {name: report, api_call: {method: PUT, url: "/clusters/{{ .clusterId }}/statuses", body: "{{ .status }}"}}
`

// CLM shows a missing required parameter; when it is set, the next run's report counts, also within
// the same second.
func TestAMissingParameterIsReportedUntilItIsSet(t *testing.T) {
	r, err := Start(t.Context(), Options{
		DSN: pgtest.DSN(t), Log: testLog(t),
		Entities: strings.Replace(entities, "cl-maestro, cl-namespace", "cl-lost", 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(t.TempDir(), "token")
	if err := r.Run(t.Context(), Adapter{
		Config:    []byte("adapter: {name: cl-lost}\nclients: {broker: {subscription_id: cl-lost, topic: clusters}}\n"),
		Task:      []byte(strings.Replace(lostTask, "FILE", file, 1)),
		Transport: transporttest.NewMemory(),
	}); err != nil {
		t.Fatal(err)
	}
	var cluster Resource
	if err := r.Call(t.Context(), "POST", "/clusters", map[string]any{"kind": "Cluster", "name": "lost",
		"spec": map[string]any{}}, &cluster); err != nil {
		t.Fatal(err)
	}
	path := "/clusters/" + cluster.ID
	if err := Await(t.Context(), func() error {
		var statuses struct {
			Items []struct {
				Adapter    string      `json:"adapter"`
				Conditions []Condition `json:"conditions"`
			} `json:"items"`
		}
		if err := r.Call(t.Context(), "GET", path+"/statuses", nil, &statuses); err != nil {
			return err
		}
		if len(statuses.Items) != 1 || statuses.Items[0].Adapter != "cl-lost" ||
			len(statuses.Items[0].Conditions) != 3 {
			return fmt.Errorf("statuses %+v", statuses.Items)
		}
		for _, c := range statuses.Items[0].Conditions {
			if c.Status != "False" || c.Reason != "ParameterExtractionFailed" ||
				!strings.Contains(c.Message, "no such file") {
				return fmt.Errorf("condition %+v", c)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("t0ken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Call(t.Context(), "POST", path+"/reconcile", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := Await(t.Context(), func() error {
		if err := r.Call(t.Context(), "GET", path, nil, &cluster); err != nil {
			return err
		}
		if !cluster.Reconciled() {
			return errors.New("not reconciled")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
