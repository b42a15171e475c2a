package sentinel

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/store"
)

// A start costs one decision for each resource, whether its last change lies before the saved cursors or after.
func TestAStartDecidesOnceOnEachResource(t *testing.T) {
	const size = 60
	w := newWorld(t)
	for i := range size {
		status := reconciled("True", 1, "all is well", time.Now().UTC())
		d := store.Document{Kind: cluster, ID: fmt.Sprintf("c-%02d", i), Spec: encoded(t, testSpec{}),
			Status: encoded(t, status)}
		if _, err := w.store.Create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	// restart starts a replica and stops it when it has saved cursors after all changes.
	restart := func(when string) {
		t.Helper()
		r := w.start("one")
		if n := r.listDecisions.Load(); n != size {
			t.Errorf("%s: the sentinel decided %d times on %d resources", when, n, size)
		}
		w.wait("the cursors are after all changes", func() bool { return w.countBeyondCursors() == 0 })
		r.stop()
	}
	restart("without cursors")
	restart("with cursors after all changes")
	for i := range size / 2 {
		w.report(fmt.Sprintf("c-%02d", i), "True", "still well", time.Now())
	}
	restart("with cursors before half of the changes")
	for i := range size {
		w.report(fmt.Sprintf("c-%02d", i), "True", "very well", time.Now())
	}
	restart("with cursors before all changes")
}

// countBeyondCursors returns the number of pairs of a saved cursor and a cluster that has changed after it. A slot
// without a cursor has seen none.
func (w *world) countBeyondCursors() (n int) {
	w.t.Helper()
	err := w.store.Tx(w.t.Context(), func(tx *store.Tx) error {
		return tx.QueryRow(w.t.Context(), `select count(*) from sentinel_slot s, document d
			where d.kind = 'Cluster' and (s.cursor = '' or
				not pg_visible_in_snapshot(d.xid, nullif(split_part(s.cursor, '.', 2), '')::pg_snapshot))`).Scan(&n)
	})
	return must(w.t, n, err)
}
