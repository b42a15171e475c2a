package clm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
)

// A resource without reports is removed at once; a resource with adapters is removed with the
// report that completes its clean-up (I9).
func TestI9DeleteCompletesWithTheLastReport(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	a.report(path, "dns", 1, "True", "").want(201)
	a.report(path, "validation", 1, "True", "").want(201)
	is(t, "Reconciled", a.do("GET", path, "").condition("Reconciled"), "True@1 ReconciledAll")

	gone := a.do("DELETE", path, "").want(202)
	is(t, "generation", gone.at("generation"), "2")
	is(t, "who", gone.at("deleted_by"), "tester@example.com")
	is(t, "Reconciled", gone.condition("Reconciled"), "False@2 ReconciledMissingAdapters")
	is(t, "LastKnownReconciled", gone.condition("LastKnownReconciled"), "True@1 AllAdaptersReconciled")
	again := a.do("DELETE", path, "").want(202)
	is(t, "the version that the second answer shows", version(again), version(gone))
	is(t, "the time of the deletion", again.at("deleted_time"), gone.at("deleted_time"))
	a.do("PATCH", path, `{"labels":{"a":"b"}}`).want(409, "CNF-003")
	a.do("POST", path+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(409, "CNF-003")
	is(t, "it is still listed", a.do("GET", "/clusters", "").at("total"), "1")

	a.report(path, "dns", 1, "False", "True").want(201) // of the old generation: kept, and not counted
	a.report(path, "dns", 2, "False", "False").want(201)
	a.report(path, "dns", 2, "False", "True").want(201)
	a.do("GET", path, "").want(200)
	a.report(path, "validation", 2, "False", "True").want(201)
	a.do("GET", path, "").want(404, "NTF-001")
	a.report(path, "validation", 2, "False", "True").want(404, "NTF-001")
	is(t, "the list", a.do("GET", "/clusters", "").at("total"), "0")
	h := a.do("GET", path+"/history", "").want(200)
	is(t, "what history ends with", h.at("items.0.action"), "remove")
	a.cluster("abc")
}

// A deletion includes the children. The parent is removed with its last child, without another
// report of its own adapters.
func TestI9AParentIsRemovedWithItsLastChild(t *testing.T) {
	a := start(t)
	id := a.cluster("abc")
	path := "/clusters/" + id
	pool := path + "/nodepools/" + a.do("POST", path+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(
		201).at("id")
	note := path + "/notes/" + a.do("POST", path+"/notes", `{"kind":"Note","name":"n","spec":{}}`).want(201).at("id")
	a.do("DELETE", path, "").want(202)
	a.do("GET", note, "").want(404) // nothing to clean up
	is(t, "the pool's generation", a.do("GET", pool, "").want(200).at("generation"), "2")
	a.report(path, "dns", 2, "False", "True").want(201)
	a.report(path, "validation", 2, "False", "True").want(201)
	is(t, "Reconciled", a.do("GET", path, "").want(200).condition("Reconciled"), "False@2 ReconciledWaitingForChildren")
	a.report(pool, "node-pool", 2, "False", "True").want(201)
	a.do("GET", pool, "").want(404, "NTF-001")
	a.do("GET", path, "").want(404, "NTF-001")
}

func TestAParentWithRestrictedChildrenStays(t *testing.T) {
	a := start(t)
	channel := "/channels/" + a.do("POST", "/channels", `{"kind":"Channel","name":"c","spec":{}}`).want(201).at("id")
	version := channel + "/versions/" + a.do("POST", channel+"/versions",
		`{"kind":"Version","name":"v","spec":{}}`).want(201).at("id")
	a.do("DELETE", channel, "").want(409, "CNF-003")
	a.do("DELETE", version, "").want(202)
	a.do("DELETE", channel, "").want(202)
	a.do("GET", channel, "").want(404)
}

// A child that is being deleted is waited for, and does not keep its owner.
func TestAParentWaitsForRestrictedChildrenUnderDeletion(t *testing.T) {
	a := start(t)
	channel := "/channels/" + a.do("POST", "/channels", `{"kind":"Channel","name":"c","spec":{}}`).want(201).at("id")
	path := channel + "/builds/" + a.do("POST", channel+"/builds", `{"kind":"Build","name":"b","spec":{}}`).want(
		201).at("id")
	a.do("DELETE", channel, "").want(409, "CNF-003")
	a.do("DELETE", path, "").want(202)
	a.do("DELETE", channel, "").want(202)
	a.do("GET", channel, "").want(200)
	a.report(path, "builder", 2, "False", "True").want(201)
	a.do("GET", channel, "").want(404)
}

func TestForceDelete(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	a.do("POST", path+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201)
	a.do("DELETE", path, "").want(202)
	a.do("POST", path+"/force-delete", `{"reason":"the adapter is gone"}`).want(204)
	a.do("GET", path, "").want(404)
	is(t, "pools", a.do("GET", "/nodepools", "").at("total"), "0")
	h := a.do("GET", path+"/history", "").want(200)
	is(t, "what history says", h.at("items.0.action")+" "+h.at("items.1.action")+" "+h.at("items.1.note.reason")+" "+
		h.at("items.1.principal"),
		"remove force-delete the adapter is gone tester@example.com")
	a.do("POST", path+"/force-delete", `{"reason":"x"}`).want(404)
}

// Creates, patches, reports and deletions of one family at once, in any order:
// no deadlock is seen, and in the end nothing is left (I9).
func TestI9AFamilyConvergesUnderConcurrentDeletions(t *testing.T) {
	a := start(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	path := "/clusters/" + a.cluster("abc")
	var wg sync.WaitGroup
	for worker := range 6 {
		rnd := rand.New(rand.NewPCG(seed, uint64(worker)))
		wg.Go(func() {
			for i := range 15 {
				made := a.do("POST", path+"/nodepools", fmt.Sprintf(`{"kind":"NodePool","name":"p%d-%d","spec":{}}`,
					worker, i))
				switch made.status {
				case 409, 404:
					return // the cluster is being deleted, or gone
				case 503:
					continue // all six wait for the row of one cluster; on a busy machine for too long
				}
				pool := "/nodepools/" + made.want(201).at("id")
				if rnd.IntN(2) == 0 {
					a.report(pool, "node-pool", 1, "True", "")
				}
				if rnd.IntN(3) == 0 {
					a.do("DELETE", pool, "")
				}
				if worker == 0 && i == 7 {
					repeat(t, func() answer { return a.do("DELETE", path, "") }).want(202)
				}
			}
		})
	}
	wg.Wait()
	a.report(path, "dns", 2, "False", "True")
	a.report(path, "validation", 2, "False", "True")
	list := a.do("GET", "/nodepools?size=100", "").want(200)
	slots := make(chan struct{}, 8) // fewer than connections: all want the cluster's row
	for i := 0; list.at(fmt.Sprintf("items.%d.id", i)) != ""; i++ {
		item := fmt.Sprintf("items.%d.", i)
		if list.at(item+"deleted_time") == "" {
			t.Errorf("%s is not being deleted", list.at(item+"name"))
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			// A try whose answer was 503 may have removed the pool.
			pool := "/nodepools/" + list.at(item+"id")
			last := repeat(t, func() answer { return a.report(pool, "node-pool", 2, "False", "True") })
			if last.status != 404 {
				last.want(201)
			}
		})
	}
	wg.Wait()
	a.do("GET", path, "").want(404)
	is(t, "what is left", a.do("GET", "/resources", "").at("total"), "0")
}

// The last reports on a parent and on its child may arrive at once, each at another process: both
// resources are removed (I9).
func TestI9ConcurrentLastReportsOfParentAndChildRemoveBoth(t *testing.T) {
	dsn := pgtest.DSN(t)
	a, b := startOn(t, dsn), startOn(t, dsn)
	path := "/clusters/" + a.cluster("abc")
	pool := "/nodepools/" + a.do("POST", path+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201).at(
		"id")
	a.do("DELETE", path, "").want(202)
	a.report(path, "dns", 2, "False", "True").want(201)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after the lock is gone
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	holder, look := connect(), connect()
	if _, err := holder.Exec(t.Context(), `begin; select from document where kind = 'Cluster' for update`); err != nil {
		t.Fatal(err)
	}
	last := func(by *testAPI, path string, adapter cluster.Adapter) {
		wg.Go(func() {
			for { // a request that waits too long gets a 503 and is repeated
				if got := by.report(path, adapter, 2, "False", "True"); got.status != 503 {
					got.want(201)
					return
				}
			}
		})
	}
	await := func(n int) {
		for waiting := 0; waiting < n; {
			if err := look.QueryRow(t.Context(),
				`select count(*) from pg_sleep(0.02), pg_stat_activity where wait_event_type = 'Lock' and `+
					`datname = current_database()`).Scan(&waiting); err != nil {
				t.Fatal(err)
			}
		}
	}
	last(b, pool, "node-pool")
	await(1)
	last(a, path, "validation") // stands behind the pool's
	await(2)
	if _, err := holder.Exec(t.Context(), `rollback`); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	a.do("GET", path, "").want(404, "NTF-001")
}

// A request that waits for a family's lock holds no database connection.
func TestReportsThatWaitForALockUseNoConnections(t *testing.T) {
	dsn := pgtest.DSN(t)
	a := startOn(t, dsn)
	path := "/clusters/" + a.cluster("one")
	const pools = 40 // more than there are connections
	var ids []string
	for i := range pools {
		ids = append(ids, a.do("POST", path+"/nodepools", fmt.Sprintf(`{"kind":"NodePool","name":"p%d","spec":{}}`,
			i)).want(201).at("id"))
	}
	a.do("DELETE", path, "").want(202)
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	conn, look := connect(), connect() // within a transaction the activity stays as it was
	if _, err := conn.Exec(t.Context(), `begin; select from document where kind = 'Cluster' for update`); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			for { // a request that waits too long gets a 503 and is repeated
				if got := a.report("/nodepools/"+id, "node-pool", 2, "False", "True"); got.status != 503 {
					got.want(201)
					return
				}
			}
		})
	}
	for waiting := 0; waiting == 0; {
		if err := look.QueryRow(t.Context(),
			`select count(*) from pg_sleep(0.02), pg_stat_activity where wait_event_type = 'Lock' and `+
				`datname = current_database()`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		a.do("GET", "/clusters", "").want(200)
	}
	if _, err := conn.Exec(t.Context(), `rollback`); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	is(t, "pools left", a.do("GET", "/nodepools", "").at("total"), "0")
}

