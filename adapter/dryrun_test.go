package adapter

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func readTestdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/dryrun", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// golden compares with a file below testdata/dryrun.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join("testdata/dryrun", name), got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(readTestdata(t, name)), string(got)); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", name, diff)
	}
}

func TestDryRuns(t *testing.T) {
	for _, c := range []struct{ name, config, task, responses, discovery string }{
		{"kubernetes", "config.yaml", "namespace-task.yaml", "responses.json", "discovery.json"},
		{"kubernetes-delete", "config.yaml", "namespace-task.yaml", "responses-delete.json", "discovery-delete.json"},
		{"maestro", "maestro-config.yaml", "maestro-task.yaml", "responses.json", "discovery-maestro.json"},
		{"maestro-delete", "maestro-config.yaml", "maestro-task.yaml", "responses-delete.json",
			"discovery-maestro.json"},
		{"showcase", "config.yaml", "showcase-task.yaml", "responses.json", ""},
		{"nothing", "config.yaml", "namespace-task.yaml", "", ""},
		{"render-error", "config.yaml", "broken-task.yaml", "responses.json", ""},
		{"post-action-not-found", "config.yaml", "broken-task.yaml", "responses-gone.json", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := LoadConfig(filepath.Join("testdata/dryrun", c.config), nil)
			if err != nil {
				t.Fatal(err)
			}
			task, err := LoadTask(filepath.Join("testdata/dryrun", c.task))
			if err != nil {
				t.Fatal(err)
			}
			d := DryRun{
				Config: config, Task: task, Event: readTestdata(t, "event.json"),
				LookupEnv: func(name string) (string, bool) {
					v, ok := map[string]string{"REGION": "r-1", "OTHER": "hidden"}[name]
					return v, ok
				},
				Now: func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC) },
			}
			if c.responses != "" {
				d.Responses = readTestdata(t, c.responses)
			}
			if c.discovery != "" {
				d.Discovery = readTestdata(t, c.discovery)
			}
			trace, err := d.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := trace.WriteJSON(&b, WithBodies); err != nil {
				t.Fatal(err)
			}
			golden(t, c.name+".golden.json", b.Bytes())
			if bytes.Contains(b.Bytes(), []byte("hidden")) {
				t.Error("the trace has a variable that the task does not name")
			}
			b.Reset()
			detail := Summary
			if c.name == "kubernetes" {
				detail = WithBodies
			}
			if err := trace.WriteText(&b, detail); err != nil {
				t.Fatal(err)
			}
			golden(t, c.name+".golden.txt", b.Bytes())
		})
	}
}

// The golden traces come from hyperfleet-adapter's own dry run of the same files, member by member.
func TestADryRunPrintsTheOriginalsTrace(t *testing.T) {
	for _, c := range []struct{ trace, path, want string }{
		{"kubernetes", "resources.0.operation", "update"}, // it is in the discoveries' file
		{"kubernetes", "resources.1.operation", "create"},
		{"kubernetes-delete", "resources.1.discoveredState.metadata.name", "settings"},
		{"kubernetes-delete", "resources.1.reason", "lifecycle.delete.when evaluated to true"},
		{"kubernetes-delete", "discoveredResources.settings", "<nil>"}, // gone at once
		{"maestro-delete", "discoveredResources.work.metadata.deletionTimestamp", "2026-03-01T12:00:00Z"},
		{"maestro", "discoveredResources.work.innerNamespace.kind", "Namespace"},
		{"maestro", "discoveredResources.innerNamespace", "<nil>"},
		{"kubernetes", "params.config.adapter.name", "cl-dry"},
		{"kubernetes", "params.event.id", "C-1"},
		{"kubernetes", "params.env", "map[]"},
		{"render-error", "status", "failed"},
		{"render-error", "params.statusPayload", `{"health":"ExecutionFailed:ResourceFailed"}`},
		{"post-action-not-found", "postActions.0.status", "skipped"},
		{"post-action-not-found", "postActions.1", "<nil>"}, // what follows is not done
		{"post-action-not-found", "errors.post_actions", "<nil>"},
	} {
		var doc any
		if err := json.Unmarshal(readTestdata(t, c.trace+".golden.json"), &doc); err != nil {
			t.Fatal(err)
		}
		v := valueAt(doc, c.path)
		if got := fmt.Sprint(v); got != c.want {
			t.Errorf("%s: %s is %s, want %s", c.trace, c.path, got, c.want)
		}
	}
}

// The keys are hyperfleet-adapter's.
func TestATraceHasTheKeysOfTheReference(t *testing.T) {
	var trace map[string]any
	if err := json.Unmarshal(readTestdata(t, "kubernetes.golden.json"), &trace); err != nil {
		t.Fatal(err)
	}
	want := []string{"apiRequests", "discoveredResources", "event", "params", "postActions", "preconditions",
		"resources", "status", "transportOperations"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(trace))); diff != "" {
		t.Error(diff)
	}
}
