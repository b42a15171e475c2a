package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

func status(text string) func(*store.Document) error {
	return func(d *store.Document) error { d.Status = json.RawMessage(text); return nil }
}

// A status write happens between the read and the write of a spec write, and the reverse.
func TestI2ConcurrentSpecAndStatusWritesAreBothKept(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	other := open(t, dsn)
	for name, c := range map[string]struct{ mine, between func(*store.Document) error }{
		"status in between": {spec(`{"a": 1}`), status(`{"s": 1}`)},
		"spec in between":   {status(`{"s": 1}`), spec(`{"a": 1}`)},
	} {
		between := func() {}
		s := open(t, dsn, func(o *store.Options) { o.Hooks.BeforeWrite = func(store.Kind, string) { between() } })
		d := must[store.Document](t)(s.Create(ctx, doc("Bundle", name, name, `{}`)))
		times := 0
		between = func() {
			if times++; times == 1 {
				if _, _, err := other.Update(ctx, "Bundle", name, 0, c.between); err != nil {
					t.Error(err)
				}
			}
		}
		d, changed, err := s.Update(ctx, "Bundle", name, 0, c.mine)
		if err != nil || !changed || d.Version != 3 || d.Generation != 2 || string(d.Spec) != `{"a": 1}` ||
			string(d.Status) != `{"s": 1}` {
			t.Fatalf("%s: %+v %v", name, d, err)
		}
		// The same with a version: refused.
		times, c.between = 0, status(`{"s": 2}`)
		_, _, err = s.Update(ctx, "Bundle", name, 3, func(d *store.Document) error {
			d.Spec = json.RawMessage(
				`{"mine": true}`)
			return nil
		})
		if stale, ok := errors.AsType[*store.StaleError](err); ok && stale.Latest == 4 {
			continue
		}
		t.Fatalf("%s: %v", name, err)
	}
}

func TestI2OneOfTwoCreatorsSucceeds(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	a, b := open(t, dsn), open(t, dsn)
	for _, c := range []struct {
		what          string
		first, second store.Document
		byName        bool
	}{
		{"the same id", doc("Bundle", "1", "one", `{}`), doc("Bundle", "1", "two", `{}`), false},
		{"the same name", doc("Bundle", "2", "three", `{}`), doc("Bundle", "3", "three", `{}`), true},
	} {
		h := hold(t, a, func(tx *store.Tx) error { _, err := tx.Create(ctx, c.first); return err })
		second := make(chan error, 1)
		go func() {
			_, err := b.Create(context.Background(), c.second)
			second <- err
		}()
		waiting(t, dsn, 1)
		h.commit(t)
		exists, ok := errors.AsType[*store.ExistsError](<-second)
		if !ok || exists.ByName != c.byName || exists.ID != c.first.ID {
			t.Fatalf("%s: %+v", c.what, exists)
		}
		if err := a.Remove(ctx, "Bundle", c.first.ID, 0); err != nil {
			t.Fatal(err)
		}
		// And when the first one rolls back, the second gets it.
		h = hold(t, a, func(tx *store.Tx) error { _, err := tx.Create(ctx, c.first); return err })
		go func() {
			_, err := b.Create(context.Background(), c.second)
			second <- err
		}()
		waiting(t, dsn, 1)
		h.rollback(t)
		if err := <-second; err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
	}
}

func TestI2OneOfManyCreatorsSucceeds(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	for round := range 5 {
		results := make(chan error, 20)
		for i := range 20 {
			go func() {
				_, err := s.Create(context.Background(), doc("Bundle", fmt.Sprint(round, "-", i%4), fmt.Sprint(round),
					`{}`))
				results <- err
			}()
		}
		made := 0
		for range 20 {
			if err := <-results; err == nil {
				made++
			} else if !errors.Is(err, store.ErrExists) {
				t.Fatal(err)
			}
		}
		if made != 1 {
			t.Fatalf("%d creators succeeded", made)
		}
	}
}

