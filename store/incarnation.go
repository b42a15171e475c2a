package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A cursor is valid only in the incarnation of the database in which it was made. A new incarnation
// begins when the database was copied or restored:
//
//   - restored from a dump: the row of store_meta is a copy, so its xmin differs from its column
//     stamp; or the table document is another one (filenode). The xid values of the dump are those of
//     another server, and may lie in the future.
//   - restored to a point in time, or failed over: another timeline.
//   - dumped into another server or database: another identity.
//
// Each read of the feed compares these in its own statement. The store also refuses a cursor that
// lies in the future of the server, because after a restore of a disk snapshot the identity is the
// same. VACUUM FULL of the table looks like a restore; the only effect is a relist.

// writtenHereSQL is true when the row m of store_meta was written in this database; $1 is the
// session's identity.
const writtenHereSQL = `(m.identity = $1 and m.filenode = pg_relation_filenode(to_regclass('document'))
	and m.xmin::text::bigint = m.stamp)`

// stampSQL is the id of this transaction as xmin of its rows shows it: the lower 32 bits.
const stampSQL = `(pg_current_xact_id()::text::bigint & 4294967295)`

// ensureIncarnation begins a new incarnation if the row of store_meta is missing or was written in another
// database; otherwise it changes nothing. A new incarnation has a new id, and the xid of all rows is
// that of its transaction, which each cursor of the incarnation sees. It is idempotent, and several processes may
// call it at once.
func (s *Store) ensureIncarnation(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	identity := sessionOf(conn).identity
	var newIncarnation string
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var writtenHere bool
		err := tx.QueryRow(ctx, `select `+writtenHereSQL+` from store_meta m`, identity).Scan(&writtenHere)
		if err == nil && writtenHere {
			return nil
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(schemaLock)); err != nil {
			return err
		}
		if _, err := tx.Exec(
			ctx, `lock table store_meta, document, feed, tally, history in share row exclusive mode`); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `select `+writtenHereSQL+` from store_meta m`, identity).Scan(&writtenHere)
		if err == nil && writtenHere {
			return nil // another process has begun the incarnation
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		newIncarnation = strings.ReplaceAll(uuid.NewString(), "-", "")
		for _, stmt := range []string{
			`alter table document disable trigger document_changed`, // the statements below write the feed again
			`update document set xid = pg_current_xact_id()`,
			`alter table document enable trigger document_changed`,
			`delete from feed`,
			`insert into feed select xid, kind, id, facets from document`,
			`delete from tally`,
			`insert into tally select kind, count(*) from document where removed_at is null group by kind`,
			`update history set xid = pg_current_xact_id()`,
			`delete from store_meta`,
			`delete from follower`,
			`delete from sealing`,
		} {
			if _, err := tx.Exec(ctx, stmt); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `insert into store_meta (incarnation, identity, filenode, stamp)
			values ($1, $2, pg_relation_filenode(to_regclass('document')), `+stampSQL+`)`, newIncarnation, identity)
		return err
	})
	if err != nil {
		return classify(ctx, fmt.Errorf("checking the database's incarnation: %w", err))
	}
	if newIncarnation != "" {
		s.log.Info("a new incarnation of the database begins", "incarnation", newIncarnation, "identity", identity)
	}
	return nil
}
