package rosa_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"atoll.dev/access"
	"atoll.dev/api/platform"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
)

// A customer who calls every route and every watch reads neither the names nor the
// free capacity of other management clusters, and the name of the cluster's own only
// where the region shows it. The reports have the long messages of older adapters.
func TestACustomerFindsNoInventory(t *testing.T) {
	l := startLifecycle(t)
	const inventory = "edge-7: planes: free-4711 of all-5822 free, 1 needed; edge-8: cordoned; and 933 more"
	id := l.inhabit(inventory)
	for _, c := range []struct {
		placement  rosa.Placement
		privileged bool
		own        bool // the name of the cluster's own management cluster is shown
	}{
		{rosa.PlacementToOperators, false, false},
		{rosa.PlacementToCustomers, false, true},
		{rosa.PlacementToOperators, true, true},
		{"", false, false},
	} {
		t.Run(fmt.Sprintf("%q privileged=%v", c.placement, c.privileged), func(t *testing.T) {
			who := access.Identity{Account: customer.Account, Principal: customer.Principal, Privileged: c.privileged}
			s := httptest.NewServer(rosa.New(rosa.Options{
				Maestro: l.maestro, CLM: l.front, Ops: rest.NewOps(), Placement: c.placement, Log: slog.New(
					slog.DiscardHandler), Patience: 10 * time.Millisecond,
				Identifier: fixedIdentity(who), Policy: allowAll{},
			}))
			defer s.Close()
			answers := walk(t, s, id, c.privileged)
			for _, never := range []string{"edge-7", "edge-8", "free-4711", "all-5822", "933 more", "cordoned", "free"} {
				for route, body := range answers {
					if strings.Contains(body, never) {
						t.Errorf("%s says %s: %s", route, never, body)
					}
				}
			}
			shown := false
			for route, body := range answers {
				if strings.Contains(body, "mc-own") {
					if shown = true; !c.own {
						t.Errorf("%s names the management cluster: %s", route, body)
					}
				}
			}
			if shown != c.own {
				t.Errorf("the cluster's own management cluster is shown: %v", shown)
			}
		})
	}
}

// inhabit creates a customer's cluster that was created, ready, updated and failed, a
// cluster that waits for capacity, and their node pools and credentials.
func (l *lifecycle) inhabit(inventory string) (id string) {
	t := l.t
	who := access.Identity{Account: customer.Account, Principal: customer.Principal}
	s := httptest.NewServer(rosa.New(rosa.Options{
		Maestro: l.maestro, CLM: l.front, Ops: rest.NewOps(), Log: slog.New(slog.DiscardHandler),
		Identifier: fixedIdentity(who), Policy: allowAll{},
	}))
	defer s.Close()
	made := func(path, body string) string {
		t.Helper()
		r, err := s.Client().Post(s.URL+"/api/v0"+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var v struct{ ID string }
		if err := json.NewDecoder(r.Body).Decode(&v); err != nil || r.StatusCode != http.StatusCreated {
			t.Fatalf("POST %s: %s, %v", path, r.Status, err)
		}
		return v.ID
	}
	id, waits := made("/clusters", `{"name":"lives"}`), made("/clusters", `{"name":"waits"}`)
	pool := made("/nodepools", fmt.Sprintf(`{"cluster_id":%q,"name":"w"}`, id))
	for _, c := range []string{id, waits} {
		l.report("clusters", c, "placement", `{"state":"Waiting"}`, "Available=False:NoCapacity:waiting for capacity| "+
			inventory)
		l.report("clusters", c, "hosted-cluster", `{"target_cluster":""}`,
			"Available=False:NoCapacity:waiting for capacity| "+inventory, "Applied=False:NoCapacity:"+inventory)
	}
	const own = `{"management_cluster":"mc-own","target_cluster":"mc-own","namespace":"clusters-x"`
	l.report("clusters", id, "placement", own+`}`, "Available=True:Placed:on management cluster mc-own",
		"Applied=True:Placed:on management cluster mc-own")
	l.report("clusters", id, "hosted-cluster", own+`,"progressing":"mc-own acts","degraded":"mc-own is slow"}`,
		"Available=False:Provisioning:ordered from mc-own, which has not taken it up yet")
	l.report("clusters", id, "hosted-cluster", own+`}`,
		"Available=False:ManagementClusterLost:mc-own is not connected; the cluster continues when it reconnects",
		"Health=False:ExecutionFailed:mc-own| POST https://10.0.0.1/works failed")
	l.report("nodepools", pool, "node-pool", own+`,"replicas":0}`, "Available=False:Refused:mc-own refused it: x",
		"Applied=True:Applied:on management cluster mc-own")
	return id
}

// walk calls every route of the document and returns the answers. It reads a watch up
// to the bookmark after the existing resources.
func walk(t *testing.T, s *httptest.Server, cluster string, privileged bool) map[string]string {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(platform.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{}
	call := func(method, path string) string {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var body bytes.Buffer
		if !strings.Contains(path, "watch=true") || r.StatusCode != http.StatusOK {
			_, _ = io.Copy(&body, r.Body)
		} else {
			lines := bufio.NewScanner(r.Body)
			for shown := false; lines.Scan(); {
				body.Write(lines.Bytes())
				body.WriteByte('\n')
				shown = shown || strings.Contains(lines.Text(), "ADDED")
				if shown && strings.Contains(lines.Text(), "BOOKMARK") {
					break
				}
			}
		}
		answers[method+" "+path] = r.Status + " " + body.String()
		return body.String()
	}
	pool := ""
	var pools struct{ Items []struct{ ID string } }
	if err := json.Unmarshal([]byte(call("GET", "/api/v0/nodepools?cluster_id="+cluster)), &pools); err != nil ||
		len(pools.Items) != 1 {
		t.Fatalf("node pools: %+v, %v", pools, err)
	}
	pool = pools.Items[0].ID
	for path, item := range doc.Paths.Map() {
		operator := slices.ContainsFunc([]string{"/management_clusters", "/work", "/resource_bundles", "/accounts"},
			func(s string) bool { return strings.HasPrefix(path, "/api/v0"+s) })
		if strings.HasSuffix(path, "/ready") || operator && privileged || strings.HasSuffix(path, "/openapi") {
			continue // of the operator, or of nobody
		}
		id := cluster
		if strings.Contains(path, "nodepools") {
			id = pool
		}
		at := strings.NewReplacer("{id}", id, "{cid}", id, "{arn}", id).Replace(path)
		for method, op := range item.Operations() {
			if method == "DELETE" {
				continue // it is needed still
			}
			body := call(method, at)
			if operator && !strings.HasPrefix(answers[method+" "+at], "403") {
				t.Errorf("a customer may %s %s: %s", method, at, body)
			}
			if op.Parameters.GetByInAndName("query", "watch") != nil {
				call(method, at+"?watch=true")
			}
		}
	}
	return answers
}

// fixedIdentity identifies every sender as one caller.
type fixedIdentity access.Identity

func (f fixedIdentity) Identify(*http.Request) (access.Identity, []byte, error) {
	return access.Identity(f), nil, nil
}

// allowAll allows every caller every action, as a region does that has policies.
type allowAll struct{}

func (allowAll) Decide(context.Context, access.Question) (access.Grant, error) {
	return access.Grant{}, nil
}