func TestI2AllOf200UpdatersOfOneDocumentSucceed(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	// The last of 200 updaters may wait long for its turn on a busy machine.
	patient := func(o *store.Options) { o.AcquireTimeout, o.StatementTimeout = patience, patience }
	stores := []*store.Store{open(t, dsn, patient), open(t, dsn, patient)}
	must[store.Document](t)(stores[0].Create(ctx, doc("Plain", "x", "x", `{"n": 0}`)))
	w := follow(t, stores[0], store.FollowOptions{})
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			_, _, err := stores[i%2].Update(ctx, "Plain", "x", 0, func(d *store.Document) error {
				var v struct{ N int }
				if err := json.Unmarshal(d.Spec, &v); err != nil {
					return err
				}
				d.Spec = fmt.Appendf(nil, `{"n": %d}`, v.N+1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if d := must[store.Document](t)(stores[0].Get(ctx, "Plain", "x")); string(d.Spec) != `{"n": 200}` ||
		d.Version != 201 || d.Generation != 201 {
		t.Fatalf("%s %d", d.Spec, d.Version)
	}
	w.has("Plain/x", 201)
}

func TestI3AnEqualWriteChangesNothingAndSendsNoEvent(t *testing.T) {
	rung := make(chan struct{}, 100)
	s, ctx := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.Hooks.LocalWake = func() bool { rung <- struct{}{}; return true }
	}), t.Context()
	d := must[store.Document](t)(s.Create(ctx, doc("Bundle", "x", "x",
		`{"a": 1.0, "b": [1, {"c": "\u0041"}], "z": 100}`)))
	<-rung
	equal := `{ "z" : 1e2, "b":[1.00,{"c":"A"}], "a":5, "a" : 1 }`
	for what, update := range map[string]func() (store.Document, bool, error){
		"spec":    func() (store.Document, bool, error) { return s.Update(ctx, "Bundle", "x", 0, spec(equal)) },
		"version": func() (store.Document, bool, error) { return s.Update(ctx, "Bundle", "x", 1, spec(equal)) },
		"status":  func() (store.Document, bool, error) { return s.Update(ctx, "Bundle", "x", 0, status(` { } `)) },
		"nothing": func() (store.Document, bool, error) {
			return s.Update(ctx, "Bundle", "x", 0, func(*store.Document) error { return nil })
		},
		"from": func() (store.Document, bool, error) { return s.UpdateFrom(ctx, d, spec(equal)) },
		"read-only": func() (store.Document, bool, error) {
			return s.Update(ctx, "Bundle", "x", 0, func(d *store.Document) error {
				d.Version, d.Wire, d.UpdatedAt = 9,
					nil, time.Now()
				return nil
			})
		},
		"in a transaction": func() (got store.Document, changed bool, err error) {
			err = s.Tx(ctx, func(tx *store.Tx) error {
				got, changed, err = tx.Update(ctx, "Bundle", "x", 0, spec(equal))
				return err
			})
			return got, changed, err
		},
	} {
		got, changed, err := update()
		if err != nil || changed || got.Version != 1 || !got.UpdatedAt.Equal(d.UpdatedAt) {
			t.Fatalf("%s: %+v %v %v", what, got, changed, err)
		}
	}
	if len(rung) != 0 {
		t.Fatal("followers were woken")
	}
	records := must[[]store.Record](t)(s.History(ctx, store.HistoryQuery{Kind: "Bundle", ID: "x"}))
	if len(records) != 1 {
		t.Fatalf("%+v", records)
	}
	if got := must[store.Document](t)(s.Get(ctx, "Bundle", "x")); got.Version != 1 {
		t.Fatalf("%+v", got)
	}
}

// A status that differs only in when it was observed is kept, as the same version (I3).
func TestI3AnObservationIsUpdatedInPlaceWithoutEvent(t *testing.T) {
	onlyTime := func(a, b json.RawMessage) bool {
		var x, y map[string]any
		return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && x["value"] == y["value"]
	}
	s := open(t, pgtest.DSN(t), func(o *store.Options) {
		o.Kinds = []store.KindSpec{{Kind: "Bundle", Render: func(d store.Document) ([]byte, error) {
			return d.Status,
				nil
		}, History: true, Observed: onlyTime}}
	})
	ctx := t.Context()
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "x", "x", `{}`)))
	d, changed, err := s.Update(ctx, "Bundle", "x", 0, status(`{"value": 1, "at": 1}`))
	if err != nil || !changed || d.Version != 2 {
		t.Fatalf("%+v %v %v", d, changed, err)
	}
	feed := follow(t, s, store.FollowOptions{})
	feed.has("Bundle/x", 2)
	got, changed, err := s.Update(ctx, "Bundle", "x", 0, status(`{"value": 1, "at": 2}`))
	if err != nil || changed || got.Version != 2 || !got.UpdatedAt.Equal(d.UpdatedAt) ||
		!strings.Contains(string(got.Wire), `"at": 2`) {
		t.Fatalf("%+v %v %v", got, changed, err)
	}
	err = s.Tx(ctx, func(tx *store.Tx) error {
		got, changed, err = tx.Update(ctx, "Bundle", "x", 2, status(`{"value": 1, "at": 3}`))
		return err
	})
	if err != nil || changed || got.Version != 2 {
		t.Fatalf("%+v %v %v", got, changed, err)
	}
	stored := must[store.Document](t)(s.Get(ctx, "Bundle", "x"))
	if stored.Version != 2 || string(stored.Status) != `{"at": 3, "value": 1}` || !strings.Contains(string(stored.Wire),
		`"at": 3`) {
		t.Fatalf("%+v", stored)
	}
	if records := must[[]store.Record](t)(s.History(ctx, store.HistoryQuery{Kind: "Bundle", ID: "x"})); len(
		records) != 2 {
		t.Fatalf("%+v", records)
	}
	// A later mark arrives alone.
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "mark", "mark", `{}`)))
	feed.has("Bundle/mark", 1)
	if feed.batches != 2 {
		t.Fatalf("%d batches", feed.batches)
	}
}

