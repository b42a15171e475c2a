package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"atoll.dev/envelope"
	"atoll.dev/internal/pause"
)

// SealingProgress has the counts of the background that seals documents.
type SealingProgress struct {
	Key string // with which this process seals
	// OtherKeys is how many documents are sealed with another key. At 0 no document needs the other keys any more.
	OtherKeys int
	// IsChecked reports that no document that was stored before the last interval has sensitive values in clear.
	IsChecked bool
	// Resealed and Sealed are how many documents this process has sealed again, and has found in clear and sealed.
	Resealed, Sealed int
}

// sealingBatch is how many documents one transaction of the background reads.
const sealingBatch = 100

// checkSamples is how many documents of a key checkSealed reads at most.
const checkSamples = 8

// checkSealed returns an error if documents are sealed and this process lacks a key for them, or has another key of the
// same name, as that of another region. It reads a few documents of each key: one that is damaged stops no process.
func (s *Store) checkSealed(ctx context.Context) error {
	return s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		for after := ""; ; {
			err := c.QueryRow(ctx, `select sealed_with from document where sealed_with > $1 order by sealed_with limit 1`,
				after).Scan(&after)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			if err != nil {
				return err
			}
			if s.sealer == nil {
				return fmt.Errorf("values of documents are sealed with key %s: start with --envelope-key-file or "+
					"--envelope-kms", after)
			}
			if err := s.checkKey(ctx, c, after); err != nil {
				return err
			}
		}
	})
}

// checkKey returns an error if this process cannot open what is sealed with a key.
func (s *Store) checkKey(ctx context.Context, c *pgx.Conn, key string) error {
	rows, err := c.Query(ctx, `select kind, id, sealed from document where sealed_with = $1 limit $2`, key, checkSamples)
	if err != nil {
		return err
	}
	samples, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sealedRow])
	if err != nil {
		return err
	}
	var misfit error
	for _, r := range samples {
		_, _, err := s.sealer.open(ctx, sealedName(r.Kind, r.ID), r.Column)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, envelope.ErrWrongKey):
			misfit = fmt.Errorf("%w: give this process the key %s of this database", err, key)
		case !errors.Is(err, errDamaged):
			return err
		}
	}
	return misfit
}

// sealedRow is a document with its column sealed.
type sealedRow struct {
	Kind   Kind
	ID     string
	Column []byte
}

// runSealing seals, until ctx ends, the documents whose sensitive values are in clear or sealed with another key than
// the current one. Several processes may do so on one database. A failure is logged, and the next interval goes on.
func (s *Store) runSealing(ctx context.Context) {
	ctx = InBackground(ctx)
	progress := SealingProgress{}
	var before uint64 // transactions older than it had ended an interval ago
	for {
		err := s.sealer.refresh(ctx)
		if err == nil {
			err = s.reseal(ctx, &progress)
		}
		if err == nil {
			before, err = s.sealClear(ctx, before, &progress)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("sealing documents in the background failed; trying again", "error", err)
		}
		if err == nil && s.opts.SealingProgress != nil {
			progress.Key = s.sealer.box.Load().KeyID()
			s.opts.SealingProgress(progress)
		}
		if !pause.For(ctx, s.opts.SealingInterval) {
			return
		}
	}
}

const (
	otherKeysSQL = `select count(*) from document where sealed_with < $1 or sealed_with > $1`

	otherKeySQL = `select kind, id, sealed from document where (sealed_with < $1 or sealed_with > $1)
		and (kind, id) > ($2, $3) order by kind, id limit $4`

	// resealSQL makes no version and no entry in the feed: the content of the document stays.
	resealSQL = `update document set sealed = $4, sealed_with = $5 where kind = $1 and id = $2 and sealed = $3`
)

// reseal seals again what is sealed with another key than the current one.
func (s *Store) reseal(ctx context.Context, progress *SealingProgress) error {
	current := s.sealer.box.Load().KeyID()
	for kind, id := "", ""; ; {
		var batch []sealedRow
		err := s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
			rows, err := c.Query(ctx, otherKeySQL, current, kind, id, sealingBatch)
			if err != nil {
				return err
			}
			batch, err = pgx.CollectRows(rows, pgx.RowToStructByPos[sealedRow])
			return err
		})
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			break
		}
		for _, f := range batch {
			kind, id = string(f.Kind), f.ID
			name := sealedName(f.Kind, id)
			plain, form, err := s.sealer.open(ctx, name, f.Column)
			if errors.Is(err, errDamaged) {
				continue // unseal logs it when somebody reads the document
			}
			if err != nil {
				return err
			}
			if err := s.sealer.seal(&form, name, plain); err != nil {
				return err
			}
			if err := s.Tx(ctx, func(tx *Tx) error {
				_, err := tx.Exec(ctx, resealSQL, kind, id, f.Column, form.column, form.key)
				return err
			}); err != nil {
				return err
			}
			progress.Resealed++
		}
	}
	return s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, otherKeysSQL, current).Scan(&progress.OtherKeys)
	})
}

