package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/internal/quick"
	"atoll.dev/test/testsite"
)

// exporter serves the metrics of one region as its services do.
type exporter struct {
	*httptest.Server
	clients atomic.Int64 // value of atoll_broker_clients
	stuck   atomic.Int64 // of clusters that are not Reconciled for long
}

func newExporter(t *testing.T) *exporter {
	e := &exporter{}
	e.clients.Store(3)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE atoll_broker_clients gauge\natoll_broker_clients{region=\"r1\"} %d\n", e.clients.Load())
		fmt.Fprintf(w, "hyperfleet_api_resource_pending_reconciliation_stuck{region=\"r1\",kind=\"Cluster\"} %d\n"+
			"hyperfleet_api_resource_pending_reconciliation_stuck{region=\"r1\",kind=\"NodePool\"} 0\n", e.stuck.Load())
		fmt.Fprint(w, "hyperfleet_api_build_info{region=\"r1\",version=\"1.4.2\",replica=\"1\"} 1\n"+
			"hyperfleet_api_build_info{region=\"r1\",version=\"1.5.0\",replica=\"2\"} 1\n")
	}))
	t.Cleanup(e.Close)
	return e
}

// requests returns the requests of the last 70 minutes, a sample each minute, in the form of OpenMetrics. A minute has
// 100 requests; of those of a region, failed returns how many fail so many minutes ago.
func requests(now time.Time, failed map[string]func(minutesAgo int) int) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, "# TYPE requests counter")
	for _, code := range []string{"200", "500"} {
		for region, failedAt := range failed {
			total := 0
			for minutes := 70; minutes >= 0; minutes-- {
				if n := failedAt(minutes); code == "500" {
					total += n
				} else {
					total += 100 - n
				}
				fmt.Fprintf(&b, "requests_total{region=%q,code=%q} %d %d\n", region, code, total,
					now.Add(-time.Duration(minutes)*time.Minute).Unix())
			}
		}
	}
	fmt.Fprintln(&b, "# EOF")
	return b.Bytes()
}

// startPrometheus starts the Prometheus of the distribution with a past in the form of OpenMetrics. It scrapes the
// target each second. A query with storage="remote" asks a remote storage that does not answer, too.
func startPrometheus(t *testing.T, target string, past []byte) (address string) {
	t.Helper()
	quick.LeavesOut(t, "starts Prometheus")
	program, err := exec.LookPath("prometheus")
	tool, toolErr := exec.LookPath("promtool")
	if err := errors.Join(err, toolErr); err != nil {
		t.Skipf("%v; `scripts/ensure.sh prometheus` installs Debian's package, which has both programs", err)
	}
	dir := t.TempDir()
	absent := testsite.FreeAddress(t)
	config := fmt.Sprintf(`global: {scrape_interval: 1s}
scrape_configs: [{job_name: region, static_configs: [{targets: [%q]}]}]
remote_read: [{url: "http://%s/read", required_matchers: {storage: remote}}]
`, target, absent)
	for name, data := range map[string][]byte{"prometheus.yml": []byte(config), "past": past} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stored := filepath.Join(dir, "data")
	out, err := exec.Command(tool, "tsdb", "create-blocks-from", "openmetrics", filepath.Join(dir, "past"), stored).
		CombinedOutput()
	if err != nil {
		t.Fatalf("promtool: %v: %s", err, out)
	}
	listen := testsite.FreeAddress(t)
	var log bytes.Buffer
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+stored,
		"--web.listen-address="+listen, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Errorf("stopping Prometheus: %v", err)
		}
		_ = cmd.Wait() // the error is that it was killed
		if t.Failed() {
			t.Logf("Prometheus:\n%s", &log)
		}
	})
	address = "http://" + listen
	testsite.Eventually(t, "Prometheus serves", func() error {
		res, err := http.Get(address + "/-/ready")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	})
	return address
}

