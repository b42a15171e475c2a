package sentinel

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

func TestNewAndChangedResourcesHaveAnEventAtOnce(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("cl-one", "clusters")
	w.start("one")
	d := w.create(cluster, "c1", nil)
	h := a.waitForEvent("c1", 1)
	if got := h.Event; got.Type != "com.redhat.hyperfleet.cluster.reconcile" || got.Source != "hyperfleet-sentinel" ||
		got.DataContentType != "application/json" || !got.Time.IsZero() {
		t.Errorf("the event: %+v", got)
	}
	if want := `{"id":"c1","kind":"Cluster","href":"/api/hyperfleet/v1/clusters/c1","generation":1}`; string(
		h.Event.Data) != want {
		t.Errorf("data %s, want %s", h.Event.Data, want)
	}
	// A poll every ten seconds would have each event ten seconds after the one before. The machine may pause at some.
	generation, least := int64(1), time.Hour
	for last := h.At; least > 5*time.Second && generation < 6; generation++ {
		w.change(cluster, "c1", int(generation))
		next := a.waitForEvent("c1", generation+1)
		least, last = min(least, next.At.Sub(last)), next.At
	}
	if least > 5*time.Second {
		t.Errorf("each of %d events came more than %s after the one before", generation-1, least)
	}
	// A deletion is a generation, too.
	_, _, err := w.store.Update(t.Context(), d.Kind, d.ID, 0, func(d *store.Document) error {
		now := time.Now().UTC()
		d.DeletedAt, d.Spec, d.Status = &now, encoded(t, testSpec{nil, "gone"}),
			encoded(t, reconciled("False", generation+1, "", now))
		return nil
	})
	must(t, 0, err)
	a.waitForEvent("c1", generation+1)
	if err := w.store.Remove(t.Context(), cluster, "c1", 0); err != nil {
		t.Fatal(err)
	}
}

// A resource of a kind without adapters has one event for each generation.
func TestAResourceWithoutReportsHasOneEventForEachGeneration(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("ch", "channels")
	r := w.start("one")
	w.create(channel, "stable", nil)
	a.waitForEvent("stable", 1)
	w.change(channel, "stable", 1)
	a.waitForEvent("stable", 2)
	w.wait("nothing is due", func() bool {
		return inside(r, func() bool {
			s := r.table.all[key{channel, "stable"}]
			return s != nil && !isPending(s.State) && s.Published == 2
		})
	})
}

func TestAReportCausesAnEventUnlessOnlyItsTimeChanged(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("cl", "clusters")
	r := w.start("one", func(o *Options) { o.Policy.MinRetry = time.Hour })
	w.create(cluster, "c1", nil)
	a.waitForEvent("c1", 1)
	first := inside(r, func() int64 { return r.table.all[key{cluster, "c1"}].Version })
	w.report("c1", "False", "one of two has reported", time.Now())
	a.waitForEvent("c1", 1)
	w.report("c1", "False", "one of two has reported", time.Now().Add(time.Second))
	w.wait("the second report was seen", func() bool {
		return inside(r, func() bool {
			s := r.table.all[key{cluster, "c1"}]
			return s.Version == first+2 && !s.Sending
		})
	})
	due := inside(r, func() time.Time { return r.table.all[key{cluster, "c1"}].Due.time() })
	if len(a.events) > 0 || time.Until(due) < 2*time.Minute {
		t.Errorf("there were %d more events, and the next is due at %s", len(a.events), due)
	}
	w.report("c1", "True", "all have reported", time.Now())
	w.wait("it is reconciled", func() bool {
		return inside(r, func() bool { return !isPending(r.table.all[key{cluster, "c1"}].State) })
	})
	due = inside(r, func() time.Time { return r.table.all[key{cluster, "c1"}].Due.time() })
	if in := time.Until(due); in < 29*time.Minute || in > 31*time.Minute || len(a.events) > 0 {
		t.Errorf("the check for drift is due in %s; there were %d more events", in, len(a.events))
	}
}

