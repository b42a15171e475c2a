package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/pause"
)

// audited is the column audit of a history record: what an audit needs besides the other columns.
type audited struct {
	Request json.RawMessage `json:"request"`          // Actor.Audit
	Owner   string          `json:"owner,omitempty"`  // KindSpec.Owner
	Before  string          `json:"before,omitempty"` // contentHash of the spec before the change
	After   string          `json:"after,omitempty"`  // and after it
}

// auditOf returns the column audit for a change; nil is null, for an actor without Audit. before is nil
// for a new document. A kind with Trail may have secrets in its specs, which somebody who reads a hash
// could guess; its records have no hashes.
func (k *KindSpec) auditOf(a Actor, before *Document, after Document) (any, error) {
	if a.Audit == "" {
		return nil, nil
	}
	record := audited{Request: json.RawMessage(a.Audit)}
	if k.Owner != nil {
		record.Owner = k.Owner(after)
	}
	var err error
	if before != nil && k.History {
		if record.Before, err = contentHash(before.Spec); err != nil {
			return nil, err
		}
	}
	if !after.Removed && k.History {
		if record.After, err = contentHash(after.Spec); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("%w: audit: %w", ErrInvalid, err)
	}
	return string(text), nil
}

// contentHash returns the SHA-256 of a JSON text, in hex. White space and the order of members do not
// change it: PostgreSQL returns them otherwise than they were written.
func contentHash(text json.RawMessage) (string, error) {
	v, err := jsonvalue.Decode(text)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	canonical, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// AuditRecord is a record of the history whose actor had Audit.
type AuditRecord struct {
	// Key is unique among the records of this database, and stays after a restore.
	Key           string
	At            time.Time
	Action        string // create, update, delete, remove; or Tx.Record's
	Kind          Kind
	ID            string
	Version       int64
	Actor         Actor  // Actor.Audit is what the writer of the change gave
	Owner         string // the account that owns the document, by KindSpec.Owner
	Before, After string // hashes of the spec in hex; "" for none, and for kinds with Trail
}

// AuditPage is a part of the audit records.
type AuditPage struct {
	Records []AuditRecord
	Next    string // the cursor after Records
	IsLast  bool   // there were no more records when the page was read
}

// auditCursor is a place among the audit records: all records that the snapshot from sees, and of those that
// the snapshot to sees all up to (xid, seq), were read. Without a part of a snapshot, to is "".
type auditCursor struct {
	incarnation, from, to string
	xid                   uint64
	seq                   int64
}

func (c auditCursor) String() string {
	return strings.Join([]string{c.incarnation, c.from, c.to, strconv.FormatUint(c.xid, 10),
		strconv.FormatInt(c.seq, 10)}, "/")
}

func parseAuditCursor(text string) (c auditCursor, err error) {
	if text == "" {
		return auditCursor{from: "1:1:"}, nil // sees no transaction
	}
	parts := strings.Split(text, "/")
	malformed := fmt.Errorf("%w: malformed cursor", ErrInvalid)
	if len(parts) != 5 {
		return c, malformed
	}
	c = auditCursor{incarnation: parts[0], from: parts[1], to: parts[2]}
	for _, snapshot := range parts[1:3] {
		if _, err := newPosition(c.incarnation, snapshot); err != nil && snapshot != "" {
			return c, malformed
		}
	}
	if c.xid, err = strconv.ParseUint(parts[3], 10, 63); err != nil {
		return c, malformed
	}
	if c.seq, err = strconv.ParseInt(parts[4], 10, 64); err != nil || c.from == "" || c.incarnation == "" {
		return c, malformed
	}
	return c, nil
}

// auditSQL reads audit records of the transactions that the snapshot $2 does not see and the snapshot $3 sees,
// which is that of this statement when $3 is null.
const auditSQL = `with ` + metaSQL + `
	select m.incarnation, m.written_here, m.snap::text, m.flushed >= m.inserted, h.xid, h.seq, h.token,
		h.at, h.action, h.kind, h.id, h.version, h.principal, h.account, h.request_id, h.audit
	from m left join lateral (select * from history h
		where h.audit is not null and m.written_here and h.xid >= pg_snapshot_xmin($2::text::pg_snapshot)
			and not pg_visible_in_snapshot(h.xid, $2::text::pg_snapshot)
			and pg_visible_in_snapshot(h.xid, coalesce($3::text::pg_snapshot, m.snap))
			and (h.xid, h.seq) > ($4::xid8, $5::bigint)
		order by h.xid, h.seq limit $6) h on true
	order by h.xid, h.seq`

// Audit returns up to limit audit records after a cursor; "" is the beginning. It skips no record and returns
// none twice, whatever transactions are open: a cursor has the snapshot up to which all records were read. Within
// a page the records are in the order in which their transactions began to write. The error is ErrGone when the
// database was restored since the cursor was made: the caller reads from the beginning and drops the Keys that it
// has. ErrInvalid: the cursor is malformed.
func (s *Store) Audit(ctx context.Context, after string, limit int) (AuditPage, error) {
	c, err := parseAuditCursor(after)
	var page AuditPage
	if err == nil {
		page, err = s.readAudit(ctx, c, after, limit)
	}
	if err == nil && c.to != "" && len(page.Records) == 0 { // the page before was full: this part has no more
		c = auditCursor{incarnation: c.incarnation, from: c.to}
		page, err = s.readAudit(ctx, c, c.String(), limit)
	}
	if err != nil {
		return AuditPage{}, fmt.Errorf("reading audit records: %w", err)
	}
	return page, nil
}

// readAudit reads the page after a cursor, whose text is after.
func (s *Store) readAudit(ctx context.Context, c auditCursor, after string, limit int) (page AuditPage, err error) {
	var to *string
	if c.to != "" {
		to = &c.to
	}
	err = s.read(ctx, s.pool, func(ctx context.Context, conn *pgx.Conn) error {
		page = AuditPage{IsLast: true}
		next := c
		rows, err := conn.Query(ctx, auditSQL, sessionOf(conn).identity, c.from, to, c.xid, c.seq, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		var snapshot, incarnation string
		var writtenHere, isFlushed bool
		for rows.Next() {
			var r auditRow
			if err := rows.Scan(&incarnation, &writtenHere, &snapshot, &isFlushed, &r.xid, &r.seq, &r.token, &r.at,
				&r.action, &r.kind, &r.id, &r.version, &r.principal, &r.account, &r.requestID, &r.audit); err != nil {
				return err
			}
			if r.xid == nil {
				continue
			}
			record, err := r.record()
			if err != nil {
				return err
			}
			page.Records = append(page.Records, record)
			next.xid, next.seq = *r.xid, *r.seq
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if !writtenHere || c.incarnation != "" && c.incarnation != incarnation {
			return ErrGone
		}
		next.incarnation = incarnation
		if next.to == "" {
			next.to = snapshot
			// A cursor that leaves the process must be one that a crash of the server cannot make wrong: see
			// follower.safe. Without records the cursor before is as good.
			switch {
			case isFlushed:
			case len(page.Records) == 0:
				page.Next = after
				return nil
			default:
				if _, err := conn.Exec(ctx, flushSQL); err != nil {
					return err
				}
			}
		}
		isFull := len(page.Records) == limit
		if !isFull {
			next = auditCursor{incarnation: incarnation, from: next.to}
		}
		page.IsLast = !isFull && c.to == "" // after a part there may be what was committed since
		page.Next = next.String()
		return nil
	})
	return page, err
}

// auditRow is a row of auditSQL, whose columns of history are null when no record matches.
type auditRow struct {
	xid                                                    *uint64
	seq, token, version                                    *int64
	at                                                     *time.Time
	action, kind, id, principal, account, requestID, audit *string
}

func (r auditRow) record() (AuditRecord, error) {
	var a audited
	if err := json.Unmarshal([]byte(*r.audit), &a); err != nil {
		return AuditRecord{}, fmt.Errorf("record %d: %w", *r.seq, err)
	}
	return AuditRecord{Key: strconv.FormatInt(*r.seq, 10) + "." + strconv.FormatInt(*r.token, 36), At: r.at.UTC(),
		Action: *r.action, Kind: Kind(*r.kind), ID: *r.id, Version: *r.version, Owner: a.Owner, Before: a.Before,
		After: a.After, Actor: Actor{Principal: *r.principal, Account: *r.account, RequestID: *r.requestID,
			Audit: string(a.Request)}}, nil
}

// auditPause is the shortest time between two reads of AwaitAudit, which bounds what commits without audit
// records cost.
const auditPause = 100 * time.Millisecond

// AwaitAudit is Audit that waits until there is a record after the cursor, or until wait has passed. Then it
// returns a page without records.
func (s *Store) AwaitAudit(ctx context.Context, after string, limit int, wait time.Duration) (AuditPage, error) {
	kinds := make([]Kind, 0, len(s.opts.Kinds))
	for _, k := range s.opts.Kinds {
		kinds = append(kinds, k.Kind)
	}
	sub, leave := s.hub.subscribe(kinds)
	defer leave()
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		page, err := s.Audit(ctx, after, limit)
		if err != nil || len(page.Records) > 0 {
			return page, err
		}
		if !pause.For(ctx, auditPause) {
			return AuditPage{}, context.Cause(ctx)
		}
		poll := time.NewTimer(s.opts.PollInterval)
		select {
		case <-ctx.Done():
		case <-end.C:
			poll.Stop()
			return page, nil
		case <-sub.woken:
		case <-poll.C:
		}
		poll.Stop()
	}
}