// TestGatesReadARealPrometheus reads the gates of docs/rollouts.md from the Prometheus of the distribution: a gate that
// fails and recovers, queries without a value, incomplete answers, and burns over two windows. A rollout stops by the
// gate that fails, and goes on when the gate has recovered.
func TestGatesReadARealPrometheus(t *testing.T) {
	region := newExporter(t)
	failing := func(from, to, n int) func(int) int {
		return func(minutesAgo int) int {
			if to <= minutesAgo && minutesAgo <= from {
				return n
			}
			return 0
		}
	}
	address := startPrometheus(t, strings.TrimPrefix(region.URL, "http://"), requests(time.Now(),
		map[string]func(int) int{
			"burns": failing(70, 0, 5), "peak": failing(3, 0, 5), "recovered": failing(70, 9, 5), "fine": failing(70, 0, 1),
		}))
	zero, one := 0.0, 1.0
	agents := Gate{Name: "agents", Query: `min(atoll_broker_clients{region="$region"})`, AtLeast: &one}
	up := Gate{Name: "up", Query: `min(up{job="region"})`, AtLeast: &one}
	burn := Gate{Name: "budget", Burn: &Burn{Objective: 0.999,
		Query: `sum(increase(requests_total{region="$region",code=~"5.."}[$window])) / ` +
			`sum(increase(requests_total{region="$region"}[$window]))`}}
	read := func(target Target, gates ...Gate) Health {
		r := Rollout{Prometheus: address, Gates: gates}
		return Gates{}.Read(t.Context(), r, Fleet{}, []Target{target})[target]
	}
	await := func(what string, want Verdict, reason string, gates ...Gate) {
		t.Helper()
		testsite.Eventually(t, what, func() error {
			if got := read("r1", gates...); got.Verdict != want || !strings.Contains(got.Reason, reason) {
				return fmt.Errorf("the gate is %s: %s", got.Verdict, got.Reason)
			}
			return nil
		})
	}

	reconciled := Gate{Name: "reconciled", AtMost: &zero,
		Query: `sum(hyperfleet_api_resource_pending_reconciliation_stuck{region="$region"})`}
	version := Gate{Name: "version", AtLeast: &one, Query: `count(hyperfleet_api_build_info{region="$region",` +
		`version="1.5.0"}) / count(hyperfleet_api_build_info{region="$region"})`}

	await("agents are connected", Passing, "", agents, up)
	for _, c := range []struct {
		name   string
		gate   Gate
		target Target
		want   Verdict
		reason string
	}{
		{"no series", agents, "r2", Unreadable, "the query has 0 values"},
		{"several series", Gate{Name: "g", Query: "requests_total", AtLeast: &zero}, "r1", Unreadable,
			"the query has 8 values"},
		{"no number", Gate{Name: "g", Query: "vector(0) / vector(0)", AtMost: &one}, "r1", Unreadable, "no number"},
		{"a wrong query", Gate{Name: "g", Query: "sum(", AtMost: &one}, "r1", Unreadable, "parse error"},
		{"a part of the data", Gate{Name: "g", Query: `sum(up{storage="remote"}) or vector(0)`, AtMost: &one}, "r1",
			Unreadable, "not complete"},
		{"clusters are Reconciled", reconciled, "r1", Passing, ""},
		{"the new version runs on a part of the replicas", version, "r1", Failing, "0.5 is less than 1"},
		{"both windows burn", burn, "burns", Failing, "the limit is 0.0144"},
		{"the short window alone burns", burn, "peak", Passing, ""},
		{"the long window alone burns", burn, "recovered", Passing, ""},
		{"errors within the budget of the factor", burn, "fine", Passing, ""},
		{"no requests", burn, "r2", Unreadable, "the query has 0 values"},
	} {
		if got := read(c.target, c.gate); got.Verdict != c.want || !strings.Contains(got.Reason, c.reason) {
			t.Errorf("%s: got %v, want %s %q", c.name, got, c.want, c.reason)
		}
	}

	region.stuck.Store(2)
	await("clusters are not Reconciled", Failing, "gate reconciled: 2 is more than 0", reconciled)
	region.stuck.Store(0)
	await("clusters are Reconciled again", Passing, "", reconciled)
	region.clients.Store(0)
	await("agents have lost their connection", Failing, "gate agents: 0 is less than 1", agents)
	region.clients.Store(2)
	await("agents are connected again", Passing, "", agents)
	checkDrive(t, region, address,
		func() { t.Helper(); await("agents have lost their connection", Failing, "0 is less than 1", agents) },
		func() { t.Helper(); await("agents are connected again", Passing, "", agents) })
	region.Close() // Prometheus marks the series of a target that does not answer as stale
	await("the region does not answer Prometheus", Unreadable, "the query has 0 values", agents)
	await("Prometheus reports that the region does not answer", Failing, "gate up: 0 is less than 1", agents, up)
}

// checkDrive drives a rollout by the agents of its first region, which lose their connections after the change and
// connect again. awaitLoss and awaitReturn wait until Prometheus has that.
func checkDrive(t *testing.T, region *exporter, address string, awaitLoss, awaitReturn func()) {
	m := newMemory("")
	m.write(rolloutFile, fmt.Sprintf("environment: prod\nchange: {version: '2'}\nsettle: 2s\nsoak: {sector: 1h}\n"+
		"prometheus: %s\ngates:\n  - name: agents\n    query: 'min(atoll_broker_clients)'\n    atLeast: 1\n", address))
	d := m.driver(Gates{})
	d.Interval = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d.Show = func(e Event) {
		switch {
		case strings.Contains(e.What, "change r1"):
			region.clients.Store(0)
			awaitLoss() // otherwise the time to settle may end before Prometheus asks the region
		case strings.Contains(e.What, "r1 healthy"):
			cancel()
		}
	}
	record, err := d.Run(ctx)
	if !errors.Is(err, ErrHalted) || !strings.Contains(record.State.Reason, "r1: gate agents: 0 is less than 1") {
		t.Fatalf("%v, %v", record.State, err)
	}
	if got := m.versions(t); got != "r1=2 r2=1 r3=1" {
		t.Errorf("the rollout has changed %s", got)
	}
	region.clients.Store(3)
	awaitReturn()
	_, err = d.Command(t.Context(), func(_ Plan, s State) (State, []Effect, error) {
		return s.Command(Resume, "ann", time.Now())
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after the gate has recovered: %v", err)
	}
	record, err = d.Status(t.Context())
	if err != nil || record.State.Phase != Running || record.State.Targets["r1"].Healthy.IsZero() {
		t.Errorf("after the gate has recovered: %v, %v", record.State, err)
	}
}