// A deletion that waited for adapters that are not required any more ends.
func TestI9ADeletionWithoutRequiredAdaptersEnds(t *testing.T) {
	dsn := pgtest.DSN(t)
	a, stop := startWith(t, dsn, func(*Options) {})
	path := "/clusters/" + a.cluster("abc")
	a.do("POST", path+"/nodepools", `{"kind":"NodePool","name":"np","spec":{}}`).want(201)
	a.do("DELETE", path, "").want(202)
	waits := "/clusters/" + a.cluster("waits")
	a.do("DELETE", waits, "").want(202)
	a.report(waits, "dns", 2, "False", "True").want(201)
	stop()
	b, stop := startAs(t, dsn, strings.NewReplacer("required_adapters: [node-pool]", "required_adapters: []",
		"[dns, validation]", "[dns]").Replace(testEntities), func(*Options) {})
	later := time.Now().Add(2 * time.Minute)
	if err := b.server.tidy(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	b.do("GET", waits, "").want(404)
	is(t, "who ended it", b.do("GET", waits+"/history", "").at("items.0.principal"), itself)
	is(t, "what the other cluster waits for", b.do("GET", path+"/nodepools", "").want(200).at("total"), "0")
	b.report(path, "dns", 2, "False", "True").want(201)
	b.do("GET", path, "").want(404)
	stop()
}
