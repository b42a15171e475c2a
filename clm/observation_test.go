package clm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"atoll.dev/clm/status"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// Reports come again and again, with later times, also from a clock that is ahead. Status and wire form that are made
// from the stored ones and the short form equal, to the byte, those that are written in full.
func TestI3TheShortFormOfTimesEqualsTheFullStatus(t *testing.T) {
	registry, err := NewRegistry([]Entity{{Kind: "Cluster", Plural: "clusters", NameMinLen: 3, NameMaxLen: 54,
		RequiredAdapters: []cluster.Adapter{"dns", "network", "validation"}}})
	if err != nil {
		t.Fatal(err)
	}
	e := registry.entities[0]
	begin := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		now := begin
		report := func(d *store.Document, adapter cluster.Adapter) {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{1, 1000, 1000000, 3000000}).Draw(t, "later")) *
				time.Microsecond)
			r := status.Report{Adapter: adapter, Generation: 1, ObservedAt: now, Data: json.RawMessage(`{"n": 1}`)}
			if rapid.IntRange(0, 9).Draw(t, "ahead") == 0 {
				received := now.Add(-time.Minute)
				r.ReceivedAt = &received
			}
			for _, name := range []string{"Available", "Applied", "Health"} {
				value := status.True
				if adapter == "network" {
					value = status.False
				}
				r.Conditions = append(r.Conditions, status.Reported{Type: name, Status: value,
					Message: status.Given(`"last_updated_time":"x"`)})
			}
			if _, err := e.applyReport(d, r, status.KeepStored, status.NoChildren, now); err != nil {
				t.Fatal(err)
			}
		}
		adapters := []cluster.Adapter{"dns", "network", "validation"}[:rapid.IntRange(1, 3).Draw(t, "adapters")]
		d, err := e.create("id", "name", "", declared{Spec: json.RawMessage(`{"last_updated_time":"y"}`)}, begin)
		if err != nil {
			t.Fatal(err)
		}
		d.Generation = 1
		for _, adapter := range adapters {
			report(&d, adapter)
		}
		stored := d // in full
		storedTail, err := e.renderTail(stored)
		if err != nil {
			t.Fatal(err)
		}
		var form []byte
		for range rapid.IntRange(1, 12).Draw(t, "reports") {
			before := d
			report(&d, rapid.SampledFrom(adapters).Draw(t, "adapter"))
			tail, err := e.renderTail(d)
			if err != nil {
				t.Fatal(err)
			}
			if compare(before, d) != store.ObservedLater { // a clock that is ahead
				stored, storedTail, form = d, tail, nil
				continue
			}
			if form = observationForm.Of(before, d, form); form == nil {
				t.Fatal("there is no short form")
			}
			if got, err := observationForm.Tail(storedTail, form); err != nil || string(got) != string(tail) {
				t.Fatalf("the wire form ends with\n%s, %v, want\n%s", got, err, tail)
			}
			read := stored
			if err := observationForm.Status(&read, form); err != nil || string(read.Status) != string(d.Status) {
				t.Fatalf("the status is\n%s, %v, want\n%s", read.Status, err, d.Status)
			}
		}
	})
}

