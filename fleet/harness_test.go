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
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	server "atoll.dev/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

const testEntities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [placement]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade}
- {kind: ManagementCluster, plural: managementclusters}
`

const mcsPath = clmclient.Collection("managementclusters")

// testRegion is one process of CLM with its fleet, and a client of it.
type testRegion struct {
	t     testing.TB
	fleet *Fleet
	*clmclient.Client
	url string
	as  func(tenant string) *clmclient.Client // returns a client with the identity of a tenant
	end func()                                // stops the process before the test ends
}

func start(t testing.TB) *testRegion { return startOn(t, pgtest.DSN(t), Options{}) }

// startOn starts one of several processes on a database.
func startOn(t testing.TB, dsn string, o Options) *testRegion {
	t.Helper()
	registry, err := server.ParseRegistry([]byte(testEntities))
	if err != nil {
		t.Fatal(err)
	}
	db, err := server.Open(t.Context(), server.DatabaseOptions{DSN: dsn, Registry: registry, Kinds: Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.Feed, o.Metrics = db.Store, db.Feed, prometheus.NewRegistry()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	f, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{Database: db, HTTP: l, Identify: callerOfToken, Extension: f})
	if err != nil {
		t.Fatal(err)
	}
	endServer, endFleet := testsite.Run(t, "CLM", s.Run), testsite.Run(t, "fleet", f.Run)
	b := &testRegion{t: t, fleet: f, url: "http://" + l.Addr().String()}
	b.as = func(tenant string) *clmclient.Client {
		c, err := clmclient.New(clmclient.Options{Endpoint: b.url, Token: tenant})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	b.Client = b.as("")
	b.end = sync.OnceFunc(func() {
		b.Client.Close()
		endFleet()
		endServer()
		db.Close()
	})
	t.Cleanup(b.end)
	return b
}

// callerOfToken returns the caller of a request: its bearer token is the tenant's name, and without a token it is a
// service of the region.
func callerOfToken(r *http.Request) (server.Caller, error) {
	var tenant string
	if _, err := fmt.Sscanf(r.Header.Get("Authorization"), "Bearer %s", &tenant); err != nil {
		return server.Caller{Name: "system:test", System: true}, nil
	}
	return server.Caller{Name: tenant, Tenancy: map[string]string{"account": tenant}}, nil
}

// createResource creates a resource and returns its id.
func (b *testRegion) createResource(
	in clmclient.Collection,
	kind, name, spec string,
	labels map[string]string,
) string {
	b.t.Helper()
	r, err := b.Create(b.t.Context(), in, clm.ResourceCreate{Kind: kind, Name: name, Spec: json.RawMessage(spec),
		Labels: labels}, "")
	if err != nil {
		b.t.Fatal(err)
	}
	return r.ID
}

func (b *testRegion) cluster(name, spec string) string {
	b.t.Helper()
	return b.createResource(clustersPlural, "Cluster", name, spec, nil)
}

const clustersPlural = clmclient.Collection("clusters")

// mc creates a management cluster whose agent is connected, and returns its id.
func (b *testRegion) mc(name, spec string, labels map[string]string) string {
	b.t.Helper()
	id := b.createResource(mcsPath, "ManagementCluster", name, spec, labels)
	b.reportConnected(id)
	return id
}

// reportConnected reports that a management cluster's agent is connected, as Maestro does.
func (b *testRegion) reportConnected(id string) {
	b.t.Helper()
	b.reportAgent(id, clm.ReportedCondition{Type: "Available", Status: "True"})
}

// reportLost reports that a management cluster's agent is lost, as Maestro does.
func (b *testRegion) reportLost(id string) {
	b.t.Helper()
	b.reportAgent(id, clm.ReportedCondition{Type: "Available", Status: "False", Reason: new("Lost")})
}

// reportAgent reports on a management cluster, and waits until fleet's inventory has the report.
func (b *testRegion) reportAgent(id string, available clm.ReportedCondition) {
	b.t.Helper()
	at := time.Now()
	accepted, err := b.Report(
		b.t.Context(),
		mcsPath,
		id,
		clm.AdapterStatusCreate{Adapter: "maestro", ObservedGeneration: 1,
			ObservedTime: at,
			Conditions: []clm.ReportedCondition{available, {Type: "Applied", Status: "True"},
				{Type: "Health", Status: "True"}}},
	)
	if err != nil || !accepted {
		b.t.Fatalf("CLM did not accept the report: %v", err)
	}
	b.eventually("the inventory has the report", func() (has bool) {
		b.fleet.shared.use(func(inv *inventory) {
			has = !inv.mcs[cluster.ManagementClusterID(id)].reportTime().Before(at.Truncate(time.Millisecond))
		})
		return has
	})
}

func (b *testRegion) place(id string) api.Placement {
	b.t.Helper()
	p, err := b.Place(b.t.Context(), cluster.ID(id))
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// report reports on a cluster as the placement adapter does; finalized is the status of the condition Finalized.
func (b *testRegion) report(cluster string, generation int32, finalized string) {
	b.t.Helper()
	_, err := b.Report(b.t.Context(), clustersPlural, cluster, clm.AdapterStatusCreate{Adapter: "placement",
		ObservedGeneration: generation, ObservedTime: time.Now(),
		Conditions: []clm.ReportedCondition{{Type: "Available", Status: "True"}, {Type: "Applied", Status: "True"},
			{Type: "Health", Status: "True"}, {Type: "Finalized", Status: finalized}}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// usage returns the usage of a resource of a management cluster as "F free, R reserved by P"
// placements; F is "-" for an unlimited resource.
func (b *testRegion) usage(id, resource string) string {
	b.t.Helper()
	u, err := b.UsageOf(b.t.Context(), cluster.ManagementClusterID(id))
	if err != nil {
		b.t.Fatal(err)
	}
	free := "-"
	if n, ok := u.Free[resource]; ok {
		free = fmt.Sprint(n)
	}
	return fmt.Sprintf("%s free, %d reserved by %d", free, u.Reserved[resource], u.Placements)
}

// eventually waits until a condition holds.
func (b *testRegion) eventually(what string, holds func() bool) {
	b.t.Helper()
	deadline := time.NewTimer(3 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.t.Fatalf("after 3 minutes still not: %s", what)
		}
	}
}

// requestedClusters returns the clusters of fleet's requests for work, sorted, one for each request.
func (b *testRegion) requestedClusters() (ids []string) {
	b.t.Helper()
	page, err := b.fleet.store.List(context.WithoutCancel(b.t.Context()), store.Query{Kind: kindRequest, Limit: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range page.Documents {
		var r clm.ReconcileRequest
		if err := json.Unmarshal(d.Spec, &r); err != nil || r.Kind != "Cluster" {
			b.t.Fatalf("the request %s is not for a cluster: %v", d.Spec, err)
		}
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

func checkError(t testing.TB, what string, err error, status int, code string) {
	t.Helper()
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != status || e.Code != code {
		t.Fatalf("%s: %v (%+v), want %d %s", what, err, e, status, code)
	}
}

func checkEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

func resource(name string) clm.ResourceCreate {
	return clm.ResourceCreate{Kind: "Cluster", Name: name, Spec: json.RawMessage(`{}`)}
}

// requestJSON sends a request and returns the decoded body of its answer.
func (b *testRegion) requestJSON(path, method string) (v any) {
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
