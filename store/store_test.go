package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// bundle and plain are the kinds of the tests: with and without history.
var kinds = []store.KindSpec{
	{Kind: "Bundle", Render: render, History: true},
	{Kind: "Plain"},
}

func render(d store.Document) ([]byte, error) {
	return fmt.Appendf(nil, `{"id":%q,"version":%d,"spec":%s}`, d.ID, d.Version, d.Spec), nil
}

func open(t testing.TB, dsn string, set ...func(*store.Options)) *store.Store {
	t.Helper()
	s, err := tryOpen(t, dsn, set...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(t testing.TB, dsn string, set ...func(*store.Options)) (*store.Store, error) {
	t.Helper()
	o := store.Options{DSN: dsn, Kinds: kinds, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, f := range set {
		f(&o)
	}
	s, err := store.OpenPatiently(t.Context(), o)
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

// openImpatiently opens a store with a short AcquireTimeout. AcquireTimeout also limits the connecting, so a machine
// that cannot connect within it gets one that is twice as long.
func openImpatiently(t testing.TB, dsn string, acquire time.Duration, set func(*store.Options)) *store.Store {
	t.Helper()
	for ; ; acquire *= 2 {
		s, err := tryOpen(t, dsn, set, func(o *store.Options) { o.AcquireTimeout = acquire })
		if err == nil {
			return s
		}
		if !errors.Is(err, store.ErrUnavailable) || acquire > patience {
			t.Fatalf("opening with %s for each connection: %v", acquire, err)
		}
	}
}

func doc(kind store.Kind, id, name, spec string) store.Document {
	return store.Document{Kind: kind, ID: id, Scope: "s", Name: name, Spec: json.RawMessage(spec)}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func spec(text string) func(*store.Document) error {
	return func(d *store.Document) error { d.Spec = json.RawMessage(text); return nil }
}

func TestADocumentIsCreatedUpdatedDeletedAndRemoved(t *testing.T) {
	s, ctx := open(t, pgtest.DSN(t)), store.WithActor(t.Context(), store.Actor{Principal: "me", RequestID: "r1"})
	d := must[store.Document](t)(s.Create(ctx, doc("Bundle", "1", "one", `{"a": 1}`)))
	if d.Version != 1 || d.Generation != 1 || string(d.Wire) != `{"id":"1","version":1,"spec":{"a": 1}}` {
		t.Fatalf("%+v %s", d, d.Wire)
	}
	d, changed, err := s.Update(ctx, "Bundle", "1", 1, spec(`{"a": 2}`))
	if err != nil || !changed || d.Version != 2 || d.Generation != 2 {
		t.Fatalf("%+v %v %v", d, changed, err)
	}
	d, changed, err = s.UpdateFrom(ctx, d, func(d *store.Document) error {
		d.Status = json.RawMessage(`{"ok":true}`)
		return nil
	})
	if err != nil || !changed || d.Version != 3 || d.Generation != 2 {
		t.Fatalf("%+v %v %v", d, changed, err)
	}
	if _, _, err = s.Update(ctx, "Bundle", "1", 2, spec(`{}`)); !errors.Is(err, store.ErrStale) {
		t.Fatal(err)
	}
	if got := must[store.Document](t)(s.GetByName(ctx, "Bundle", "s", "one")); got.Version != 3 ||
		string(got.Spec) != `{"a": 2}` {
		t.Fatalf("%+v", got)
	}
	page := must[store.Page](t)(s.List(ctx, store.Query{Kind: "Bundle", Count: true}))
	if page.Total != 1 || len(page.Documents) != 1 || page.Next != "" || page.Cursor == "" {
		t.Fatalf("%+v", page)
	}
	if err := s.Remove(ctx, "Bundle", "1", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "Bundle", "1"); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	again := must[store.Document](t)(s.Create(ctx, doc("Bundle", "1", "one", `{}`)))
	if again.Version != 5 || again.Generation != 3 {
		t.Fatalf("%+v", again)
	}
	// The changes since the list, each once.
	fctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	err = s.Follow(fctx, store.FollowOptions{From: page.Cursor}, func(ctx context.Context, b store.Batch) error {
		if len(b.Documents) != 1 || b.Documents[0].Version != 5 || b.Relist || !b.First || !b.Last {
			t.Errorf("%+v", b)
		}
		return errors.New("enough")
	})
	if err == nil || err.Error() != "enough" {
		t.Fatal(err)
	}
}
