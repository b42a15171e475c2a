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

// auditDetail is the JSON in the column audit of a history record. The other columns have the rest of an audit record.
type auditDetail struct {
	Request json.RawMessage `json:"request"`          // Actor.Audit of the change
	Owner   string          `json:"owner,omitempty"`  // the result of KindSpec.Owner
	Before  string          `json:"before,omitempty"` // the hash of the spec before the change
	After   string          `json:"after,omitempty"`  // the hash of the spec after the change
}

// encodeAuditDetail returns the value of the column audit for a change from before (nil: the document is new)
// to after. It returns nil, SQL's null, if the actor has no Audit: the audit then leaves the change out. Only
// kinds with History have hashes of their specs: the specs of kinds with BriefHistory may have secrets, which a
// reader of the hash could guess.
func (k *KindSpec) encodeAuditDetail(a Actor, before *Document, after Document) (any, error) {
	if a.Audit == "" {
		return nil, nil
	}
	record := auditDetail{Request: json.RawMessage(a.Audit)}
	if k.Owner != nil {
		record.Owner = k.Owner(after)
	}
	var err error
	if before != nil && k.History {
		if record.Before, err = hashSpec(before.Spec); err != nil {
			return nil, err
		}
	}
	if !after.Removed && k.History {
		if record.After, err = hashSpec(after.Spec); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("%w: audit: %w", ErrInvalid, err)
	}
	return string(text), nil
}