// Times that a server has stored in the short form are shown by each server: in reads, lists and searches. Another
// change of the resource keeps them.
func TestLaterEqualReportsAreShownByAllServers(t *testing.T) {
	dsn := pgtest.DSN(t)
	a, b := startOn(t, dsn), startOn(t, dsn)
	path := "/clusters/" + a.cluster("abc")
	at := time.Now().UTC().Add(-time.Minute).Truncate(time.Microsecond)
	a.do("PUT", path+"/statuses", statusBody("dns", 1, at, "True")).want(201)
	a.do("PUT", path+"/statuses", statusBody("validation", 1, at, "True")).want(201)
	isShort := func() string {
		t.Helper()
		rows := ""
		err := a.server.store.Read(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, `select count(*)::text from document where kind = 'Cluster' and observed is not null`).Scan(
				&rows)
		})
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	check := func(when string, last string) {
		t.Helper()
		for _, server := range []*testAPI{a, b} {
			is(t, when+": the resource", server.do("GET", path, "").want(200).at("status.conditions.0.last_updated_time"),
				last)
			is(t, when+": the list", server.do("GET", "/clusters", "").want(200).at(
				"items.0.status.conditions.0.last_updated_time"), last)
			is(t, when+": the reports", server.do("GET", path+"/statuses", "").want(200).at("items.0.last_report_time"), last)
			search := "/clusters?search=" + url.QueryEscape("status.conditions.Reconciled.last_updated_time='"+last+"'")
			is(t, when+": the search", server.do("GET", search, "").want(200).at("total"), "1")
		}
	}
	last := ""
	for i := 1; i <= 45; i++ { // more than one short form has room for
		now := at.Add(time.Duration(i) * time.Second / 2)
		server := []*testAPI{a, b}[i/7%2]
		for _, adapter := range []cluster.Adapter{"dns", "validation"} {
			last = server.do("PUT", path+"/statuses", statusBody(adapter, 1, now, "True")).want(201).at("last_report_time")
		}
		if i == 3 || i == 44 {
			check(fmt.Sprint("after report ", i), last)
		}
	}
	is(t, "short forms", isShort(), "1")
	// An old report is answered as one that is stored already, and an older one is discarded.
	b.do("PUT", path+"/statuses", statusBody("dns", 1, at.Add(45*time.Second/2-time.Second), "True")).want(201)
	b.do("PUT", path+"/statuses", statusBody("dns", 1, at.Add(time.Second/4), "False")).want(204)
	b.do("PATCH", path, `{"labels":{"env":"x"}}`).want(200)
	is(t, "short forms after a PATCH", isShort(), "0")
	is(t, "the reports after a PATCH", a.do("GET", path+"/statuses", "").want(200).at("items.0.last_report_time"), last)
	b.do("PUT", path+"/statuses", statusBody("dns", 1, at.Add(time.Second/4), "False")).want(204)
}

// Each way in which the store reads a resource shows the times of a short form: also a list without specs, with which
// a sentinel starts. One resource that cannot be read would keep the sentinel from ever being ready.
func TestEachReadOfAShortFormHasItsTimes(t *testing.T) {
	dsn := pgtest.DSN(t)
	a := startOn(t, dsn)
	id := a.cluster("abc")
	at := time.Now().UTC().Add(-time.Minute).Truncate(time.Microsecond)
	for i := range 3 {
		for _, adapter := range []cluster.Adapter{"dns", "validation"} {
			a.do("PUT", "/clusters/"+id+"/statuses", statusBody(adapter, 1, at.Add(time.Duration(i)*time.Second), "True")).
				want(201)
		}
	}
	s := startOn(t, dsn).server.store // a process that has just started
	want, err := s.Get(t.Context(), "Cluster", id)
	if err != nil || !strings.Contains(string(want.Wire), at.Add(2*time.Second).Format(time.RFC3339Nano)) {
		t.Fatalf("the resource is read as %s, %v", want.Wire, err)
	}
	reads := map[string]func(context.Context) (store.Document, error){
		"GetStatus": func(ctx context.Context) (store.Document, error) { return s.GetStatus(ctx, "Cluster", id) },
		"GetByName": func(ctx context.Context) (store.Document, error) {
			return s.GetByName(ctx, "Cluster", want.Scope, want.Name)
		},
		"Tx.ListScope": func(ctx context.Context) (d store.Document, err error) {
			err = s.Tx(ctx, func(tx *store.Tx) error {
				docs, err := tx.ListScope(ctx, "Cluster", want.Scope)
				for _, found := range docs {
					d = found
				}
				return err
			})
			return d, err
		},
		"Follow": func(ctx context.Context) (d store.Document, err error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			o := store.FollowOptions{Kinds: []store.Kind{"Cluster"}}
			err = s.Follow(ctx, o, func(_ context.Context, b store.Batch) error {
				for _, found := range b.Documents {
					d = found
					cancel()
				}
				return nil
			})
			if d.ID != "" {
				err = nil
			}
			return d, err
		},
	}
	for name, q := range map[string]store.Query{"List": {}, "List WireOnly": {WireOnly: true},
		"List WithoutSpec": {WithoutSpec: true}} {
		q.Kind = "Cluster"
		reads[name] = func(ctx context.Context) (d store.Document, err error) {
			page, err := s.List(ctx, q)
			for _, found := range page.Documents {
				d = found
			}
			return d, err
		}
	}
	for name, read := range reads {
		d, err := read(t.Context())
		if err != nil || d.ID != id {
			t.Errorf("%s: %q, %v", name, d.ID, err)
			continue
		}
		if d.Status != nil {
			is(t, name+": the status", string(d.Status), string(want.Status))
		}
		if !strings.HasSuffix(string(want.Wire), string(d.Wire)) {
			t.Errorf("%s: the wire form is\n%s, want\n%s", name, d.Wire, want.Wire)
		}
	}
}
