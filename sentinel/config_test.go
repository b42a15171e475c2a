package sentinel

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// reference is the file of HyperFleet's own, section 2.1 of the reference.
const reference = `
sentinel: {name: hyperfleet-sentinel-clusters}
debug_config: false
tracing_enabled: false
log: {level: info, format: json, output: stdout}
clients:
  hyperfleet_api: {base_url: http://localhost:8000, version: v1, timeout: 10s, page_size: 20, auth: {token_path: /var/run/token, token_cache_ttl: 30s}}
  broker: {topic: "prod-clusters"}
resource_type: clusters
poll_interval: 5s
resource_selector: [{label: shard, value: "1"}]
message_decision:
  params:
  - {name: ref_time,        expr: 'condition("Reconciled").last_updated_time'}
  - {name: is_reconciled,   expr: 'condition("Reconciled").status == "True"'}
  - {name: has_ref_time,    expr: 'ref_time != ""'}
  - {name: is_new_resource, expr: 'resource.generation == 1 && !has_ref_time'}
  - {name: generation_mismatch,          expr: 'resource.generation > condition("Reconciled").observed_generation'}
  - {name: reconciled_and_stale,         expr: 'is_reconciled && has_ref_time && now - timestamp(ref_time) > duration("30m")'}
  - {name: not_reconciled_and_debounced, expr: '!is_reconciled && has_ref_time && now - timestamp(ref_time) > duration("10s")'}
  result: "is_new_resource || generation_mismatch || reconciled_and_stale || not_reconciled_and_debounced"
message_data: {id: resource.id, kind: resource.kind, href: resource.href, generation: resource.generation,
  owner_references: {id: resource.owner_references.id, href: resource.owner_references.href, kind: resource.owner_references.kind}}
`

func noEnvironment(string) (string, bool) { return "", false }

func readText(t testing.TB, text string, env func(string) (string, bool)) (Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sentinel.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return ReadConfig(file, env)
}

func TestTheReferencesFileIsRead(t *testing.T) {
	c, err := readText(t, reference, noEnvironment)
	must(t, 0, err)
	if c.Sentinel.Name != "hyperfleet-sentinel-clusters" || c.Clients.Broker.Topic != "prod-clusters" ||
		c.ResourceType != "clusters" ||
		time.Duration(c.PollInterval) != 5*time.Second || len(c.ResourceSelector) != 1 ||
		len(c.MessageDecision.Params) != 7 || c.Clients.HyperFleetAPI.Auth.TokenPath == "" {
		t.Errorf("%+v", c)
	}
	// The dumped file has the same settings.
	dump, err := c.Dump()
	must(t, 0, err)
	again, err := readText(t, string(dump), noEnvironment)
	must(t, 0, err)
	twice, err := again.Dump()
	must(t, 0, err)
	if string(dump) != string(twice) {
		t.Errorf("dumped\n%s\nand again\n%s", dump, twice)
	}
}

