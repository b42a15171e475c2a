package adapter

import (
	"bytes"
	"encoding/json"
	"flag"
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
		{"maestro-delete", "maestro-config.yaml", "maestro-task.yaml", "responses-delete.json", "discovery-maestro.json"},
		{"showcase", "config.yaml", "showcase-task.yaml", "responses.json", ""},
		{"nothing", "config.yaml", "namespace-task.yaml", "", ""},
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
			if err := trace.WriteJSON(&b, true); err != nil {
				t.Fatal(err)
			}
			golden(t, c.name+".golden.json", b.Bytes())
			if bytes.Contains(b.Bytes(), []byte("hidden")) {
				t.Error("the trace has a variable that the task does not name")
			}
			b.Reset()
			if err := trace.WriteText(&b, c.name == "kubernetes"); err != nil {
				t.Fatal(err)
			}
			golden(t, c.name+".golden.txt", b.Bytes())
		})
	}
}

// The keys are hyperfleet-adapter's.
func TestATraceHasTheKeysOfTheReference(t *testing.T) {
	var trace map[string]any
	if err := json.Unmarshal(readTestdata(t, "kubernetes.golden.json"), &trace); err != nil {
		t.Fatal(err)
	}
	want := []string{"apiRequests", "discoveredResources", "event", "params", "postActions", "preconditions", "resources", "status", "transportOperations"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(trace))); diff != "" {
		t.Error(diff)
	}
}
