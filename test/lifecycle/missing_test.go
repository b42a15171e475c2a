package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/adapter/transporttest"
	"atoll.dev/test/testworld"
)

// fileTask needs a file, and cannot report without it. Its times have whole
// seconds, as those of most tasks.
const fileTask = `
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
	w := testworld.Start(t, testworld.Options{
		Entities: strings.Replace(entities, "cl-maestro, cl-namespace", "cl-lost", 1)})
	file := filepath.Join(t.TempDir(), "token")
	w.StartAdapter(testworld.AdapterOptions{
		Config:    []byte("adapter: {name: cl-lost}\nclients: {broker: {subscription_id: cl-lost, topic: clusters}}\n"),
		Task:      []byte(strings.Replace(fileTask, "FILE", file, 1)),
		Transport: transporttest.NewMemory(),
	})
	cluster := w.Create(clusters, "Cluster", "lost", `{}`, nil)
	w.Await("the missing file is reported", func() error {
		statuses, err := w.Client.Statuses(t.Context(), clusters, cluster.ID)
		if err != nil {
			return err
		}
		if len(statuses) != 1 || statuses[0].Adapter != "cl-lost" || len(statuses[0].Conditions) != 3 {
			return fmt.Errorf("statuses %+v", statuses)
		}
		for _, c := range statuses[0].Conditions {
			if c.Status != "False" || c.Reason != "ParameterExtractionFailed" ||
				!strings.Contains(c.Message, "no such file") {
				return fmt.Errorf("condition %+v", c)
			}
		}
		return nil
	})
	if err := os.WriteFile(file, []byte("t0ken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Reconcile(t.Context(), clusters, cluster.ID, "the file is there"); err != nil {
		t.Fatal(err)
	}
	w.AwaitReconciled(clusters, cluster.ID, 1)
}
