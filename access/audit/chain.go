package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/store"
)

// chainTables are the tables of the chain in the platform database. The database computes the columns that a search
// selects by from content, the text that the hash covers; so a column cannot differ from that text.
const chainTables = `
create table audit_head (
	one           boolean primary key default true check (one),
	seq           bigint not null, -- of the last record
	hash          text not null,
	anchor        bigint not null, -- the record before the first one that is kept; 0: none was deleted
	anchor_hash   text not null
);
create table audit_record (
	seq       bigint primary key,
	previous  text not null,
	hash      text not null,
	content   text not null,
	at        text generated always as (content::jsonb->>'time') stored,
	service   text generated always as (content::jsonb->>'service') stored,
	key       text generated always as (content::jsonb->>'key') stored,
	outcome   text generated always as (content::jsonb->>'outcome') stored,
	principal text generated always as (content::jsonb->>'principal') stored,
	account   text generated always as (content::jsonb->>'accountId') stored,
	owner     text generated always as (content::jsonb->>'ownerId') stored,
	action    text generated always as (content::jsonb->>'action') stored,
	kind      text generated always as (content::jsonb->'resource'->>'kind') stored,
	id        text generated always as (content::jsonb->'resource'->>'id') stored
);
create unique index audit_record_key on audit_record (service, key);
create index audit_record_account on audit_record (account, seq);
create index audit_record_owner on audit_record (owner, seq);
create table audit_cursor (
	service text primary key,
	cursor  text not null
);`

// Chain is the audit of a region, in the platform database. Several processes may append to it: each locks the row of
// the head for its transaction, so that each record follows the one before it.
type Chain struct{ store *store.Store }

// SchemaVersion returns the version of the schema of the chain's tables that this program knows.
func SchemaVersion() int { return len(migrations()) }

// migrations make the tables of the chain; add only to the end.
func migrations() []string {
	return []string{
		chainTables + fmt.Sprintf("\ninsert into audit_head values (true, 0, '%s', 0, '%s')", noHash, noHash), exportTable}
}

// OpenChain makes the tables of the chain in the database of s. The caller closes s.
func OpenChain(ctx context.Context, s *store.Store) (*Chain, error) {
	if err := s.Migrate(ctx, "audit", migrations()); err != nil {
		return nil, err
	}
	return &Chain{s}, nil
}

// head is the end of the chain, locked.
type head struct {
	Anchor        // the last record
	first  Anchor // the record before the first one that is kept
}

func lockHead(ctx context.Context, tx *store.Tx) (h head, err error) {
	err = tx.QueryRow(ctx, `select seq, hash, anchor, anchor_hash from audit_head for update`).Scan(&h.Seq, &h.Hash,
		&h.first.Seq, &h.first.Hash)
	if err != nil {
		return h, fmt.Errorf("locking the head of the audit chain: %w", err)
	}
	return h, nil
}

// append adds records to the chain, except those whose service and key the chain has already, and moves the head. It
// returns the number of added records.
func (h *head) append(ctx context.Context, tx *store.Tx, records []Record) (int, error) {
	keys, services := make([]string, len(records)), make([]string, len(records))
	for i, r := range records {
		keys[i], services[i] = r.Key, r.Service
	}
	rows, err := tx.Query(ctx, `select r.service || ' ' || r.key from audit_record r
		join unnest($1::text[], $2::text[]) as n (service, key) on r.service = n.service and r.key = n.key`, services, keys)
	if err != nil {
		return 0, err
	}
	isInChain := map[string]bool{}
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	for _, key := range known {
		isInChain[key] = true
	}
	var seqs []int64
	var previous, hashes, contents []string
	for _, r := range records {
		if name := r.Service + " " + r.Key; isInChain[name] {
			continue
		} else {
			isInChain[name] = true
		}
		content, err := json.Marshal(r)
		if err != nil {
			return 0, fmt.Errorf("audit record %s of %s: %w", r.Key, r.Service, err)
		}
		next := Anchor{Seq: h.Seq + 1, Hash: hashOf(h.Hash, h.Seq+1, content)}
		seqs, previous, hashes, contents = append(seqs, next.Seq), append(previous, h.Hash), append(hashes, next.Hash),
			append(contents, string(content))
		h.Anchor = next
	}
	if len(seqs) == 0 {
		return 0, nil
	}
	_, err = tx.Exec(ctx, `insert into audit_record (seq, previous, hash, content)
		select * from unnest($1::bigint[], $2::text[], $3::text[], $4::text[])`, seqs, previous, hashes, contents)
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `update audit_head set seq = $1, hash = $2, anchor = $3, anchor_hash = $4`, h.Seq, h.Hash,
		h.first.Seq, h.first.Hash)
	return len(seqs), err
}

