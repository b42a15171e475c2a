package clm

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pgtest"
)

// regional is a server with a region's tenancy, and its client.
func regional(t *testing.T) *clmclient.Client {
	t.Helper()
	identity := &Identity{Open: true, Trusting: true, Tenancy: Tenancy{Enabled: true, SystemHeader: "X-System",
		Dimensions: []Dimension{{Header: clmclient.TenantHeader, Key: "account", Required: true}}}}
	a, _ := startWith(t, pgtest.DSN(t), func(o *Options) { o.Identify = identity.Identify })
	return a.client()
}

// An account reaches no resource of another account or of the system, by any route (I10).
func TestI10TenantsAreIsolated(t *testing.T) {
	c := regional(t)
	system := t.Context()
	ours, theirs := clmclient.WithTenant(system, "111111111111"), clmclient.WithTenant(system, "222222222222")
	must := func(r clmclient.Resource, err error) clmclient.Resource {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// One name, one key: each account has its own, and so has the system.
	made := must(c.Create(ours, clusters, clusterNamed("prod"), "key"))
	if other := must(c.Create(theirs, clusters, clusterNamed("prod"), "key")); other.ID == made.ID ||
		other.Tenancy["account"] != "222222222222" {
		t.Fatalf("with the key of another account: %s", other.JSON)
	}
	if own := must(c.Create(system, clusters, clusterNamed("prod"), "key")); own.ID == made.ID || len(own.Tenancy) != 0 {
		t.Fatalf("the system's: %s", own.JSON)
	}
	_, err := c.Create(ours, clusters, clusterNamed("prod"), "")
	fails(t, "a name that the account has", err, 409, "CNF-001")
	hidden := must(c.Create(system, clusters, clusterNamed("hidden"), ""))

	pool := api.ResourceCreate{Kind: "NodePool", Name: "workers", Spec: json.RawMessage(`{}`)}
	pass := api.ResourceCreate{Kind: "Pass", Name: "admin", Spec: json.RawMessage(
		`{"expires_at":"2126-01-01T00:00:00Z"}`)}
	pools, passes := clusters.Below(made.ID, "nodepools"), clusters.Below(made.ID, "passes")
	below := []clmclient.Resource{must(c.Create(ours, pools, pool, "")), must(c.Create(system, passes, pass, ""))}
	for _, r := range below {
		if r.Tenancy["account"] != "111111111111" {
			t.Errorf("%s is not its owner's: %v", r.Kind, r.Tenancy)
		}
	}

	none := func(what string, err error) {
		t.Helper()
		if remote.StatusOf(err) != http.StatusNotFound {
			t.Errorf("%s: %v, want 404", what, err)
		}
	}
	patch := json.RawMessage(`{"labels":{"mine":"yes"}}`)
	for _, at := range []struct {
		in clmclient.Collection
		clmclient.Resource
	}{
		{clusters, made}, {clmclient.AllKinds, made}, {clusters, hidden}, {"nodepools", below[0]}, {pools, below[0]},
		{"passes", below[1]}, {passes, below[1]}, {clmclient.AllKinds, below[1]},
	} {
		_, err := c.Get(theirs, at.in, at.ID, "")
		none("get "+string(at.in), err)
		unknown := "0190a000-0000-7000-8000-000000000000"
		_, err2 := c.Get(theirs, at.in, unknown, "")
		if a, b := reasonOf(err, at.ID), reasonOf(err2, unknown); a != b {
			t.Errorf("the answer for another tenant's resource differs from that for an unknown one: %q, %q", a, b)
		}
		_, err = c.Merge(theirs, at.in, at.ID, patch, "")
		none("merge", err)
		_, err = c.Replace(theirs, at.in, at.ID, patch, "")
		none("replace", err)
		_, err = c.Delete(theirs, at.in, at.ID, "")
		none("delete", err)
		none("force-delete", c.ForceDelete(theirs, at.in, at.ID, "why"))
		_, err = c.Statuses(theirs, at.in, at.ID)
		none("statuses", err)
		_, err = c.History(theirs, at.in, at.ID, 0, 10)
		none("history", err)
		none("reconcile", c.Reconcile(theirs, at.in, at.ID, ""))
		_, err = c.Report(theirs, at.in, at.ID, api.AdapterStatusCreate{Adapter: "dns", ObservedGeneration: 1,
			ObservedTime: time.Now(),
			Conditions: []api.ReportedCondition{{Type: "Available", Status: "True"},
				{Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"}}})
		if remote.StatusOf(err) != http.StatusForbidden {
			t.Errorf("report: %v, want 403", err)
		}
	}
	_, err = c.List(theirs, pools, clmclient.ResourceQuery{})
	none("the node pools of another's cluster", err)
	_, err = c.Create(theirs, pools, pool, "")
	none("a node pool in another's cluster", err)
	_, err = c.Create(theirs, clusters.Below(hidden.ID, "nodepools"), pool, "")
	none("a node pool in the system's cluster", err)
	if err := c.ReconcileAll(theirs, "", ""); remote.StatusOf(err) != http.StatusForbidden {
		t.Errorf("work on all: %v", err)
	}

	// Lists: no resource of another account by a search, by a reference or in a count.
	for _, q := range []clmclient.ResourceQuery{{}, {Search: remote.SearchEqual("id", made.ID)},
		{Search: remote.SearchEqual("owner_id", made.ID)}, {RefType: "wif_config", RefTo: made.ID}} {
		for _, in := range []clmclient.Collection{clusters, clmclient.AllKinds, "nodepools", "passes"} {
			if q.RefType != "" && in != clusters && in != clmclient.AllKinds {
				continue // a kind without such references
			}
			page, err := c.List(theirs, in, q)
			want := 0
			if q == (clmclient.ResourceQuery{}) && (in == clusters || in == clmclient.AllKinds) {
				want = 1
			}
			if err != nil || page.Total != want || len(page.Items) != want {
				t.Errorf("list %s %+v: %d of %d, %v", in, q, len(page.Items), page.Total, err)
			}
		}
	}
	if page, err := c.List(system, clusters, clmclient.ResourceQuery{}); err != nil || page.Total != 4 {
		t.Errorf("the system sees %d, %v", page.Total, err)
	}

	// A watch, also with the cursor of another account, shows no foreign resource and no foreign
	// deletion.
	all, err := c.List(ours, clmclient.AllKinds, clmclient.ResourceQuery{})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := c.Watch(theirs, clmclient.AllKinds, remote.WatchOptions{Cursor: all.Cursor})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	must(c.Merge(ours, clusters, made.ID, patch, ""))
	must(c.Delete(ours, clusters, made.ID, ""))
	must(c.Create(theirs, clusters, clusterNamed("next"), ""))
	for {
		e, err := watch.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "BOOKMARK" {
			continue
		}
		r, err := clmclient.ResourceOf(e.Object)
		if err != nil || r.Tenancy["account"] != "222222222222" {
			t.Fatalf("the watch shows %s %s, %v", e.Type, e.Object, err)
		}
		if r.Name == "next" {
			break
		}
	}

	// A request for an empty account is refused before its handler runs.
	if _, err := c.List(clmclient.WithTenant(system, ""), clusters, clmclient.ResourceQuery{}); err == nil ||
		remote.StatusOf(err) != 0 {
		t.Errorf("an empty account: %v", err)
	}
}

// reasonOf returns the text of an error without the requested id.
func reasonOf(err error, id string) string {
	e, ok := errors.AsType[*remote.Error](err)
	if !ok {
		return "no error of CLM"
	}
	return e.Code + " " + strings.ReplaceAll(e.Reason, id, "ID")
}