// I12, I6: while the broker is down, the events of a resource become one, which is sent when the broker is up again.
func TestI12AfterAnOutageOfTheBrokerEachResourceHasOneEvent(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("cl", "clusters")
	r := w.start("one")
	for i := range 20 {
		w.create(cluster, fmt.Sprint("before-", i), nil)
	}
	first := map[string]bool{}
	a.waitFor("all", func(h received) bool { first[h.Data.ID] = true; return len(first) == 20 })
	for i := range 10 {
		w.report(fmt.Sprint("before-", i), "True", "done", time.Now())
	}
	w.wait("ten are reconciled", func() bool {
		return inside(
			r, func() bool { return r.table.count(cluster).pending == 10 })
	})
	w.stopBroker()
	w.wait("the client has lost the broker", func() bool { return !r.client.Connected() })
	for i := range 20 {
		w.create(cluster, fmt.Sprint("during-", i), nil)
		for n := range 3 {
			w.change(cluster, fmt.Sprint("during-", i), n+1)
		}
	}
	w.wait("the sentinel has read all changes", func() bool {
		return inside(r, func() bool { return len(r.table.all) == 40 && len(r.table.unsent) == 20 })
	})
	for len(a.events) > 0 {
		<-a.events
	}
	w.startBroker()
	seen := map[string]int64{}
	a.waitFor("events of all unreconciled resources", func(h received) bool {
		seen[h.Data.ID] = h.Data.Generation
		return len(seen) == 30
	})
	for i := range 10 {
		if g := seen[fmt.Sprint("before-", i)]; g != 0 {
			t.Errorf("before-%d is reconciled, and was sent", i)
		}
	}
	for i := range 20 {
		if g := seen[fmt.Sprint("during-", i)]; g != 4 {
			t.Errorf("during-%d came at generation %d", i, g)
		}
	}
}

// I6: an adapter that connects receives an event of each unreconciled resource at once, and of no other.
func TestI6AConnectingAdapterReceivesUnreconciledResources(t *testing.T) {
	w := newWorld(t)
	first := w.adapter("cl-one", "clusters")
	r := w.start("one", func(o *Options) { o.Policy.MinRetry = time.Hour })
	w.create(cluster, "stuck", nil)
	first.waitForEvent("stuck", 1)
	w.create(cluster, "fine", nil)
	first.waitForEvent("fine", 1)
	w.report("fine", "True", "done", time.Now())
	w.wait("one resource is reconciled", func() bool {
		return inside(r, func() bool { return r.table.count(cluster).pending == 1 })
	})
	second := w.adapter("cl-two", "clusters")
	if h := second.waitFor("any", func(received) bool { return true }); h.Data.ID != "stuck" {
		t.Errorf("the adapter got %s", h.Data.ID)
	}
}

func TestARequestCausesAnEventInAnyState(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("cl", "clusters")
	b := w.adapter("ch", "channels")
	r := w.start("one")
	for _, id := range []string{"c1", "c2"} {
		w.create(cluster, id, nil)
		w.report(id, "True", "done", time.Now())
	}
	w.create(channel, "ch1", nil)
	b.waitForEvent("ch1", 1)
	quiet := func() {
		t.Helper()
		w.wait("nothing is pending", func() bool {
			return inside(r, func() bool {
				return r.table.count(cluster).pending+r.table.count(channel).pending+
					r.inFlight == 0
			})
		})
		for len(a.events)+len(b.events) > 0 {
			select {
			case <-a.events:
			case <-b.events:
			}
		}
	}
	ask := func(id, spec string) {
		_, err := w.store.Create(t.Context(), store.Document{Kind: requests, ID: id, Spec: []byte(spec),
			Status: []byte("{}")})
		must(t, 0, err)
	}
	sent := func(id string) uint64 {
		return inside(r, func() uint64 { return r.table.all[key{cluster, id}].lastEvent })
	}
	quiet()
	one, two := sent("c1"), sent("c2")
	ask("r1", `{"kind":"Cluster","id":"c2","reason":"a look"}`)
	w.wait("c2 is sent again", func() bool { return sent("c2") > two })
	a.waitFor("c2", func(h received) bool { return h.Data.ID == "c2" })
	if sent("c1") != one {
		t.Error("the request for c2 caused an event of c1")
	}
	quiet()
	ask("r2", `{"kind":"Cluster"}`)
	got := map[string]bool{}
	a.waitFor("both", func(h received) bool { got[h.Data.ID] = true; return len(got) == 2 })
	quiet()
	ask("r3", `{}`)
	b.waitForEvent("ch1", 1)
	got = map[string]bool{}
	a.waitFor("both", func(h received) bool { got[h.Data.ID] = true; return len(got) == 2 })
}