// A document read before an observation is stale although its version is current: neither a change
// nor another observation reverts the observation (I2).
func TestI2AnObservationIsNotLost(t *testing.T) {
	var s *store.Store
	between := func() {}
	s = open(t, pgtest.DSN(t), func(o *store.Options) {
		never := func(a, b json.RawMessage) bool { return true }
		o.Kinds = []store.KindSpec{{Kind: "Bundle", Render: render, History: true, Observed: never}}
		o.Hooks.BeforeWrite = func(store.Kind, string) { f := between; between = func() {}; f() }
	})
	ctx := t.Context()
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "x", "x", `{}`)))
	add := func(key string) func(*store.Document) error {
		return func(d *store.Document) error {
			var status map[string]bool
			if err := json.Unmarshal(d.Status, &status); err != nil {
				return err
			}
			status[key] = true
			var err error
			d.Status, err = json.Marshal(status)
			return err
		}
	}
	observe := func(key string) func() {
		return func() {
			if _, _, err := s.Update(ctx, "Bundle", "x", 0, add(key)); err != nil {
				t.Error(err)
			}
		}
	}
	between = observe("a")
	observe("b")()
	between = observe("c")
	if _, _, err := s.Update(ctx, "Bundle", "x", 0, func(d *store.Document) error {
		d.Spec = json.RawMessage(`{"n": 1}`)
		return add("d")(d)
	}); err != nil {
		t.Fatal(err)
	}
	if d := must[store.Document](t)(s.Get(ctx, "Bundle", "x")); string(
		d.Status) != `{"a": true, "b": true, "c": true, "d": true}` || d.Version != 2 {
		t.Fatalf("%s at version %d", d.Status, d.Version)
	}
}

func TestADeletionChangesTheVersionAndNotTheGeneration(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), t.Context()
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "x", "x", `{}`)))
	when := time.Now()
	d, changed, err := s.Update(ctx, "Bundle", "x", 1, func(d *store.Document) error {
		d.DeletedAt = &when
		return nil
	})
	if err != nil || !changed || d.Version != 2 || d.Generation != 1 || d.DeletedAt == nil {
		t.Fatalf("%+v %v", d, err)
	}
	// It stays, with its time.
	d, changed, err = s.Update(ctx, "Bundle", "x", 2, func(d *store.Document) error { d.DeletedAt = nil; return nil })
	if err != nil || changed || d.DeletedAt == nil {
		t.Fatalf("%+v %v", d, err)
	}
	if _, _, err := s.Update(ctx, "Bundle", "x", 0, func(d *store.Document) error {
		d.Name = "z"
		return nil
	}); !errors.Is(err, store.ErrInvalid) {
		t.Fatal(err)
	}
}

// A name is free as soon as the deletion of its document is requested, and then one creator gets it
// (I2).
func TestI2ANameIsFreeOnceItsDeletionIsRequested(t *testing.T) {
	s := open(t, pgtest.DSN(t))
	ctx := t.Context()
	deleted := func(d *store.Document) error { now := time.Now(); d.DeletedAt = &now; return nil }
	for _, id := range []string{"a", "b"} { // twice, so that two of that name are being deleted
		must[store.Document](t)(s.Create(ctx, doc("Bundle", id, "one", `{}`)))
		if _, err := s.Create(ctx, doc("Bundle", "x", "one", `{}`)); !errors.Is(err, store.ErrExists) {
			t.Fatalf("two documents have the name: %v", err)
		}
		if _, _, err := s.Update(ctx, "Bundle", id, 0, deleted); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GetByName(ctx, "Bundle", "s", "one"); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("reading by name: %v", err)
		}
	}
	must[store.Document](t)(s.Create(ctx, doc("Bundle", "c", "one", `{}`)))
	if got := must[store.Document](t)(s.GetByName(ctx, "Bundle", "s", "one")); got.ID != "c" {
		t.Fatalf("%s has the name", got.ID)
	}
	err := s.Tx(ctx, func(tx *store.Tx) error {
		all, err := tx.ListScope(ctx, "Bundle", "s")
		if len(all) != 3 {
			t.Errorf("%d are in the scope", len(all))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// A removed id that is created again requires its name.
	if err := s.Remove(ctx, "Bundle", "a", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, doc("Bundle", "a", "one", `{}`)); !errors.Is(err, store.ErrExists) {
		t.Fatalf("two documents have the name: %v", err)
	}
}
