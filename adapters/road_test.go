package adapters

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/adapter"
)

var update = flag.Bool("update", false, "write the golden files")

type object = map[string]any

const (
	clusterID = "0199a0b1-0000-7000-8000-000000000001"
	childID   = "0199a0b1-0000-7000-8000-000000000002"
)

// The phases of a resource.
const (
	live     phase = "live"
	deleting phase = "deleting"
)

// The actions and reports of each adapter in each situation.
func TestTaskFilesReportInEachSituation(t *testing.T) {
	for _, s := range situations() {
		t.Run(s.adapter+"/"+s.name, func(t *testing.T) {
			golden(t, s.adapter+"/"+s.name, show(t, s))
		})
	}
}

// dryRun runs the adapter once in a situation.
func dryRun(t *testing.T, s situation) *adapter.Trace {
	t.Helper()
	config, task := load(t, s.adapter)
	encode := func(v any) json.RawMessage {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	href := s.resource["href"].(string)
	event := object{"id": s.resource["id"], "href": href, "generation": s.resource["generation"]}
	var responses []object
	answer := func(method, pattern string, status int, body any) {
		responses = append(responses, object{"match": object{"method": method, "urlPattern": pattern + `(\?.*)?$`},
			"responses": []object{{"statusCode": status, "body": body}}})
	}
	if href != "/api/hyperfleet/v1/clusters/"+clusterID {
		event["owner_references"] = object{"id": clusterID, "kind": "Cluster"}
		answer("GET", href+"/statuses", 200, object{"items": list(s.own)})
		answer("GET", href, 200, s.resource)
	} else {
		answer("GET", "/clusters/"+clusterID, 200, s.resource)
	}
	answer("GET", "/clusters/"+clusterID+"/statuses", 200, object{"items": list(s.cluster)})
	for call, body := range s.answers {
		var method, path string
		fmt.Sscan(call, &method, &path)
		if status, failed := body.(int); failed {
			answer(method, path, status, object{})
			continue
		}
		answer(method, path, 200, body)
	}
	trace, err := adapter.DryRun{
		Config: config, Task: task, Event: encode(object{"id": "e", "type": "test", "data": event}),
		Responses: encode(object{"responses": responses}), Discovery: encode(s.found),
		LookupEnv: func(name string) (string, bool) { return "hosted.test", name == "ATOLL_BASE_DOMAIN" },
		Now:       func() time.Time { return time.Date(2026, 1, 2, 3, 4, 6, 7_000, time.UTC) },
	}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// show runs the adapter and prints its changes: works, calls, reports.
func show(t *testing.T, s situation) []byte {
	t.Helper()
	trace := dryRun(t, s)
	var b bytes.Buffer
	pretty := func(v any) {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(&b, "%s", trace.Result.Status)
	if err := trace.Result.Err(); err != nil {
		fmt.Fprintf(&b, ": %v", err)
	}
	fmt.Fprintln(&b)
	for _, op := range trace.Operations {
		if op.Operation == "apply" || op.Operation == "delete" {
			fmt.Fprintf(&b, "%s %s %s\n", op.Operation, op.Kind, op.Name)
		}
		if op.Operation == "apply" && s.found == nil { // the others are alike
			pretty(op.Object["spec"])
		}
		if strings.Contains(string(marshal(t, op.Object)), `"atoll.dev/move"`) {
			for _, m := range op.Object["spec"].(object)["workload"].(object)["manifests"].([]any) {
				if m.(object)["kind"] == "HostedCluster" {
					fmt.Fprintf(&b, "  %s\n", marshal(t, m.(object)["metadata"]))
				}
			}
		}
	}
	for _, c := range trace.Calls {
		if c.Method == "GET" {
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", c.Method, c.URL)
		if strings.HasSuffix(c.URL, "/move") {
			fmt.Fprintf(&b, "  %s\n", c.Request)
		}
		var report struct {
			Conditions []struct{ Type, Status, Reason, Message string }
			Generation int `json:"observed_generation"`
			Data       any
		}
		if json.Unmarshal(c.Request, &report) == nil && report.Generation > 0 {
			fmt.Fprintf(&b, "of generation %d\n", report.Generation)
			for _, x := range report.Conditions {
				fmt.Fprintf(&b, "%s=%s %s: %s\n", x.Type, x.Status, x.Reason, x.Message)
			}
			pretty(report.Data)
		}
	}
	return b.Bytes()
}

func list(all []object) []object {
	if all == nil {
		return []object{}
	}
	return all
}

func load(t *testing.T, name string) (*adapter.Config, *adapter.Task) {
	t.Helper()
	data, err := fs.ReadFile(Files, name+"/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := adapter.ParseConfig("config.yaml", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	config.Clients.API.BaseURL = "http://clm.test"
	if data, err = fs.ReadFile(Files, name+"/task.yaml"); err != nil {
		t.Fatal(err)
	}
	task, err := adapter.ParseTask("task.yaml", data, Reader(name))
	if err != nil {
		t.Fatal(err)
	}
	return config, task
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", filepath.FromSlash(name)+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("it differs from %s; with -update it is written:\n%s", file, got)
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
