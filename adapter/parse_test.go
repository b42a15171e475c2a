package adapter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

const smallConfig = `adapter: {name: cl-namespace, version: "0.3"}
clients:
  hyperfleet_api: {base_url: http://clm:8000, timeout: 5s, auth: {token_path: /var/run/token}}
  broker: {subscription_id: cl-namespace, topic: ns-clusters}
  maestro: {source_id: hyperfleet-adapter, auth: {type: tls, tls_config: {ca_file: /ca, cert_file: /crt, key_file: /key}}}
`

func TestAConfigIsReadWithDefaults(t *testing.T) {
	c, err := ParseConfig("adapter-config.yaml", []byte(smallConfig), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Adapter.Name != "cl-namespace" || c.Clients.API.Timeout != 5*time.Second ||
		c.Clients.API.MaxDelay != 30*time.Second ||
		c.Clients.API.Auth.TokenCacheTTL != 30*time.Second || c.Clients.Maestro.RetryAttempts != 3 ||
		c.Log.Format != "json" {
		t.Errorf("%+v", c)
	}
	api := c.Redacted()["clients"].(map[string]any)["hyperfleet_api"].(map[string]any)
	if api["timeout"] != "5s" || api["auth"].(map[string]any)["token_path"] != redacted {
		t.Errorf("%v", api)
	}
}

func TestVariablesOverrideTheFile(t *testing.T) {
	env := map[string]string{
		"HYPERFLEET_API_BASE_URL": "https://other", "HYPERFLEET_API_TIMEOUT": "1m", "HYPERFLEET_BROKER_TOPIC": "a",
		"BROKER_TOPIC":           "b",
		"BROKER_SUBSCRIPTION_ID": "legacy", "LOG_LEVEL": "DEBUG", "HYPERFLEET_MAESTRO_INSECURE": "true",
		"HYPERFLEET_KUBERNETES_QPS":         "12.5",
		"HYPERFLEET_MAESTRO_KEEPALIVE_TIME": "30s", "HYPERFLEET_DEBUG_CONFIG": "true",
	}
	c, err := ParseConfig("c.yaml", []byte(smallConfig), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	got := []any{
		c.Clients.API.BaseURL, c.Clients.API.Timeout, c.Clients.Broker.Topic, c.Clients.Broker.SubscriptionID, c.Log.Level,
		c.Clients.Maestro.Insecure, c.Clients.Kubernetes.QPS, c.Clients.Maestro.Keepalive.Time, c.DebugConfig,
	}
	if diff := cmp.Diff([]any{"https://other", time.Minute, "a", "legacy", "debug", true, 12.5, 30 * time.Second, true},
		got); diff != "" {
		t.Error(diff)
	}
	env = map[string]string{"HYPERFLEET_API_TIMEOUT": "soon"}
	if _, err := ParseConfig("c.yaml", []byte(smallConfig), func(name string) string {
		return env[name]
	}); err == nil ||
		!strings.Contains(err.Error(),
			`HYPERFLEET_API_TIMEOUT: clients.hyperfleet_api.timeout: "soon" is not a duration such as 5s`) {
		t.Error(err)
	}
}

// files are a directory in memory.
type files map[string]string

func (f files) read(name string) ([]byte, error) {
	if text, ok := f[name]; ok {
		return []byte(text), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
}

// Each case is a file and all that is wrong with it, by file and line.
func TestFileErrorsNameTheLine(t *testing.T) {
	datadriven.RunTest(t, "testdata/findings.txt", func(t *testing.T, d *datadriven.TestData) string {
		var err error
		switch d.Cmd {
		case "config":
			_, err = ParseConfig("config.yaml", []byte(d.Input), nil)
		case "task":
			_, err = ParseTask("/etc/task.yaml", []byte(d.Input), files{"/etc/job.yaml": "kind: Job",
				"/etc/bad.yaml": "a: 1\na: 2\n"}.read)
		case "lint":
			found := Lint([]string{"/etc/task.yaml", "/etc/config.yaml"}, files{
				"/etc/task.yaml": d.Input, "/etc/config.yaml": "adapter: {name: a}\n",
			}.read)
			return found.Error() + "\n"
		default:
			t.Fatalf("unknown command %s", d.Cmd)
		}
		if err == nil {
			return "ok\n"
		}
		if _, ok := errors.AsType[Findings](err); !ok {
			t.Errorf("%T is not Findings", err)
		}
		return err.Error() + "\n"
	})
}

func FuzzParseTask(f *testing.F) {
	for _, s := range []string{
		"params: [{name: a, source: event.id}]", "a: &a [*a]",
		"params: &x\n- name: a\n  source: {file: {path: /x}}\npreconditions: *x", "<<: {params: []}",
		"resources: [{name: a, manifest: {ref: x}}]",
		"post: {payloads: [{name: p, build_ref: job.yaml}]}", "? [a]\n: b", "a: !!int x", "a: 0x7fffffffffffffffffff",
		"\xff",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		task, err := ParseTask("t.yaml", []byte(text), files{"job.yaml": text}.read)
		if (task == nil) == (err == nil) {
			t.Errorf("%q: %v, %v", text, task, err)
		}
		found, ok := errors.AsType[Findings](err)
		if err != nil && (!ok || len(found) == 0) {
			t.Errorf("%q: %v", text, err)
		}
		for _, x := range found {
			if x.Line < 0 || x.Message == "" || x.File == "" {
				t.Errorf("%q: %+v", text, x)
			}
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	f.Add(smallConfig, "1s")
	f.Add("adapter: {name: x}", "")
	f.Fuzz(func(t *testing.T, text, value string) {
		c, err := ParseConfig("c.yaml", []byte(text), func(string) string { return value })
		if err == nil && c.Redacted()["adapter"] == nil {
			t.Errorf("%q has no map", text)
		}
	})
}

// A process watches the kinds of its task from the start, in every form of manifests.
func TestTheKindOfAResource(t *testing.T) {
	const task = `
resources:
- {name: a, manifest: {apiVersion: apps/v1, kind: Deployment}, discovery: {by_name: a}}
- {name: b, manifest: "kind: 'Job' # one\napiVersion: batch/v1\nspec: {kind: Other}\n", discovery: {by_name: b}}
- {name: c, manifest: {ref: c.yaml}, discovery: {by_name: c}}
- {name: d, manifest: "apiVersion: v1\nkind: {{ .kind }}\n", discovery: {by_name: d}}
- {name: e, manifest: {kind: Secret}, discovery: {by_name: e}}
`
	parsed, err := ParseTask("/task.yaml", []byte(task),
		files{"/c.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: \"{{ .x }}\"}\n"}.read)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range parsed.Resources {
		version, kind, ok := parsed.Resources[i].Kind()
		got = append(got, fmt.Sprint(version, " ", kind, " ", ok))
	}
	want := []string{"apps/v1 Deployment true", "batch/v1 Job true", "v1 Secret true", "v1 {{ .kind }} false",
		" Secret false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Settings without effect are named, and no others.
func TestSettingsWithoutEffectAreNamed(t *testing.T) {
	parse := func(text string) *Config {
		t.Helper()
		c, err := ParseConfig("c.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	quiet := parse(
		`{adapter: {name: a}, clients: {kubernetes: {api_version: v1, qps: 5}, maestro: {source_id: s, timeout: 5s, ` +
			`insecure: true, keepalive: {time: 20s}, retry_attempts: 3}}}`)
	if got := quiet.Ineffective(); len(got) > 0 {
		t.Errorf("%q", got)
	}
	loud := parse(`{adapter: {name: a, version: "1.2"}, clients: {kubernetes: {api_version: v2},
		maestro: {client_id: x, retry_attempts: 9, server_healthiness_timeout: 1m, insecure: true, auth: {type: tls, tls_config: {ca_file: x}}}}}`)
	var names []string
	for _, text := range loud.Ineffective() {
		name, _, _ := strings.Cut(text, ":")
		names = append(names, name)
	}
	want := "adapter.version clients.kubernetes.api_version clients.maestro.client_id clients.maestro.retry_attempts " +
		"clients.maestro.server_healthiness_timeout clients.maestro.insecure"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
