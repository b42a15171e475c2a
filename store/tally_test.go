package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// Two processes create and remove documents while the tally is folded; each list has the count of
// its own snapshot.
func TestTheTallyCountsTheDocuments(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	stores := make([]*Store, 2)
	for i := range stores {
		s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A"}, {Kind: "B"}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		stores[i] = s
	}
	check := func(s *Store) error {
		q := Query{Kinds: []Kind{"A", "B"}, Deletion: WithDeleting}
		var tallied, counted int
		err := s.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, "select ("+q.tallySQL()+"), (select count(*) from document where removed_at is null)").Scan(
				&tallied, &counted)
		})
		if err == nil && tallied != counted {
			err = fmt.Errorf("the tally has %d documents, the table %d", tallied, counted)
		}
		return err
	}
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			s, r := stores[worker%2], rand.New(rand.NewPCG(1, uint64(worker)))
			for i := range 100 {
				d := Document{Kind: Kind("AB"[i%2 : i%2+1]), ID: fmt.Sprint(worker, "-", r.IntN(20))}
				var err error
				switch r.IntN(4) {
				case 0:
					_, err = s.Create(ctx, d)
				case 1:
					err = s.Tx(ctx, func(tx *Tx) error { _, err := tx.Create(ctx, d); return err })
				case 2:
					err = s.Tx(ctx, func(tx *Tx) error { // as a last report does
						_, _, err := tx.Update(ctx, d.Kind, d.ID, 0, func(d *Document) error {
							d.Status = []byte(fmt.Sprintf(`{"n": %d}`, i))
							return nil
						})
						if err != nil {
							return err
						}
						return tx.Remove(ctx, d.Kind, d.ID, 0)
					})
				default:
					err = s.Remove(ctx, d.Kind, d.ID, 0)
				}
				if err != nil && !errors.Is(err, ErrExists) && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
				if i%10 == 0 {
					err := s.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
						_, err := c.Exec(ctx, foldSQL, 7)
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
				if err := check(s); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	page, err := stores[0].List(ctx, Query{Kind: "A", Limit: 1, Count: true, Deletion: WithDeleting})
	if err != nil {
		t.Fatal(err)
	}
	all, err := stores[0].List(ctx, Query{Kind: "A", Limit: 1000, Deletion: WithDeleting})
	if err != nil || page.Total != len(all.Documents) || len(all.Documents) == 0 {
		t.Errorf("the total is %d of %d documents, %v", page.Total, len(all.Documents), err)
	}
}

// An import adds as many rows to the tally as creations do; the process that imports folds them.
func TestAnImportFoldsTheTally(t *testing.T) {
	dsn, ctx := pgtest.DSN(t), t.Context()
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{{Kind: "A"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for n := range 2 { // the second transaction folds the rows of the first
		err := s.Tx(ctx, func(tx *Tx) error {
			for i := range foldEvery {
				_, err := tx.Import(ctx, Document{Kind: "A", ID: fmt.Sprint(n, "-", i), Generation: 1, CreatedAt: time.Now(),
					UpdatedAt: time.Now()})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := 0
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
		err := s.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, "select count(*) from tally").Scan(&rows)
		})
		if err != nil {
			t.Fatal(err)
		}
		if rows < 2*foldEvery {
			return
		}
	}
	t.Errorf("the tally has %d rows after an import of %d documents", rows, 2*foldEvery)
}
