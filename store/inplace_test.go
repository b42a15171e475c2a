package store

import (
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
	s, err := Open(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{split}})
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
			if _, _, err := tx.Update(ctx, "A", "1", 0, func(d *Document) error { d.Status = []byte(status); return nil }); err != nil {
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

// An index on the status of one kind would end the in-place updates of all kinds.
func TestAnIndexOfTheStatusIsRefused(t *testing.T) {
	kind := KindSpec{Kind: "A", Indexes: []Index{{Name: "state", On: "btree ((status->>'state'))"}}}
	s, err := Open(t.Context(), Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{kind}})
	if err == nil {
		s.Close()
		t.Error("the store is open")
	}
}
