package store

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"atoll.dev/internal/pgtest"
)

// PostgreSQL writes a change of the status in place (HOT), without an index entry, also when the change moves the
// facets and when the spec is stored outside of the row.
func TestAChangeOfTheStatusIsWrittenInPlace(t *testing.T) {
	split := KindSpec{Kind: "A", History: true,
		Render: func(d Document) ([]byte, error) { return fmt.Appendf(nil, "%s%s", d.Spec, d.Status), nil },
		Head:   func(wire []byte) int { return len(wire) / 2 },
		Facets: func(d Document) []string { return []string{"status=" + string(d.Status)} },
		Indexes: []Index{{Name: "age", On: "btree (created_at, id)", Live: true},
			{Name: "labels", On: "gin ((spec->'labels') jsonb_path_ops)"}},
	}
	ctx := t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{split}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spec := `{"labels":{"a":"b"},"data":"`
	for range 300 { // lz4 cannot compress it below the threshold
		spec += fmt.Sprintf("%016x", rand.Uint64())
	}
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Name: "one", Spec: []byte(spec + `"}`)}); err != nil {
		t.Fatal(err)
	}
	var updates, inPlace int
	err = s.Tx(ctx, func(tx *Tx) error {
		for _, status := range []string{`{"n": 1}`, `{"n": 2}`} {
			if _, _, err := tx.Update(
				ctx,
				"A",
				"1",
				0,
				func(d *Document) error { d.Status = []byte(status); return nil },
			); err != nil {
				return err
			}
		}
		return tx.QueryRow(ctx, `select pg_stat_get_xact_tuples_updated('document'::regclass),
			pg_stat_get_xact_tuples_hot_updated('document'::regclass)`).Scan(&updates, &inPlace)
	})
	if err != nil {
		t.Fatal(err)
	}
	if updates != 2 || inPlace != 2 {
		t.Errorf("%d updates, %d of them in place", updates, inPlace)
	}
}

// PostgreSQL stores large specs outside of the row. A change of the facets writes nothing there.
func TestFacetsStayWithinTheRow(t *testing.T) {
	ctx := t.Context()
	kind := KindSpec{Kind: "A", History: true, Facets: func(d Document) []string {
		facets := make([]string, 6) // a cluster has as many conditions, with names of this length
		for i := range facets {
			facets[i] = fmt.Sprintf("Condition%dSuccessful=%s", i, d.Status[len(d.Status)-4:len(d.Status)-2])
		}
		return facets
	}}
	s, err := OpenPatiently(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{kind}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	text := func(bytes int) []byte { // lz4 cannot compress it
		b := []byte(`{"text":"`)
		for len(b) < bytes {
			b = fmt.Appendf(b, "%016x", rand.Uint64())
		}
		return append(b, `"}`...)
	}
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Spec: text(3000), Status: text(1900)}); err != nil {
		t.Fatal(err)
	}
	var before, after int // the session's count has its earlier transactions in it
	count := func(tx *Tx, n *int) error {
		return tx.QueryRow(ctx, `select pg_stat_get_xact_tuples_inserted(reltoastrelid) from pg_class
			where oid = 'document'::regclass`).Scan(n)
	}
	err = s.Tx(ctx, func(tx *Tx) error {
		if err := count(tx, &before); err != nil {
			return err
		}
		_, _, err := tx.Update(ctx, "A", "1", 0, func(d *Document) error { d.Status = text(1900); return nil })
		if err != nil {
			return err
		}
		return count(tx, &after)
	})
	if err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Errorf("the change wrote %d rows outside of the row", after-before)
	}
}

// The store decodes a document once for its change, and for all functions of its kind.
func TestAChangeDecodesTheDocumentOnce(t *testing.T) {
	ctx := t.Context()
	decoded := 0
	check := func(d Document) {
		if d.Decoded == nil {
			t.Errorf("%s of version %d is not decoded", d.ID, d.Version)
		}
	}
	kind := KindSpec{Kind: "A", History: true,
		Decode: func(d *Document) error {
			if d.Decoded == nil {
				d.Decoded, decoded = "the stored form", decoded+1
			}
			return nil
		},
		Compare: func(before, after Document) Difference { check(before); check(after); return Different },
		Recorded: func(before, after Document) json.RawMessage {
			check(before)
			check(after)
			return after.Status
		},
	}
	s, err := OpenPatiently(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{kind}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1"}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		_, changed, err := s.Update(ctx, "A", "1", 0, func(d *Document) error {
			check(*d)
			d.Status = fmt.Appendf(nil, `{"n":%d}`, i)
			return nil
		})
		if err != nil || !changed || decoded != i+1 {
			t.Fatalf("update %d: %v, %v; the store has decoded %d documents", i, changed, err, decoded)
		}
	}
}

// An index on the status of one kind would end the in-place updates of all kinds.
func TestAnIndexOfTheStatusIsRefused(t *testing.T) {
	kind := KindSpec{Kind: "A", Indexes: []Index{{Name: "state", On: "btree ((status->>'state'))"}}}
	s, err := OpenPatiently(t.Context(), Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{kind}})
	if err == nil {
		s.Close()
		t.Error("the store is open")
	}
}