// A change of an owner causes events of its unreconciled children, and the removal of a child an event
// of its owner, both without back-off. Reconciled children have no event.
func TestAChangeOfARelatedResourceCausesAnEventAtOnce(t *testing.T) {
	w := newWorld(t)
	a, b := w.adapter("cl", "clusters"), w.adapter("ch", "channels")
	r := w.start("one", func(o *Options) {
		o.Policy.MinRetry = time.Hour
		o.Kinds = []Kind{{cluster, "clusters", ""}, {channel, "channels", cluster}}
	})
	createChild := func(id string) {
		t.Helper()
		_, err := w.store.Create(t.Context(), store.Document{Kind: channel, ID: id, Scope: "owner", Name: id,
			Spec:   []byte(`{}`),
			Status: encoded(t, reconciled("False", 1, "", time.Now().UTC()))})
		must(t, 0, err)
		b.waitForEvent(id, 1)
	}
	reconcile := func(id string) {
		t.Helper()
		_, _, err := w.store.Update(t.Context(), channel, id, 0, func(d *store.Document) error {
			d.Status = encoded(t, reconciled("True", 1, "done", time.Now().UTC()))
			return nil
		})
		must(t, 0, err)
	}
	sent := func(k key) uint64 { return inside(r, func() uint64 { return r.table.all[k].lastEvent }) }
	w.create(cluster, "owner", nil)
	a.waitForEvent("owner", 1)
	createChild("waits")
	createChild("done")
	reconcile("done")
	w.wait("one child is reconciled", func() bool {
		return inside(r, func() bool { return r.table.count(channel).pending == 1 })
	})
	before := sent(key{channel, "done"})

	w.report("owner", "False", "it has come a step further", time.Now())
	b.waitForEvent("waits", 1)
	if got := sent(key{channel, "done"}); got != before {
		t.Errorf("the reconciled child had events: %d, then %d", before, got)
	}
	a.waitForEvent("owner", 1)
	must(t, 0, w.store.Remove(t.Context(), channel, "waits", 0))
	a.waitForEvent("owner", 1)
	must(t, 0, w.store.Remove(t.Context(), channel, "done", 0))
	w.wait(
		"the table has no children",
		func() bool { return inside(r, func() bool { return len(r.table.children) == 0 }) },
	)
}

// The sentinel logs a decision that fails and tries it again; other resources do not wait for it.
func TestADecisionThatFailsIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("cl", "clusters")
	c := DefaultConfig("clusters")
	c.MessageDecision = Decision{Result: `resource.labels.ready == "yes"`}
	r := w.start("one", func(o *Options) { o.Configs = []Config{c}; o.Policy.MinRetry = 50 * time.Millisecond })
	w.create(cluster, "broken", nil) // it has no labels
	w.create(cluster, "whole", map[string]string{"ready": "yes"})
	a.waitForEvent("whole", 1)
	w.wait("the sentinel has decided three times", func() bool {
		return inside(r, func() bool { return r.table.all[key{cluster, "broken"}].Attempts >= 3 })
	})
	_, _, err := w.store.Update(t.Context(), cluster, "broken", 0, func(d *store.Document) error {
		d.Spec = encoded(t, testSpec{map[string]string{"ready": "yes"}, nil})
		return nil
	})
	must(t, 0, err)
	a.waitForEvent("broken", 2)
}

