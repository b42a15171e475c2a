package clm

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// quotaEntities are the kinds that quotas count. No adapter is required, so that a DELETE removes a resource at once,
// but for clusters.
const quotaEntities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [dns]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade}
- {kind: Credential, plural: credentials, parent_kind: Cluster, on_parent_delete: cascade}
- {kind: Channel, plural: channels}
`

// tenantOf returns the API as an account sees it.
func (a *testAPI) tenantOf(account string) *testAPI {
	tenant := *a
	tenant.caller = Caller{Name: "ana@" + account, Tenancy: map[string]string{"account": account}}
	return &tenant
}

// startQuotas starts a server with default limits of accounts.
func startQuotas(t testing.TB, dsn string, limits map[string]int64) *testAPI {
	t.Helper()
	return startQuotasOnStore(t, dsn, limits, store.Options.Patient)
}

// startQuotasOnStore is startQuotas with a store of these options.
func startQuotasOnStore(t testing.TB, dsn string, limits map[string]int64,
	adapt func(store.Options) store.Options) *testAPI {
	t.Helper()
	a, _ := startOnStore(t, dsn, quotaEntities, adapt, func(o *Options) { o.Quotas = limits })
	a.agreed = nil // these kinds are not in its document
	a.caller = Caller{Name: "system:operator", System: true}
	return a
}

// use returns what an account uses of each quota, as "clusters node_pools nodes works".
func (a *testAPI) use(account string) string {
	a.t.Helper()
	var list struct {
		Items []struct {
			Name string
			Used int64
		}
	}
	if err := json.Unmarshal(a.do("GET", "/accounts/"+account+"/quotas", "").want(200).body, &list); err != nil {
		a.t.Fatal(err)
	}
	var text []string
	for i, q := range list.Items {
		if q.Name != quotaNames[i] {
			a.t.Fatalf("quota %d is %s", i, q.Name)
		}
		text = append(text, fmt.Sprint(q.Used))
	}
	return strings.Join(text, " ")
}

// setQuotas sets limits of an account.
func (a *testAPI) setQuotas(account, limits string) answer {
	a.t.Helper()
	return a.do("PATCH", "/accounts/"+account+"/quotas", `{"limits":{`+limits+`}}`)
}

// agree fails the test if the counted use of an account differs from what its documents use.
func (a *testAPI) agree() {
	a.t.Helper()
	wrong, err := a.server.wrongQuotas(a.t.Context())
	if err != nil || len(wrong) > 0 {
		a.t.Fatalf("the counted use of %v differs from what the documents use: %v", wrong, err)
	}
}

// destroy deletes a resource and removes it.
func (a *testAPI) destroy(path string) {
	a.t.Helper()
	a.do("DELETE", path, "").want(202)
	if got := a.do("POST", path+"/force-delete", `{"reason":"test"}`); got.status != 404 {
		got.want(204)
	}
}

func clusterBody(name string) string { return `{"kind":"Cluster","name":"` + name + `","spec":{}}` }

func poolBody(name string, nodes int) string {
	return fmt.Sprintf(`{"kind":"NodePool","name":%q,"spec":{"nodePool":{"replicas":%d}}}`, name, nodes)
}

// Concurrent requests at two servers take exactly what a quota has, also while others delete, resize and wait.
func TestI13QuotasAreExactUnderConcurrency(t *testing.T) {
	dsn := pgtest.DSN(t)
	one := startQuotas(t, dsn, map[string]int64{QuotaClusters: 10, QuotaNodes: 20})
	two := startQuotas(t, dsn, map[string]int64{QuotaClusters: 10, QuotaNodes: 20})
	ends := []*testAPI{one.tenantOf("a"), two.tenantOf("a")}
	var made, refused atomic.Int64
	count := func(got answer, success int) {
		switch got.status {
		case success:
			made.Add(1)
		case 403:
			refused.Add(1)
			if !strings.Contains(string(got.body), `"code":"HYPERFLEET-LMT-002"`) {
				t.Errorf("refused with %s", got.body)
			}
		default:
			t.Errorf("%s: %d %s", got.what, got.status, got.body)
		}
	}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			count(ends[i%2].do("POST", "/clusters", clusterBody(fmt.Sprint("c", i))), 201)
		})
	}
	all.Wait()
	if made.Load() != 10 || refused.Load() != 90 {
		t.Fatalf("%d clusters were created and %d refused, want 10 and 90", made.Load(), refused.Load())
	}
	is(t, "the use", one.use("a"), "10 0 0 20")
	got := ends[0].do("POST", "/clusters", clusterBody("one-more")).want(403, "LMT-002")
	is(t, "the quota", got.at("quota"), `{"asked":1,"limit":10,"name":"clusters","used":10}`)
	is(t, "the title", got.at("title"), "Quota Exceeded")
	is(t, "the list", ends[0].do("GET", "/clusters?size=1", "").at("total"), "10")

	// Node pools of different clusters, and resizes of them: 20 nodes.
	var list struct{ Items []struct{ ID string } }
	if err := json.Unmarshal(ends[0].do("GET", "/clusters?size=20", "").body, &list); err != nil {
		t.Fatal(err)
	}
	made.Store(0)
	for i, c := range list.Items {
		all.Go(func() {
			count(ends[i%2].do("POST", "/clusters/"+c.ID+"/nodepools", poolBody("p", 1)), 201)
		})
	}
	all.Wait()
	is(t, "the use", two.use("a"), "10 10 10 30")
	if err := json.Unmarshal(ends[0].do("GET", "/nodepools?size=20", "").body, &list); err != nil {
		t.Fatal(err)
	}
	made.Store(0)
	for i, p := range list.Items {
		all.Go(func() {
			body := `{"spec":{"nodePool":{"replicas":4}}}`
			if i%3 == 0 {
				body = `{"spec":{"nodePool":{"autoScaling":{"min":0,"max":4}}}}`
			}
			count(ends[i%2].do("PATCH", "/nodepools/"+p.ID, body), 200)
		})
	}
	all.Wait()
	if made.Load() != 3 { // each takes 3 of the 10 nodes that remain
		t.Errorf("%d node pools grew by 3 nodes, want 3", made.Load())
	}
	is(t, "the use", one.use("a"), "10 10 19 30")

	// Creations beside removals: the use never exceeds the limit, and all of it is found at the end.
	done := make(chan struct{})
	all.Go(func() {
		defer close(done)
		for _, p := range list.Items {
			ends[0].destroy("/nodepools/" + p.ID)
		}
	})
	for n := range 4 {
		all.Go(func() {
			for i := 0; ; i++ {
				ends[n%2].do("POST", "/clusters/"+ends[0].do("GET", "/clusters?size=1", "").at("items.0.id")+"/nodepools",
					poolBody(fmt.Sprintf("n%d-%d", n, i), 3))
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for range 50 {
		var nodes, other int64
		if _, err := fmt.Sscan(one.use("a"), &other, &other, &nodes); err != nil || nodes > 20 {
			t.Errorf("%d nodes are used of 20: %v", nodes, err)
		}
	}
	all.Wait()
	one.agree()
	is(t, "the use of another account", one.use("b"), "0 0 0 0")
}

// One account that has many requests at the same time leaves connections for others.
func TestAnAccountAtItsQuotaBlocksNoOther(t *testing.T) {
	a := startQuotas(t, pgtest.DSN(t), map[string]int64{QuotaClusters: 1000})
	flood := a.tenantOf("flood")
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() { flood.do("POST", "/clusters", clusterBody(fmt.Sprint("c", i))).want(201) })
	}
	a.tenantOf("other").do("POST", "/clusters", clusterBody("mine")).want(201)
	all.Wait()
	a.agree()
}

// A server that PostgreSQL leaves in mid-request, by kill -9, neither exceeds a quota nor counts wrong: the count is a
// part of the transaction. The outcome of some requests is unknown to their callers.
func TestI12I13AKilledDatabaseCountsRight(t *testing.T) {
	server := pgtest.StartServer(t)
	dsn := pgtest.NewDatabase(t, server.Cluster)
	limits := map[string]int64{QuotaClusters: 20}
	one, two := startQuotas(t, dsn, limits), startQuotas(t, dsn, limits)
	ends := []*testAPI{one.tenantOf("a"), two.tenantOf("a")}
	var all sync.WaitGroup
	var next atomic.Int64
	for round := range 3 {
		var answered atomic.Int64
		begun, stop := make(chan struct{}), make(chan struct{})
		for w := range 8 {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					n := next.Add(1)
					got := ends[w%2].do("POST", "/clusters", clusterBody(fmt.Sprint("c", n)))
					if got.status == 201 && n%2 == 0 {
						ends[w%2].do("DELETE", "/clusters/"+got.at("id"), "")
						ends[w%2].do("POST", "/clusters/"+got.at("id")+"/force-delete", `{"reason":"test"}`)
					}
					if answered.Add(1) == 10 {
						close(begun)
					}
				}
			})
		}
		<-begun
		server.Kill()
		close(stop)
		all.Wait()
		server.Start()
		one.eventually(200, "GET", "/clusters?size=1", "")
		two.eventually(200, "GET", "/clusters?size=1", "")
		one.agree()
		var used int
		if _, err := fmt.Sscan(one.use("a"), &used); err != nil || used > 20 {
			t.Fatalf("round %d: %d clusters are used of 20: %v", round, used, err)
		}
		is(t, "the clusters of the account", one.do("GET", "/clusters?size=1", "").at("total"), fmt.Sprint(used))
	}
}

// What operators set counts at once and everywhere. A limit below the use deletes nothing, and admits nothing more.
func TestOperatorsSetQuotas(t *testing.T) {
	a := startQuotas(t, pgtest.DSN(t), map[string]int64{QuotaClusters: 2, QuotaNodePools: 5, QuotaNodes: 10})
	tenant := a.tenantOf("a")
	id := tenant.do("POST", "/clusters", clusterBody("one")).want(201).at("id")
	tenant.do("POST", "/clusters", clusterBody("two")).want(201)
	tenant.do("POST", "/clusters", clusterBody("three")).want(403, "LMT-002")
	pool := "/nodepools/" + tenant.do("POST", "/clusters/"+id+"/nodepools", poolBody("p", 8)).want(201).at("id")

	got := a.setQuotas("a", `"clusters":3,"nodes":4`).want(200)
	is(t, "the limits", got.at("items.0"), `{"default":2,"limit":3,"name":"clusters","used":2}`)
	is(t, "the limits", got.at("items.2"), `{"default":10,"limit":4,"name":"nodes","used":8}`)
	is(t, "a quota without limit", got.at("items.3"), `{"name":"works","used":5}`)
	is(t, "what the account sees", tenant.do("GET", "/accounts/a/quotas", "").want(200).at("items.2.limit"), "4")
	tenant.do("POST", "/clusters", clusterBody("three")).want(201)
	is(t, "the use", a.use("a"), "3 1 8 7")
	resize := func(nodes string, want int) {
		t.Helper()
		tenant.do("PATCH", pool, `{"spec":{"nodePool":{"replicas":`+nodes+`}}}`).want(want)
	}
	resize("9", 403)
	resize("7", 200) // above the limit, and less than before
	tenant.do("PATCH", pool, `{"labels":{"a":"b"}}`).want(200)
	resize("8", 403)
	tenant.do("POST", "/clusters/"+id+"/nodepools", poolBody("empty", 0)).want(201)
	is(t, "the use", a.use("a"), "3 2 7 8")

	is(t, "the version", a.setQuotas("a", `"nodes":null`).want(200).at("version"), "2")
	resize("10", 200)
	resize("11", 403)
	a.do("PATCH", "/accounts/a/quotas", `{"limits":{"nodes":11}}`, `If-Match: "1"`).want(412)
	a.do("PATCH", "/accounts/new/quotas", `{"limits":{"nodes":11}}`, `If-Match: "1"`).want(412)
	a.do("PATCH", "/accounts/a/quotas", `{"limits":{"nodes":11}}`, `If-Match: "2"`).want(200)
	resize("11", 200)
	a.setQuotas("fresh", `"clusters":0`).want(200)
	a.tenantOf("fresh").do("POST", "/clusters", clusterBody("one")).want(403)

	// A cluster counts until it is removed.
	tenant.do("DELETE", "/clusters/"+id, "").want(202)
	is(t, "the use", a.use("a"), "3 0 0 6")
	tenant.do("POST", "/clusters", clusterBody("one")).want(403)
	tenant.do("POST", "/clusters/"+id+"/force-delete", `{"reason":"test"}`).want(204)
	tenant.do("POST", "/clusters", clusterBody("one")).want(201)
	a.agree()
}

// Wrong limits, other accounts and odd specs find no way around a quota.
func TestI10QuotasAreForOperatorsToSet(t *testing.T) {
	a := startQuotas(t, pgtest.DSN(t), map[string]int64{QuotaClusters: 1, QuotaNodes: 10})
	tenant := a.tenantOf("a")
	for body, part := range map[string]string{
		`"clusters":-1`:                   "limits.clusters must be from 0 to 1000000000",
		`"clusters":1000000001`:           "limits.clusters must be from",
		`"cluster":1`:                     "limits.cluster is unknown; possible: clusters, node_pools, nodes, works",
		``:                                "limits is required",
		`"nodes":1.5`:                     "",
		`"nodes":"10"`:                    "",
		`"nodes":99999999999999999999999`: "",
		`"nodes":{}`:                      "",
	} {
		if got := a.setQuotas("a", body).want(400); !strings.Contains(got.at("detail"), part) {
			t.Errorf("%s: %s", body, got.body)
		}
	}
	a.do("PATCH", "/accounts/a/quotas", `{"limits":{},"account":"b"}`).want(400)
	a.setQuotas("a%2fb", `"nodes":1`).want(400)
	a.setQuotas(strings.Repeat("a", 64), `"nodes":1`).want(400)
	for _, account := range []string{"a", "b"} {
		tenant.setQuotas(account, `"clusters":100`).want(403, "AUZ-001")
	}
	tenant.do("GET", "/accounts/b/quotas", "").want(403, "AUZ-001")
	// A row without an account has the defaults; no request can name it.
	tenant.do("GET", "/accounts//quotas", "").want(404)

	id := tenant.do("POST", "/clusters",
		`{"kind":"Cluster","name":"c","spec":{"tenancy":{"account":"b"},"removed_at":"now"}}`).want(201).at("id")
	tenant.do("POST", "/clusters", `{"kind":"Cluster","name":"d","spec":{}}`, "X-Atoll-Tenant-Account: b",
		"X-Atoll-Account: b", "X-HyperFleet-System: true").want(403, "LMT-002")
	tenant.do("POST", "/resources", clusterBody("e")).want(403, "LMT-002")
	for i, spec := range []string{`{"nodePool":{"replicas":11}}`, `{"replicas":11}`, `{"nodePool":{"replicas":1e30}}`,
		`{"nodePool":{"replicas":10.5}}`, `{"nodePool":{"replicas":-5,"autoScaling":{"min":1,"max":11}}}`,
		`{"replicas":11,"nodePool":{"replicas":1}}`, `{"nodePool":{"replicas":9223372036854775807}}`} {
		tenant.do("POST", "/clusters/"+id+"/nodepools", fmt.Sprintf(`{"kind":"NodePool","name":"p%d","spec":%s}`, i,
			spec)).want(403, "LMT-002")
	}
	for i, spec := range []string{`{"nodePool":{"replicas":-11}}`, `{"nodePool":{"replicas":"11"}}`, `{"nodePool":[]}`,
		`{"nodePool":{"autoScaling":11}}`, `{"replicas":null}`} {
		tenant.do("POST", "/clusters/"+id+"/nodepools", fmt.Sprintf(`{"kind":"NodePool","name":"q%d","spec":%s}`, i,
			spec)).want(201)
	}
	is(t, "the use", a.use("a"), "1 5 0 7")
	is(t, "the use of b", a.use("b"), "0 0 0 0")

	// The operators' own resources, without an account, count for nobody.
	a.do("POST", "/clusters", clusterBody("ours")).want(201)
	a.do("POST", "/clusters", clusterBody("ours-2")).want(201)
	a.agree()
}
