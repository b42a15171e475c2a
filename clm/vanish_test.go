package clm

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
)

// A parent that was removed since its child was read is no error of the server.
func TestARemovedParentIsNoServerError(t *testing.T) {
	dsn := pgtest.DSN(t)
	a := startOn(t, dsn)
	for name, request := range map[string]func(path string) answer{
		"a deletion": func(path string) answer { return a.do("DELETE", path, "") },
		"a report": func(path string) answer {
			a.do("DELETE", path, "")
			return a.report(path, "node-pool", 2, "False", "True")
		},
		"a forced deletion": func(path string) answer {
			a.do("DELETE", path, "")
			return a.do("POST", path+"/force-delete", `{"reason":"x"}`)
		},
	} {
		cluster := a.cluster("c-" + strings.ReplaceAll(name, " ", "-"))
		pool := "/nodepools/" + a.do("POST", "/clusters/"+cluster+"/nodepools",
			`{"kind":"NodePool","name":"p","spec":{}}`).want(201).at("id")
		run(t, dsn, fmt.Sprintf(`update document set removed_at = now(), deleted_at = now() where id = '%s'`, cluster))
		if got := request(pool); got.status >= 500 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}

// Children, their reports and forced deletions of the parent at once: nothing is
// an error of the server.
func TestConcurrentDeletionsOfFamilies(t *testing.T) {
	a := start(t)
	for i := range 8 {
		cluster := "/clusters/" + a.cluster(fmt.Sprintf("abc-%d", i))
		var pools []string
		for j := range 3 {
			pools = append(pools, "/nodepools/"+a.do("POST", cluster+"/nodepools",
				fmt.Sprintf(`{"kind":"NodePool","name":"p-%d","spec":{}}`, j)).want(201).at("id"))
		}
		a.do("DELETE", cluster, "").want(202)
		var wg sync.WaitGroup
		try := func(method, path, body string) {
			wg.Go(func() {
				if got := a.do(method, path, body); got.status == 500 {
					t.Errorf("%s %s: %s", method, path, got.body)
				}
			})
		}
		for _, pool := range pools {
			try("PUT", pool+"/statuses", finalized("node-pool", 2))
			try("DELETE", pool, "")
			try("POST", pool+"/force-delete", `{"reason":"x"}`)
		}
		try("POST", cluster+"/force-delete", `{"reason":"x"}`)
		try("PUT", cluster+"/statuses", finalized("dns", 2))
		try("POST", cluster+"/nodepools", `{"kind":"NodePool","name":"late","spec":{}}`)
		wg.Wait()
	}
}

func finalized(adapter cluster.Adapter, generation int) string {
	return strings.Replace(statusBody(adapter, generation, time.Now(), "False"), `"conditions":[`,
		`"conditions":[{"type":"Finalized","status":"True"},`, 1)
}

// No reference outlives its target: CLM neither deletes nor removes a resource with references, and
// refuses new references to a resource under deletion. So a forced deletion refuses instead of
// clearing references.
func TestNoReferenceOutlivesItsTarget(t *testing.T) {
	dsn := pgtest.DSN(t)
	a, _ := startAs(t, dsn, `
entities:
- {kind: Key, plural: keys, required_adapters: [vault]}
- {kind: Cluster, plural: clusters, references: [{ref_type: key, target_kind: Key}]}
`, func(*Options) {})
	a.agreed = nil
	for i := range 12 {
		key := a.do("POST", "/keys", fmt.Sprintf(`{"kind":"Key","name":"k-%d","spec":{}}`, i)).want(201).at("id")
		cluster := a.cluster(fmt.Sprintf("c-%d", i))
		refer := `{"references":{"key":[{"id":"` + key + `","kind":"Key"}]}}`
		var wg sync.WaitGroup
		wg.Go(func() { a.do("PATCH", "/clusters/"+cluster, refer) })
		wg.Go(func() {
			if a.do("DELETE", "/keys/"+key, "").status == 202 {
				a.do("POST", "/keys/"+key+"/force-delete", `{"reason":"x"}`).want(204)
			}
		})
		wg.Wait()
		refers := a.do("GET", "/clusters/"+cluster, "").at("references.key.0.id") == key
		if there := a.do("GET", "/keys/"+key, "").status == 200; refers != there {
			t.Errorf("round %d: it refers: %t, the target is there: %t", i, refers, there)
		}
	}
	// A reference that was written in another way blocks a forced deletion.
	key := a.do("POST", "/keys", `{"kind":"Key","name":"last","spec":{}}`).want(201).at("id")
	cluster := a.cluster("last")
	a.do("DELETE", "/keys/"+key, "").want(202)
	run(t, dsn,
		fmt.Sprintf(`insert into reference (source, type, target) values ('%s', 'key', '%s'), ('gone', 'key', '%[2]s')`,
			cluster, key))
	if got := a.do("POST", "/keys/"+key+"/force-delete", `{"reason":"x"}`).want(409, "CNF-003"); !strings.Contains(
		got.at("detail"), cluster) {
		t.Errorf("the answer does not name the actor: %s", got.body)
	}
	a.do("DELETE", "/clusters/"+cluster, "").want(202)
	a.do("POST", "/keys/"+key+"/force-delete", `{"reason":"x"}`).want(204)
}

// A task of tidying up that always fails holds up no other.
func TestAnErrorDoesNotStopHousekeeping(t *testing.T) {
	dsn := pgtest.DSN(t)
	a := startOn(t, dsn)
	a.do("POST", "/resources/reconcile", `{}`).want(202)
	broken := a.cluster("broken")
	a.do("DELETE", "/clusters/"+broken, "").want(202)
	a.do("POST", "/channels", `{"kind":"Channel","name":"c","spec":{}}`, "Idempotency-Key: k").want(201)
	run(t, dsn, fmt.Sprintf(`update document set deleted_at = now() - interval '1 hour', status = '[]', detail = null
		where id = '%s'`,
		broken))
	later := time.Now().Add(48 * time.Hour)
	if err := a.server.tidy(t.Context(), later); err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("the error is %v", err)
	}
	run(t, dsn, `do $$ begin
		if exists (select from document where kind = 'Request' and removed_at is null) then raise exception 'requests are left'; end if;
		if exists (select from idempotency) then raise exception 'keys are left'; end if;
	end $$`)
}
