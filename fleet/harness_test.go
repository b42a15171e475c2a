package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	server "atoll.dev/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testEntities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [placement]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade}
- {kind: ManagementCluster, plural: managementclusters}
`

const mcs = clmclient.Collection("managementclusters")

// bed is one process of CLM with its fleet, and a client.
type bed struct {
	t     testing.TB
	fleet *Fleet
	*clmclient.Client
	url string
	as  func(tenant string) *clmclient.Client // a caller of a tenant, at the same server
	end func()                                // ends it before the test does
}

func start(t testing.TB) *bed { return startOn(t, pgtest.DSN(t), Options{}) }

// startOn starts one of several processes on a database.
func startOn(t testing.TB, dsn string, o Options) *bed {
	t.Helper()
	registry, err := server.ParseRegistry([]byte(testEntities))
	if err != nil {
		t.Fatal(err)
	}
	db, err := server.Open(t.Context(), server.DatabaseOptions{DSN: dsn, Registry: registry, Kinds: Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.Feed, o.Metrics, o.Logger = db.Store, db.Feed, prometheus.NewRegistry(),
		slog.New(slog.NewTextHandler(t.Output(), nil))
	f, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{Database: db, HTTP: l, Identify: claimed, Extension: f})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	go func() { done <- f.Run(ctx) }()
	b := &bed{t: t, fleet: f, url: "http://" + l.Addr().String()}
	b.as = func(tenant string) *clmclient.Client {
		c, err := clmclient.New(clmclient.Options{Endpoint: b.url, Token: tenant})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	b.Client = b.as("")
	ended := false
	b.end = func() {
		if ended {
			return
		}
		ended = true
		b.Client.Close()
		stop()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("it ended: %v", err)
			}
		}
		db.Close()
	}
	t.Cleanup(b.end)
	return b
}

// claimed takes a token for the tenant's name; without one it is the system.
func claimed(r *http.Request) (server.Caller, error) {
	var tenant string
	if _, err := fmt.Sscanf(r.Header.Get("Authorization"), "Bearer %s", &tenant); err != nil {
		return server.Caller{Name: "system:test", System: true}, nil
	}
	return server.Caller{Name: tenant, Tenancy: map[string]string{"account": tenant}}, nil
}

// make makes a resource and returns its id.
func (b *bed) make(in clmclient.Collection, kind, name, spec string, labels map[string]string) string {
	b.t.Helper()
	r, err := b.Create(b.t.Context(), in, clm.ResourceCreate{Kind: kind, Name: name, Spec: json.RawMessage(spec),
		Labels: labels}, "")
	if err != nil {
		b.t.Fatal(err)
	}
	return r.ID
}

func (b *bed) cluster(name, spec string) string {
	b.t.Helper()
	return b.make(clustersOf, "Cluster", name, spec, nil)
}

const clustersOf = clmclient.Collection("clusters")

// mc makes a management cluster whose agent is heard.
func (b *bed) mc(name, spec string, labels map[string]string) string {
	b.t.Helper()
	id := b.make(mcs, "ManagementCluster", name, spec, labels)
	b.heard(id, true)
	return id
}

// heard reports on a management cluster as Maestro does, and waits until fleet's board, which
// follows the feed, has the report.
func (b *bed) heard(id string, yes bool) {
	b.t.Helper()
	available := clm.ReportedCondition{Type: "Available", Status: "True"}
	if !yes {
		available = clm.ReportedCondition{Type: "Available", Status: "False", Reason: new("Lost")}
	}
	at := time.Now()
	taken, err := b.Report(b.t.Context(), mcs, id, clm.AdapterStatusCreate{Adapter: "maestro", ObservedGeneration: 1,
		ObservedTime: at,
		Conditions: []clm.ReportedCondition{available, {Type: "Applied", Status: "True"},
			{Type: "Health", Status: "True"}}})
	if err != nil || !taken {
		b.t.Fatalf("the report was not taken: %v", err)
	}
	b.eventually("the board has the report", func() (has bool) {
		b.fleet.shared.use(func(board *board) {
			has = !board.mcs[cluster.ManagementClusterID(id)].reportTime().Before(at.Truncate(time.Millisecond))
		})
		return has
	})
}

func (b *bed) place(id string) api.Placement {
	b.t.Helper()
	p, err := b.Place(b.t.Context(), cluster.ID(id))
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// report finalizes a cluster, or says that it is there.
func (b *bed) report(cluster string, generation int32, finalized string) {
	b.t.Helper()
	_, err := b.Report(b.t.Context(), clustersOf, cluster, clm.AdapterStatusCreate{Adapter: "placement",
		ObservedGeneration: generation, ObservedTime: time.Now(),
		Conditions: []clm.ReportedCondition{{Type: "Available", Status: "True"}, {Type: "Applied", Status: "True"},
			{Type: "Health", Status: "True"}, {Type: "Finalized", Status: finalized}}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// free is what is free of a resource, and reserved, "-" where it is not limited.
func (b *bed) usage(id, resource string) string {
	b.t.Helper()
	u, err := b.UsageOf(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	free := "-"
	if n, ok := u.Free[resource]; ok {
		free = fmt.Sprint(n)
	}
	return fmt.Sprintf("%s free, %d reserved by %d", free, u.Reserved[resource], u.Placements)
}

// eventually waits until something is so.
func (b *bed) eventually(what string, so func() bool) {
	b.t.Helper()
	deadline := time.NewTimer(3 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.t.Fatalf("not so after 3 minutes: %s", what)
		}
	}
}

// asked are the clusters for which work was asked, by requests of fleet.
func (b *bed) asked() (ids []string) {
	b.t.Helper()
	page, err := b.fleet.store.List(context.WithoutCancel(b.t.Context()), store.Query{Kind: kindRequest, Limit: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range page.Documents {
		var r clm.ReconcileRequest
		if err := json.Unmarshal(d.Spec, &r); err != nil || r.Kind != "Cluster" {
			b.t.Fatalf("%s asks for what: %v", d.Spec, err)
		}
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

func fails(t testing.TB, what string, err error, status int, code string) {
	t.Helper()
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != status || e.Code != code {
		t.Fatalf("%s: %v (%+v), want %d %s", what, err, e, status, code)
	}
}

func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

func resource(name string) clm.ResourceCreate {
	return clm.ResourceCreate{Kind: "Cluster", Name: name, Spec: json.RawMessage(`{}`)}
}

// raw is an answer as it came.
func (b *bed) raw(path, method string) (v any) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+"/api/hyperfleet/v1"+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s: %s", method, path, res.Status)
	}
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
		b.t.Fatal(err)
	}
	return v
}
