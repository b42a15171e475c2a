package clm

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// Sentinels and clients of the original send these searches and orders.
func TestForeignSearches(t *testing.T) {
	a := start(t)
	one := a.do("POST", "/clusters",
		`{"kind":"Cluster","name":"one","spec":{"nodes":2},"labels":{"x/y":"1","env":"x",`+
			`"example.com/shard-a":"7"}}`).want(201)
	two := a.do("POST", "/clusters",
		`{"kind":"Cluster","name":"two","spec":{"nodes":1},"labels":{"env":"y","in":"a\u002db"}}`).want(201)
	pool := a.do("POST", "/clusters/"+one.at("id")+"/nodepools", `{"kind":"NodePool","name":"pool","spec":{}}`).want(
		201)
	a.do("DELETE", "/clusters/"+two.at("id"), "").want(202)

	// A sentinel polls like this, with a selector on a prefixed label.
	polled := a.do("GET", "/clusters?page=1&size=20&search="+url.QueryEscape("labels.x/y='1'"), "").want(200)
	is(t, "what a sentinel polls", polled.at("total")+polled.at("items.0.name"), "1one")

	for text, want := range map[string]string{
		`labels.x/y='1' and labels.env='x'`:                 "one",
		`labels.example.com/shard-a = '7'`:                  "one",
		`labels.in = "a-b"`:                                 "two",
		`name="one"`:                                        "one",
		"name=`one`":                                        "one",
		`labels.env="x" or name = "two"`:                    "one two",
		`name in ["one", "pool"]`:                           "one pool",
		`name like "o%"`:                                    "one",
		`created_time > "2020-01-01T00:00:00Z"`:             "one two pool",
		`href='` + one.at("href") + `'`:                     "one",
		`href = "` + pool.at("href") + `"`:                  "pool",
		`href='x'`:                                          "",
		`owner_kind = 'Cluster'`:                            "pool",
		`owner_href = '` + one.at("href") + `'`:             "pool",
		`deleted_by = 'tester@example.com'`:                 "two",
		`deleted_by is null`:                                "one pool",
		`tenancy = '{}' and name = 'one'`:                   "one",
		`status.conditions.Reconciled is null`:              "",
		`status.conditions.Nope is null and name = 'two'`:   "two",
		`resources.labels.x/y = '1' and (generation*2) = 2`: "one",
	} {
		query := url.QueryEscape(text)
		list := a.do("GET", "/resources?order=created_time&search="+query, "").want(200)
		var names []string
		for i := 0; list.at(fmt.Sprintf("items.%d.name", i)) != ""; i++ {
			names = append(names, list.at(fmt.Sprintf("items.%d.name", i)))
		}
		is(t, text, strings.Join(names, " "), want)
		// In memory it is found, too.
		filter, err := a.server.registry.parseSearch(text)
		if err != nil {
			t.Fatal(err)
		}
		matches := map[string]bool{}
		for kind, id := range map[string]string{"Cluster": one.at("id"), "Cluster ": two.at("id"), "NodePool": pool.at(
			"id")} {
			e := a.server.registry.byKind[strings.TrimSpace(kind)]
			d, err := a.server.store.Get(t.Context(), e.storeKind(), id)
			if err != nil {
				t.Fatal(err)
			}
			r := &row{doc: d}
			if r.spec, err = declaredOf(d); err != nil {
				t.Fatal(err)
			}
			if r.seen, err = observedOf(d); err != nil {
				t.Fatal(err)
			}
			matches[d.Name] = filter.Match(r.field)
		}
		for name, found := range matches {
			if found != strings.Contains(" "+want+" ", " "+name+" ") {
				t.Errorf("%s: in memory %s is found: %t", text, name, found)
			}
		}
	}
	for _, text := range []string{`labels.x/y`, `labels.= 'x'`, `name = "x`, `not labels.x/y = '1'`,
		`status.conditions.Reconciled != "True"`} {
		a.do("GET", "/clusters?search="+url.QueryEscape(text), "").want(400, "VAL-005")
	}

	for order, want := range map[string]string{
		"href": "one two", "href desc": "two one", "deleted_by": "two one", "spec": "two one", "spec desc": "one two",
		"tenancy,name": "one two",
		"owner_id,owner_kind,owner_href,name desc": "two one", "kind, generation desc": "two one",
	} {
		var names []string
		for next := ""; ; {
			page := a.do("GET", "/clusters?size=1&order="+url.QueryEscape(order)+"&continue="+url.QueryEscape(next),
				"").want(200)
			names = append(names, page.at("items.0.name"))
			if next = page.at("continue"); next == "" {
				break
			}
		}
		is(t, "ordered by "+order, strings.Join(names, " "), want)
		is(t, "page 2 by "+order, a.do("GET", "/clusters?size=1&page=2&order="+url.QueryEscape(order), "").want(200).at(
			"items.0.name"), strings.Fields(want)[1])
	}
	for _, order := range []string{"labels", "status", "nope", "spec.nodes", "name;drop", "Name"} {
		a.do("GET", "/clusters?order="+url.QueryEscape(order), "").want(400, "VAL-005")
	}
	// The token of the next page is short for every spec.
	for _, name := range []string{"long-a", "long-b"} {
		a.do("POST", "/clusters", `{"kind":"Cluster","name":"`+name+`","spec":{"a":"`+strings.Repeat("x", 10_000)+
			`"}}`).want(201)
	}
	if page := a.do("GET", "/clusters?size=1&order=spec", "").want(200); len(page.at("continue")) > 1000 {
		t.Errorf("the token has %d bytes", len(page.at("continue")))
	}
}
