package pki

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metricsOf returns the values of the metrics of a CA's signing service, by name and label.
func metricsOf(t *testing.T, ca *CA) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewServer(ca))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%q}", l.GetName(), l.GetValue())
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// The metrics show the phase of a rotation of the root, since when, and how many keep it from its next step. A region
// whose root signs everything has them, too.
func TestMetricsShowTheRotationOfTheRoot(t *testing.T) {
	for name, makeCA := range map[string]func(t *testing.T) *CA{
		"a root with issuing CAs": openCA,
		"a root that signs everything": func(t *testing.T) *CA {
			t.Helper()
			return openCAIn(t, filepath.Join(newEarlierRegion(t).dir, "ca"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca := makeCA(t)
				l, stop := bubbleCA(t, ca)
				defer stop()
				o := options(t, ca, "https://localhost:1", "edge-7")
				o.dial = l.dial
				edge := open(t, o)
				expect := func(when string, prepared, completed float64, since time.Time, waiting float64) {
					t.Helper()
					begun := 0.0
					if !since.IsZero() {
						begun = float64(since.Unix())
					}
					got := metricsOf(t, ca)
					for name, want := range map[string]float64{
						`pki_root_rotation_phase{phase="prepared"}`:       prepared,
						`pki_root_rotation_phase{phase="completed"}`:      completed,
						"pki_root_rotation_phase_since_timestamp_seconds": begun,
						"pki_root_rotation_waiting":                       waiting,
					} {
						if value, isThere := got[name]; !isThere || value != want {
							t.Errorf("%s: %s is %v, want %v", when, name, value, want)
						}
					}
				}
				step := func(do func(RotationOptions) error) time.Time {
					t.Helper()
					wait(time.Hour)
					if err := do(RotationOptions{}); err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					wait(2 * time.Second)
					return begun
				}
				expect("before", 0, 0, time.Time{}, 0)
				since := step(ca.PrepareRoot)
				expect("prepared", 1, 0, since, 1)
				if err := confirm(t, edge); err != nil {
					t.Fatal(err)
				}
				expect("prepared, and edge-7 trusts it", 1, 0, since, 0)
				since = step(ca.CompleteRoot)
				expect("completed", 0, 1, since, 1)
				if err := errors.Join(edge.Renew(t.Context()), confirm(t, edge)); err != nil {
					t.Fatal(err)
				}
				expect("completed, and edge-7 has renewed", 0, 1, since, 0)
				step(ca.RetireRoot)
				expect("retired", 0, 0, time.Time{}, 0)
			})
		})
	}
}

// The alerts of docs/identity.md name metrics that exist, and Prometheus reads them.
func TestTheAlertsOfTheCANameItsMetrics(t *testing.T) {
	doc := string(readFile(t, filepath.Join("..", "docs", "identity.md")))
	_, rules, isThere := strings.Cut(doc, "```yaml\n# alerts of atoll pki\n")
	rules, _, isClosed := strings.Cut(rules, "```")
	if !isThere || !isClosed {
		t.Fatal("docs/identity.md has no alerts")
	}
	have := map[string]bool{}
	for name := range metricsOf(t, openCA(t)) {
		name, _, _ = strings.Cut(name, "{")
		have[name] = true
	}
	alerting := map[string]bool{}
	for _, name := range regexp.MustCompile(`pki_[a-z_]+`).FindAllString(rules, -1) {
		alerting[name] = true
		if !have[name] {
			t.Errorf("atoll pki has no metric %s", name)
		}
	}
	for _, name := range []string{"pki_issuing_ca_renewal_due_timestamp_seconds", "pki_superseded_certificates_used_total",
		"pki_root_rotation_phase_since_timestamp_seconds"} {
		if !alerting[name] {
			t.Errorf("no alert is about %s", name)
		}
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: scripts/ensure.sh prometheus")
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(tool, "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
}
