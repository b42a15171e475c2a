package clm

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// A server corrects a wrong count, while requests go on.
func TestI13WrongCountsAreCorrected(t *testing.T) {
	a := startQuotas(t, pgtest.DSN(t), map[string]int64{QuotaClusters: 1000})
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { a.tenantOf("a").do("POST", "/clusters", clusterBody(fmt.Sprint("c", i))).want(201) })
	}
	all.Wait()
	for round := range 5 {
		for _, fault := range []string{`update quota set used = '{7,-1,0,1}' where account = 'a'`,
			`delete from quota where account = 'b'`} {
			if err := a.server.store.Tx(t.Context(), func(tx *store.Tx) error {
				_, err := tx.Exec(t.Context(), fault)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 8 {
			all.Go(func() {
				a.tenantOf("b").do("POST", "/clusters", clusterBody(fmt.Sprintf("d%d-%d", round, i))).want(201)
			})
		}
		if err := a.server.correctQuotas(t.Context()); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		is(t, "the use", a.use("a"), "20 0 0 40")
	}
	if err := a.server.correctQuotas(t.Context()); err != nil {
		t.Fatal(err)
	}
	is(t, "the use", a.use("b"), "40 0 0 80")
	a.agree()
}

// An account whose row another session keeps locked is named in the error, and the accounts after it are corrected.
func TestI13AnAccountThatCannotBeCountedHindersNoOther(t *testing.T) {
	// The limit for locks is a service's: with a patient one, PostgreSQL ends the idle transaction with the lock first.
	a := startQuotasOnStore(t, pgtest.DSN(t), map[string]int64{QuotaClusters: 1000},
		func(o store.Options) store.Options {
			o.LockTimeout = 1500 * time.Millisecond
			return o.Patient()
		})
	a.tenantOf("a").do("POST", "/clusters", clusterBody("c")).want(201)
	a.tenantOf("b").do("POST", "/clusters", clusterBody("c")).want(201)
	inTx := func(do func(*store.Tx) error) {
		t.Helper()
		if err := a.server.store.Tx(t.Context(), do); err != nil {
			t.Fatal(err)
		}
	}
	inTx(func(tx *store.Tx) error {
		_, err := tx.Exec(t.Context(), `update quota set used = '{7,0,0,0}' where account in ('a', 'b')`)
		return err
	})
	inTx(func(tx *store.Tx) error {
		if _, err := tx.Exec(t.Context(), `select from quota where account = 'a' for update`); err != nil {
			return err
		}
		err := a.server.correctQuotas(t.Context())
		if err == nil || !strings.Contains(err.Error(), "account a:") {
			t.Errorf("the error does not name the locked account: %v", err)
		}
		return nil
	})
	is(t, "the use of the other account", a.use("b"), "1 0 0 2")
	if err := a.server.correctQuotas(t.Context()); err != nil {
		t.Fatal(err)
	}
	is(t, "the use of the account", a.use("a"), "1 0 0 2")
}

// For every sequence of changes the server admits exactly what the limits allow, and counts exactly what is stored.
func TestI13QuotasCountEverySequenceOfChanges(t *testing.T) {
	dsn := pgtest.DSN(t)
	a := startQuotas(t, dsn, map[string]int64{QuotaClusters: 3, QuotaNodePools: 4, QuotaNodes: 12, QuotaWorks: 11})
	defaults := []int64{3, 4, 12, 11}
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue { // each step is a request
		if err := checks.Value.Set("12"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
	}
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		account := fmt.Sprint("account-", n)
		tenant := a.tenantOf(account)
		limits, used := slices.Clone(defaults), make([]int64, 4)
		type resource struct {
			path    string
			amount  []int64
			below   map[string]*resource
			deleted bool
		}
		clusters := map[string]*resource{}
		pick := func() *resource {
			if len(clusters) == 0 {
				rt.Skip("no cluster")
			}
			return clusters[rapid.SampledFrom(slices.Sorted(maps.Keys(clusters))).Draw(rt, "cluster")]
		}
		child := func(kind string) (*resource, *resource) {
			c := pick()
			var paths []string
			for path := range c.below {
				if strings.HasPrefix(path, kind) {
					paths = append(paths, path)
				}
			}
			if len(paths) == 0 {
				rt.Skip("nothing below the cluster")
			}
			slices.Sort(paths)
			return c, c.below[rapid.SampledFrom(paths).Draw(rt, "child")]
		}
		// charge sends a request that changes the use, and compares the answer with the model.
		charge := func(before, after []int64, send func() answer, success int) (got answer, ok bool) {
			ok = true
			for i := range used {
				ok = ok && (after[i] <= before[i] || used[i]+after[i]-before[i] <= limits[i])
			}
			got = send()
			if !ok {
				success = 403
			}
			if got.status != success {
				rt.Fatalf("%s: %d %s, want %d; used %v of %v", got.what, got.status, got.body, success, used, limits)
			}
			for i := range used {
				if ok {
					used[i] += after[i] - before[i]
				}
			}
			return got, ok
		}
		none := make([]int64, 4)
		name := 0
		create := func(path, kind, spec string, amount []int64) (made *resource) {
			name++
			got, ok := charge(none, amount, func() answer {
				return tenant.do("POST", path, fmt.Sprintf(`{"kind":%q,"name":"n%d","spec":%s}`, kind, name, spec))
			}, 201)
			if !ok {
				return nil
			}
			plural := map[string]string{"Cluster": "/clusters/", "NodePool": "/nodepools/", "Credential": "/credentials/"}
			return &resource{path: plural[kind] + got.at("id"), amount: amount, below: map[string]*resource{}}
		}
		gone := func(r *resource) {
			for i := range used {
				used[i] -= r.amount[i]
			}
		}
		nodes := rapid.IntRange(0, 7)
		rt.Repeat(map[string]func(*rapid.T){
			"create a cluster": func(*rapid.T) {
				if r := create("/clusters", "Cluster", "{}", []int64{1, 0, 0, 2}); r != nil {
					clusters[r.path] = r
				}
			},
			"create below": func(*rapid.T) {
				c := pick()
				if c.deleted {
					rt.Skip("deleted")
				}
				replicas, most := nodes.Draw(rt, "replicas"), nodes.Draw(rt, "max")
				kind, spec := "NodePool", fmt.Sprintf(`{"nodePool":{"replicas":%d,"autoScaling":{"max":%d}}}`, replicas, most)
				amount := []int64{0, 1, int64(max(replicas, most)), 1}
				if rapid.Bool().Draw(rt, "credential") {
					kind, spec, amount = "Credential", "{}", []int64{0, 0, 0, 1}
				}
				plural := "/nodepools"
				if kind == "Credential" {
					plural = "/credentials"
				}
				if r := create(c.path+plural, kind, spec, amount); r != nil {
					c.below[r.path] = r
				}
			},
			"resize": func(*rapid.T) {
				_, p := child("/nodepools/")
				replicas := nodes.Draw(rt, "replicas")
				after := []int64{0, 1, int64(replicas), 1}
				if _, ok := charge(p.amount, after, func() answer {
					return tenant.do("PATCH", p.path, fmt.Sprintf(`{"spec":{"nodePool":{"replicas":%d}}}`, replicas))
				}, 200); ok {
					p.amount = after
				}
			},
			"delete below": func(*rapid.T) {
				c, r := child("/")
				tenant.do("DELETE", r.path, "").want(202)
				gone(r)
				delete(c.below, r.path)
			},
			"delete a cluster": func(*rapid.T) {
				c := pick()
				tenant.do("DELETE", c.path, "").want(202)
				for _, r := range c.below {
					gone(r)
				}
				c.deleted, c.below = true, nil
			},
			"remove a cluster": func(*rapid.T) {
				c := pick()
				if !c.deleted {
					rt.Skip("not deleted")
				}
				tenant.do("POST", c.path+"/force-delete", `{"reason":"test"}`).want(204)
				gone(c)
				delete(clusters, c.path)
			},
			"set a limit": func(*rapid.T) {
				i := rapid.IntRange(0, 3).Draw(rt, "quota")
				limit := rapid.Int64Range(0, 15).Draw(rt, "limit")
				text := fmt.Sprint(limit)
				if limit == 15 {
					limit, text = defaults[i], "null"
				}
				a.setQuotas(account, fmt.Sprintf("%q:%s", quotaNames[i], text)).want(200)
				limits[i] = limit
			},
			"": func(*rapid.T) {
				want := strings.Trim(fmt.Sprint(used), "[]")
				if got := a.use(account); got != want {
					rt.Fatalf("the use is %s, want %s", got, want)
				}
			},
		})
	})
	a.agree()
}