// appendRecords adds records that no cursor covers: those of this process. A second call with the same keys adds
// nothing.
func (c *Chain) appendRecords(ctx context.Context, records []Record) error {
	err := c.store.Tx(ctx, func(tx *store.Tx) error {
		h, err := lockHead(ctx, tx)
		if err == nil {
			_, err = h.append(ctx, tx, records)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("appending audit records: %w", err)
	}
	return nil
}

// cursor returns the place in a service's records up to which the chain has them; "" is the beginning.
func (c *Chain) cursor(ctx context.Context, service string) (cursor string, err error) {
	err = c.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select coalesce((select cursor from audit_cursor where service = $1), '')`,
			service).Scan(&cursor)
	})
	return cursor, err
}

// errCursorMoved is the error of gather when another replica has gathered the same records first.
var errCursorMoved = errors.New("another replica gathered these records")

// gather adds the records between two cursors of a service and moves the service's cursor, in one transaction. If the
// stored cursor is not from any more, gather changes nothing and returns errCursorMoved.
func (c *Chain) gather(ctx context.Context, service, from, to string, records []Record) (added int, err error) {
	err = c.store.Tx(ctx, func(tx *store.Tx) error {
		h, err := lockHead(ctx, tx)
		if err != nil {
			return err
		}
		var at string
		if err := tx.QueryRow(ctx, `select coalesce((select cursor from audit_cursor where service = $1), '')`,
			service).Scan(&at); err != nil {
			return err
		}
		if at != from {
			return errCursorMoved
		}
		if added, err = h.append(ctx, tx, records); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into audit_cursor values ($1, $2) on conflict (service) do update set cursor = $2`,
			service, to)
		return err
	})
	return added, err
}

// trimBatch is the largest number of records that one trim deletes.
const trimBatch = 50_000

// trim deletes the oldest records up to the first one that is not before the given time, at most trimBatch. In the same
// transaction it appends a record that names the last deleted record: so Verify knows where the chain begins. It
// returns the number of deleted records.
func (c *Chain) trim(ctx context.Context, before time.Time) (deleted int64, err error) {
	err = c.store.Tx(ctx, func(tx *store.Tx) error {
		h, err := lockHead(ctx, tx)
		if err != nil {
			return err
		}
		var last Anchor // the last record to delete
		err = tx.QueryRow(ctx, `select seq, hash from audit_record where seq < coalesce(
				(select seq from audit_record where at >= $1 order by seq limit 1), $2) and seq <= $3
			order by seq desc limit 1`, timeText(before), h.Seq, h.first.Seq+trimBatch).Scan(&last.Seq, &last.Hash)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		h.first = last
		now := time.Now()
		if _, err := h.append(ctx, tx, []Record{{Time: timeText(now), Service: "platform", Key: fmt.Sprintf("trim.%d",
			last.Seq), Outcome: Done, Principal: "system:platform", Action: actionTrim, Resource: Resource{Kind: "Audit"},
			Anchor: &last}}); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `delete from audit_record where seq <= $1`, last.Seq)
		deleted = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("deleting old audit records: %w", err)
	}
	return deleted, nil
}