// hashSpec returns the SHA-256 of a JSON text in hex. The hash does not depend on white space and on the order of
// members, because PostgreSQL does not keep these.
func hashSpec(text json.RawMessage) (string, error) {
	canonical, err := jsonvalue.AppendCanonicalText(make([]byte, 0, len(text)), text)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// AuditRecord is a history record of a change whose actor has Audit.
type AuditRecord struct {
	// RecordID identifies the record. It is unique in this database, and a restored database has the same one.
	RecordID      string
	At            time.Time
	Action        string // create, update, delete, remove; or the action of Tx.Record
	Kind          Kind
	ID            string
	Version       int64
	Actor         Actor  // with Audit
	Owner         string // the account that owned the document at the change; "": none
	Before, After string // hashes of the spec in hex; "" without a spec, and for kinds with BriefHistory
}

// AuditPage is one page of audit records.
type AuditPage struct {
	Records    []AuditRecord
	Next       string // the cursor of the next page
	IsComplete bool   // the database had no further records when the store read the page
}

// auditCursor separates the audit records that a caller has read from the others. The caller has read all
// records that the snapshot readUpTo sees. If partUpTo is not "", the caller is in the middle of the records
// that the snapshot partUpTo sees as well, and has read those up to (xid, seq) too. The cursor is valid in one
// incarnation of the database.
type auditCursor struct {
	incarnation, readUpTo, partUpTo string
	xid                             uint64
	seq                             int64
}

func (c auditCursor) String() string {
	return strings.Join([]string{c.incarnation, c.readUpTo, c.partUpTo, strconv.FormatUint(c.xid, 10),
		strconv.FormatInt(c.seq, 10)}, "/")
}

func parseAuditCursor(text string) (c auditCursor, err error) {
	if text == "" {
		return auditCursor{readUpTo: "1:1:"}, nil // a snapshot that sees no transaction
	}
	parts := strings.Split(text, "/")
	malformed := fmt.Errorf("%w: malformed cursor", ErrInvalid)
	if len(parts) != 5 {
		return c, malformed
	}
	c = auditCursor{incarnation: parts[0], readUpTo: parts[1], partUpTo: parts[2]}
	for _, snapshot := range parts[1:3] {
		if _, err := newPosition(c.incarnation, snapshot); err != nil && snapshot != "" {
			return c, malformed
		}
	}
	if c.xid, err = strconv.ParseUint(parts[3], 10, 63); err != nil {
		return c, malformed
	}
	if c.seq, err = strconv.ParseInt(parts[4], 10, 64); err != nil || c.readUpTo == "" || c.incarnation == "" {
		return c, malformed
	}
	return c, nil
}

// listAuditSQL reads the audit records after (xid $4, seq $5) of the transactions that the snapshot $2 does not see
// and the snapshot $3 sees; a null $3 stands for the snapshot of the statement itself. It returns no records
// unless store_meta was written in this database (written_here), which is false after a restore or a copy.
const listAuditSQL = `with ` + metaSQL + `
	select m.incarnation, m.written_here, m.snap::text, m.flushed >= m.inserted, h.xid, h.seq, h.token,
		h.at, h.action, h.kind, h.id, h.version, h.principal, h.account, h.request_id, h.audit
	from m left join lateral (select * from history h
		where h.audit is not null and m.written_here and h.xid >= pg_snapshot_xmin($2::text::pg_snapshot)
			and not pg_visible_in_snapshot(h.xid, $2::text::pg_snapshot)
			and pg_visible_in_snapshot(h.xid, coalesce($3::text::pg_snapshot, m.snap))
			and (h.xid, h.seq) > ($4::xid8, $5::bigint)
		order by h.xid, h.seq limit $6) h on true
	order by h.xid, h.seq`

// ListAudit returns up to limit audit records after a cursor; "" is the beginning. The outcomes:
//
//   - a page. A caller that follows Next gets each record once, also records of transactions that were open when
//     it read earlier pages. Within a page the records have the order in which their transactions began to write.
//   - ErrGone: the database was restored after the store made the cursor. The caller reads from the beginning and
//     ignores the records whose RecordID it has.
//   - ErrInvalid: the cursor is malformed.
//   - another error of errors.go, such as ErrUnavailable: the caller tries again.
func (s *Store) ListAudit(ctx context.Context, after string, limit int) (AuditPage, error) {
	c, err := parseAuditCursor(after)
	var page AuditPage
	if err == nil {
		page, err = s.readAuditPage(ctx, c, after, limit)
	}
	if err == nil && c.partUpTo != "" && len(page.Records) == 0 { // the page before had the last records of partUpTo
		c = auditCursor{incarnation: c.incarnation, readUpTo: c.partUpTo}
		page, err = s.readAuditPage(ctx, c, c.String(), limit)
	}
	if err != nil {
		return AuditPage{}, fmt.Errorf("reading audit records: %w", err)
	}
	return page, nil
}

// readAuditPage reads the page after the cursor c. after is the cursor's text.
func (s *Store) readAuditPage(ctx context.Context, c auditCursor, after string, limit int) (page AuditPage, err error) {
	var to *string
	if c.partUpTo != "" {
		to = &c.partUpTo
	}
	err = s.read(ctx, s.pool, func(ctx context.Context, conn *pgx.Conn) error {
		page = AuditPage{IsComplete: true}
		next := c
		rows, err := conn.Query(ctx, listAuditSQL, sessionOf(conn).identity, c.readUpTo, to, c.xid, c.seq, limit)
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
			record, err := r.decode()
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
		if next.partUpTo == "" {
			next.partUpTo = snapshot
			// PostgreSQL must have written its log to disk up to the snapshot before the caller gets the
			// cursor. Otherwise a crash of the server could give the id of a transaction that the snapshot
			// counts as read to another transaction (see follower.safe). If the log is not on disk and the
			// page has records, the statement below flushes it; without records the caller keeps its cursor.
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
			next = auditCursor{incarnation: incarnation, readUpTo: next.partUpTo}
		}
		page.IsComplete = !isFull && c.partUpTo == "" // later transactions may have committed records after partUpTo
		page.Next = next.String()
		return nil
	})
	return page, err
}

// auditRow is a row of listAuditSQL, whose columns of history are null if there is no record.
type auditRow struct {
	xid                                                    *uint64
	seq, token, version                                    *int64
	at                                                     *time.Time
	action, kind, id, principal, account, requestID, audit *string
}

// decode returns the audit record of a row.
func (r auditRow) decode() (AuditRecord, error) {
	var a auditDetail
	if err := json.Unmarshal([]byte(*r.audit), &a); err != nil {
		return AuditRecord{}, fmt.Errorf("record %d: %w", *r.seq, err)
	}
	return AuditRecord{RecordID: strconv.FormatInt(*r.seq, 10) + "." + strconv.FormatInt(*r.token, 36), At: r.at.UTC(),
		Action: *r.action, Kind: Kind(*r.kind), ID: *r.id, Version: *r.version, Owner: a.Owner, Before: a.Before,
		After: a.After, Actor: Actor{Principal: *r.principal, Account: *r.account, RequestID: *r.requestID,
			Audit: string(a.Request)}}, nil
}

// minAuditReadPause is the shortest time between two reads of WaitForAudit. Each commit wakes it, also
// one without audit records, and the pause bounds the number of reads.
const minAuditReadPause = 100 * time.Millisecond

// WaitForAudit is ListAudit for a caller that waits for records. If there are none after the cursor, it waits for one,
// for at most wait, and then returns a page without records, whose Next the caller uses. It returns the cause of
// ctx when ctx ends.
func (s *Store) WaitForAudit(ctx context.Context, after string, limit int, wait time.Duration) (AuditPage, error) {
	kinds := make([]Kind, 0, len(s.opts.Kinds))
	for _, k := range s.opts.Kinds {
		kinds = append(kinds, k.Kind)
	}
	sub, leave := s.hub.subscribe(kinds)
	defer leave()
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		page, err := s.ListAudit(ctx, after, limit)
		if err != nil || len(page.Records) > 0 {
			return page, err
		}
		if !pause.For(ctx, minAuditReadPause) {
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