func TestTheEnvironmentIsStronger(t *testing.T) {
	env := map[string]string{"HYPERFLEET_BROKER_TOPIC": "other", "HYPERFLEET_LOG_LEVEL": "debug",
		"HYPERFLEET_API_PAGE_SIZE": "100", "HYPERFLEET_POLL_INTERVAL": "200ms", "HYPERFLEET_DEBUG_CONFIG": "true"}
	c, err := readText(t, reference, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	must(t, 0, err)
	if c.Clients.Broker.Topic != "other" || c.Log.Level != "debug" || c.Clients.HyperFleetAPI.PageSize != 100 ||
		time.Duration(c.PollInterval) != 200*time.Millisecond || !c.DebugConfig {
		t.Errorf("%+v", c)
	}
	env["HYPERFLEET_POLL_INTERVAL"] = "soon"
	if _, err := readText(t, reference, func(name string) (string, bool) {
		v, ok := env[name]
		return v,
			ok
	}); err == nil || !strings.Contains(err.Error(), "HYPERFLEET_POLL_INTERVAL") {
		t.Errorf("a bad variable: %v", err)
	}
}

func TestMistakesNameTheFileAndTheLine(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown": {"resource_type: clusters\nclients:\n  broker: {tpoic: x}\n",
			`sentinel.yaml:3: unknown key tpoic; the nearest known key is topic`},
		"old": {"resource_type: clusters\nmax_age_ready: 30m\n",
			`sentinel.yaml:2: unknown key max_age_ready; write message_decision`},
		"twice": {"resource_type: clusters\nresource_type: nodepools\n",
			`sentinel.yaml:2: mapping key "resource_type" already defined`},
		"no type":  {"poll_interval: 5s\n", "resource_type is missing"},
		"duration": {"resource_type: clusters\npoll_interval: soon\n", `sentinel.yaml:2: "soon" is no duration`},
		"negative": {"resource_type: clusters\npoll_interval: -5s\n", `sentinel.yaml:2: "-5s" is no duration`},
		"page": {"resource_type: clusters\nclients: {hyperfleet_api: {page_size: 501}}\n",
			"between 1 and 500"},
		"topic": {"resource_type: clusters\nclients: {broker: {topic: 'a/#'}}\n", "cannot be a topic"},
		"label": {"resource_type: clusters\nresource_selector: [{value: x}]\n",
			"resource_selector[0]: label is missing"},
		"circle": {
			"resource_type: clusters\nmessage_decision: {params: [{name: a, expr: b}, {name: b, expr: a}], result: a}\n", "depend on each other"},
		"unknown name": {"resource_type: clusters\nmessage_decision: {result: 'nobody == 1'}\n",
			"message_decision.result"},
		"no boolean": {"resource_type: clusters\nmessage_decision: {result: '1 + 1'}\n", "message_decision.result"},
		"data": {"resource_type: clusters\nmessage_data:\n  id: resource.id\n  x: 'resource.'\n",
			"message_data: line 4: x:"},
		"data is a list": {"resource_type: clusters\nmessage_data:\n  id: [1]\n", "line 3: id: this is no CEL"},
		"null":           {"resource_type: clusters\nmessage_data:\n  id:\n", "line 3: id: this is no CEL"},
		"no YAML":        {"{", "sentinel.yaml:1: this is not YAML"},
		"two documents":  {"resource_type: clusters\n---\nresource_type: x\n", "more than one document"},
	} {
		if _, err := readText(t, c.text, noEnvironment); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "sentinel.yaml") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := ReadConfig(filepath.Join(t.TempDir(), "none"), noEnvironment); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(reference))
	f.Add([]byte("message_data: &a {x: *a}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig("f", data)
		if err == nil {
			c.fill()
			_ = c.check("f")
			_, _ = c.Dump()
		}
	})
}

// The commands: rules sets the configuration; decide says, of a resource at a
// time, what the rules say and when that changes; data shows an event's data.
func TestRules(t *testing.T) {
	datadriven.Walk(t, "testdata/rules", func(t *testing.T, path string) {
		var r *Rules
		begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			duration := func(name string) time.Duration {
				var text string
				d.ScanArgs(t, name, &text)
				return mustDuration(t, text)
			}
			if d.Cmd == "rules" {
				c := DefaultConfig("clusters")
				text := d.Input
				if d.HasArg("hyperfleet") {
					text = reference
				}
				if text != "" {
					parsed, err := ParseConfig(path, []byte(text))
					if c = parsed; err != nil {
						return err.Error() + "\n"
					}
					c.fill()
				}
				compiled, err := c.Compile()
				if r = compiled; err != nil {
					return err.Error() + "\n"
				}
				return ""
			}
			f, err := r.Facts([]byte(d.Input))
			must(t, 0, err)
			if d.Cmd == "data" {
				data, err := r.Data(t.Context(), f, reasonMatched)
				if err != nil {
					return string(data) + "\n" + err.Error() + "\n"
				}
				return string(data) + "\n"
			}
			var published Publication
			if d.HasArg("published") {
				d.ScanArgs(t, "published", &published.Generation)
			}
			if d.HasArg("published-at") {
				published.At = begun.Add(duration("published-at"))
			}
			now := begun
			if d.HasArg("at") {
				now = now.Add(duration("at"))
			}
			wanted, err := r.Decide(t.Context(), f, published, now)
			switch {
			case err != nil:
				return "error: " + err.Error() + "\n"
			case wanted:
				return "an event\n"
			}
			flip, err := r.TrueAt(t.Context(), f, published, now)
			must(t, 0, err)
			if flip.IsZero() {
				return "none, until something happens\n"
			}
			return "none for " + flip.Sub(now).Round(time.Second).String() + "\n"
		})
	})
}

func TestSettingsWithoutEffectAreNamed(t *testing.T) {
	env := func(string) (string, bool) { return "", false }
	file := filepath.Join(t.TempDir(), "s.yaml")
	read := func(text string) Config {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadConfig(file, env)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if got := read("{resource_type: clusters, clients: {broker: {topic: x}}, poll_interval: 5s}").Ineffective(
		ProcessOfCLM); len(got) > 0 {
		t.Errorf("%q", got)
	}
	loud := read(
		"{resource_type: clusters, sentinel: {name: x}, log: {level: debug}, tracing_enabled: true, poll_interval: " +
			"1s, clients: {hyperfleet_api: {page_size: 7}}}")
	if inside, apart := loud.Ineffective(
		ProcessOfCLM,
	), loud.Ineffective(
		OwnProcess,
	); len(inside) != 5 ||
		len(apart) != 3 {
		t.Errorf("inside %q, apart %q", inside, apart)
	}
}
