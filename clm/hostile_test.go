package clm

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
)

// The owner of the database server chooses its settings: CLM works the same on a server that
// compiles every statement, has no memory for sorting, another time zone, another isolation and
// another date style.
func TestBadServerSettingsChangeNothing(t *testing.T) {
	server := pgtest.StartServer(t, pgtest.UnsuitableSettings())
	a := startOn(t, pgtest.NewDatabase(t, server.Cluster)) // the migrations
	watch := a.watch(t, "/clusters?watch=true")
	watch.want("BOOKMARK")
	before := time.Now().UTC()
	for i := range 5 {
		a.do("POST", "/clusters",
			fmt.Sprintf(`{"kind":"Cluster","name":"shop-%d","labels":{"n":"%d"},"spec":{"nodes":%d}}`, i, i%2, i)).want(
			201)
		watch.want(fmt.Sprintf("ADDED shop-%d", i))
	}
	list := func(query, want string) answer {
		t.Helper()
		got := a.do("GET", "/clusters?"+query, "").want(200)
		if got.at("total") != want {
			t.Errorf("%s finds %s, want %s", query, got.at("total"), want)
		}
		return got
	}
	list("size=2&page=3", "5")
	list("search="+url.QueryEscape("labels.n='1'"), "2")
	list("search="+url.QueryEscape("name in ('shop-1','shop-4') and spec.nodes > 3"), "1")
	list("search="+url.QueryEscape(fmt.Sprintf("created_time >= '%s'", before.Format(time.RFC3339))), "5")
	list("search="+url.QueryEscape(fmt.Sprintf("created_time > '%s'", time.Now().Add(time.Hour).UTC().Format(
		time.RFC3339))), "0")
	first := list("size=2&order="+url.QueryEscape("created_time desc"), "5")
	if next := list("size=2&order="+url.QueryEscape("created_time desc")+"&continue="+first.at("continue"),
		"5"); next.at("items.0.name") != "shop-2" {
		t.Errorf("the second page begins with %s", next.at("items.0.name"))
	}
	path := "/clusters/" + first.at("items.0.id")
	if created, err := time.Parse(time.RFC3339, first.at("items.0.created_time")); err != nil ||
		created.Before(before.Add(-time.Second)) ||
		time.Since(created) < 0 {
		t.Errorf("a cluster made after %v says %v, %v", before, created, err)
	}
	a.do("PUT", path+"/statuses",
		fmt.Sprintf(`{"adapter":"dns","observed_generation":1,"observed_time":%q,"conditions":[
		{"type":"Available","status":"True"},{"type":"Applied","status":"True"},{"type":"Health","status":"True"}]}`,
			time.Now().UTC().Format(time.RFC3339Nano))).want(201)
	watch.want("MODIFIED shop-4")
	a.do("PATCH", path, `{"spec":{"nodes":7}}`).want(200)
	watch.want("MODIFIED shop-4")
	a.do("DELETE", path, "").want(202)
}