const (
	// clearSQL reads the documents whose last change is behind the place and was certainly ended.
	clearSQL = `select f.xid::text, ` + columns + ` from (select * from feed where (xid, kind, id) > ($1::xid8, $2, $3)
			and xid < $4::xid8 and kind = any($5) order by xid, kind, id limit $6) f
		cross join lateral (select * from document d where d.kind = f.kind and d.id = f.id offset 0) d
		order by f.xid, f.kind, f.id`

	// sealClearSQL has a new token: a write that was composed from the document in clear would store its wire form.
	sealClearSQL = `update document set spec = $4, wire = $5, sealed = $6, sealed_with = $7, token = $8
		where kind = $1 and id = $2 and token = $3`
)

// sealClear seals what is in clear, up to the transactions that had ended an interval ago: a writer whose connection
// broke may still look for its token in a later row. It returns the transactions that have ended now.
func (s *Store) sealClear(ctx context.Context, before uint64, progress *SealingProgress) (ended uint64, err error) {
	var kinds []string
	for k, spec := range s.kinds {
		if spec.Sensitive != nil {
			kinds = append(kinds, string(k))
		}
	}
	err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `select pg_snapshot_xmin(pg_current_snapshot())`).Scan(&ended)
	})
	if err != nil || before == 0 || len(kinds) == 0 {
		return ended, err
	}
	if err := s.Tx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, `insert into sealing default values on conflict do nothing`)
		return err
	}); err != nil {
		return ended, err
	}
	for {
		left, sealedNow := batchesLeft(0), 0
		err := s.Tx(ctx, func(tx *Tx) (err error) {
			left, sealedNow, err = s.sealBatch(ctx, tx, before, kinds)
			return err
		})
		if err != nil {
			return ended, err
		}
		progress.Sealed += sealedNow
		switch left {
		case noBatches:
			progress.IsChecked = true
			return ended, nil
		case batchesOfAnother:
			return ended, nil
		}
	}
}

// batchesLeft says whether documents remain after the place of sealBatch.
type batchesLeft int

const (
	moreBatches batchesLeft = iota
	noBatches
	batchesOfAnother // another process seals at the moment, so nothing is known
)

// sealBatch seals the next documents behind the place that the table sealing has, and moves the place. A document that
// cannot be sealed is logged, and delays no other.
func (s *Store) sealBatch(ctx context.Context, tx *Tx, before uint64, kinds []string) (left batchesLeft, n int,
	err error) {
	var xid, kind, id string
	err = tx.QueryRow(ctx, `select xid::text, kind, id from sealing for update skip locked`).Scan(&xid, &kind, &id)
	if errors.Is(err, pgx.ErrNoRows) {
		return batchesOfAnother, 0, nil
	}
	if err != nil {
		return left, 0, err
	}
	rows, err := tx.Query(ctx, clearSQL, xid, kind, id, before, kinds, sealingBatch)
	if err != nil {
		return left, 0, err
	}
	docs, err := pgx.CollectRows(rows, func(found pgx.CollectableRow) (Document, error) {
		var r row
		if err := found.Scan(append([]any{&xid}, r.targets()...)...); err != nil {
			return Document{}, err
		}
		return r.document(s)
	})
	if err != nil || len(docs) == 0 {
		return noBatches, 0, err
	}
	for _, d := range docs {
		if d.sealed != nil {
			continue
		}
		spec := s.kinds[d.Kind]
		if d.sealed, err = spec.sealSpec(d); err == nil && d.sealed != nil {
			err = spec.render(&d)
		}
		if errors.Is(err, ErrInvalid) {
			s.log.Error("a document cannot be sealed; its sensitive values stay in clear until its spec is written again",
				"kind", d.Kind, "id", d.ID, "error", err)
			continue
		}
		if err != nil {
			return left, n, err
		}
		if d.sealed == nil {
			continue
		}
		if _, err := tx.Exec(ctx, sealClearSQL, string(d.Kind), d.ID, d.token, []byte(d.sealed.spec), storedWire(d),
			d.sealed.column, d.sealed.key, tx.token); err != nil {
			return left, n, err
		}
		n++
	}
	last := docs[len(docs)-1]
	_, err = tx.Exec(ctx, `update sealing set xid = $1::xid8, kind = $2, id = $3`, xid, string(last.Kind), last.ID)
	if len(docs) < sealingBatch {
		left = noBatches
	}
	return left, n, err
}
