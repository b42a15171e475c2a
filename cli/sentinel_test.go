package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/bus"
	"atoll.dev/cli/terminal"
	"atoll.dev/internal/pgtest"
	"atoll.dev/test/testsite"
)

// The sentinel sends events for resources that need work, in CLM's process and in its own, over a
// foreign broker, by HyperFleet's files.
func TestTheSentinelRunsInCLMAndApart(t *testing.T) {
	broker := testsite.StartOpenMosquitto(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	brokerFile := file("broker.yaml", "brokerHost: "+broker+"\n")
	rules := file("sentinel.yaml", "resource_type: clusters\nclients: {broker: {topic: fleet}}\n")

	delivered := make(chan string, 100)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	adapter := bus.NewClient(bus.ClientOptions{
		Addr: broker, ClientID: "listener", Subscriptions: []string{bus.EventFilter("x", "clusters"),
			bus.EventFilter("x", "fleet")},
		Handler: func(_ context.Context, m bus.Message) {
			m.Ack()
			var data struct{ ID string }
			if json.Unmarshal(m.Event.Data, &data) == nil {
				delivered <- m.Topic + " " + data.ID
			}
		},
	})
	go func() { defer close(ended); _ = adapter.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })

	for topic, apart := range map[string]bool{"clusters": false, "fleet": true} {
		dsn := pgtest.DSN(t)
		base, ops := startCLM(t, func(api, ops string) []string {
			return []string{"--dsn", dsn, "--insecure-listen", api, "--ops", ops, "--message-broker-config-file",
				brokerFile,
				"--sentinel-name", "inside", fmt.Sprintf("--sentinel=%v", !apart)}
		})
		status, made := ask(t, "POST", base+"/api/hyperfleet/v1/clusters", `{"kind":"Cluster","name":"abc","spec":{}}`)
		if status != 201 {
			t.Fatalf("%d %v", status, made)
		}
		if apart {
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			root := newRoot(&terminal.Session{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
			root.SetArgs([]string{"sentinel", "serve", "--dsn", dsn, "--config", rules, "--message-broker-config-file",
				brokerFile, "--name", "apart", "--log-level", "error"})
			go func() { ended <- root.ExecuteContext(ctx) }()
			t.Cleanup(func() {
				stop()
				if err := <-ended; err != nil {
					t.Errorf("the sentinel ended: %v", err)
				}
			})
		}
		want := fmt.Sprintf("%s %v", bus.EventTopic(topic), made["id"])
		for deadline := time.After(testsite.HangLimit); ; {
			var got string
			select {
			case got = <-delivered:
			case <-deadline:
				t.Fatalf("no event %s was delivered", want)
			}
			if got == want {
				break
			}
		}
		if !apart { // its state can be read
			if status, v := ask(t, "GET", ops+"/sentinel?id="+made["id"].(string), ""); status != 200 {
				t.Errorf("/sentinel: %d %v", status, v)
			}
		}
	}
}