// The sentinel sends events only of resources that match its selector. The keys of labels may have a prefix.
func TestASelectorLimitsTheResources(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("cl", "shard-1")
	c := DefaultConfig("clusters")
	c.ResourceSelector = []Label{{"shard", "1"}, {"hyperfleet.io/region", "eu-1"}}
	c.Clients.Broker.Topic = "shard-1"
	const region = "hyperfleet.io/region"
	w.create(cluster, "old-other", map[string]string{"shard": "2", region: "eu-1"})
	w.create(cluster, "old-mine", map[string]string{"shard": "1", region: "eu-1"})
	w.create(cluster, "elsewhere", map[string]string{"shard": "1", region: "eu-2"})
	r := w.start("one", func(o *Options) { o.Configs = []Config{c} })
	w.create(cluster, "other", map[string]string{"shard": "2", region: "eu-1"})
	w.create(cluster, "mine", map[string]string{"shard": "1", region: "eu-1"})
	a.waitForEvent("old-mine", 1)
	a.waitForEvent("mine", 1)
	if n := inside(r, func() int { return len(r.table.all) }); n != 2 {
		t.Errorf("the table has %d resources", n)
	}
}

func TestLookupMetricsAndReadinessAreServed(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("cl", "clusters")
	ops := rest.NewOps()
	r := w.start("one", func(o *Options) { o.Ops, o.Metrics = ops, ops.Registry })
	w.create(cluster, "c1", nil)
	a.waitForEvent("c1", 1)
	server := httptest.NewServer(ops.Handler())
	defer server.Close()
	get := func(path string) (int, string) {
		res, err := server.Client().Get(server.URL + path)
		must(t, 0, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return res.StatusCode, string(must(t, body, err))
	}
	w.wait("the event is acknowledged", func() bool {
		all := r.Lookup(t.Context(), "c1")
		return len(all) == 1 && all[0].Published == 1 && all[0].PublishedAt != nil
	})
	code, body := get("/sentinel?id=c1")
	for _, part := range []string{`"kind":"Cluster"`, `"told_generation":1`, `"pending":true`, `"next_due_time":`} {
		if code != 200 || !strings.Contains(body, part) {
			t.Errorf("%d %s has no %s", code, body, part)
		}
	}
	if code, _ := get("/sentinel?id=c2"); code != 404 {
		t.Errorf("the status of an unknown resource is %d", code)
	}
	w.wait("the lease is renewed once more", func() bool {
		_, body := get("/metrics")
		return strings.Contains(
			body, `atoll_sentinel_slots 64`)
	})
	_, body = get("/metrics")
	for _, part := range []string{
		`hyperfleet_sentinel_events_published_total{component="sentinel",reason="message decision matched",resource_selector="all",resource_type="clusters",version="test"}`,
		"hyperfleet_sentinel_pending_resources{", "hyperfleet_sentinel_poll_duration_seconds_count{",
		"hyperfleet_sentinel_last_successful_poll_timestamp_seconds{",
	} {
		if !strings.Contains(body, part) {
			t.Errorf("the metrics lack %s", part)
		}
	}
	if code, body := get("/readyz"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	w.stopBroker()
	w.wait("the replica is not ready without the broker", func() bool { code, _ := get("/readyz"); return code == 503 })
}

// In CLM's process the readiness does not depend on the broker, because the API works without it.
func TestInsideCLMReadinessDoesNotDependOnTheBroker(t *testing.T) {
	w := newWorld(t)
	ops := rest.NewOps()
	r := w.start("one", func(o *Options) { o.Ops, o.Process = ops, ProcessOfCLM })
	w.stopBroker()
	w.wait("the client has lost the broker", func() bool { return !r.client.Connected() })
	if missing := ops.Missing(t.Context()); len(missing) > 0 {
		t.Errorf("the replica is not ready: %v", missing)
	}
}
