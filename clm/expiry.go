package clm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// The server deletes resources of a kind that expires, as by DELETE, when their time has
// come. Each server checks all of them: an index has them in the order of their times, so
// that a check reads one entry, and servers that delete the same resource do not disturb
// each other. A server checks at the first time of expiry, when it has written such a
// resource itself, and every checkEvery for resources that other servers have written.

const (
	checkEvery = 30 * time.Second
	maxExpired = 100 // resources of a kind that one check deletes
	// itself is the name of the server as the author of its own changes.
	itself = "system:clm"
)

// instant creates an SQL function that converts a time in RFC 3339 to microseconds since
// 1970, and anything else to null. An index can use the function, because such a time
// names its offset, so that the result does not depend on the session.
const instant = `create function instant(t text) returns bigint immutable language plpgsql as $$ begin
	if t ~ '^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$' then
		return floor(extract(epoch from t::timestamptz) * 1000000)::bigint;
	end if;
	return null;
exception when others then return null;
end $$`

// expiryColumn returns the SQL expression of the time at which a resource expires: null if
// it never does, or if it is being deleted.
func (e *Entity) expiryColumn() string {
	return "(case when deleted_at is null then instant(spec #>> '{spec," + e.Expires + "}') end)"
}

func (e *Entity) expiryIndex() store.Index {
	// The name has a hash of the member, because each member has its own index and names in PostgreSQL are short.
	name := fmt.Sprintf("expiry_%08x", crc32.ChecksumIEEE([]byte(e.Expires)))
	return store.Index{Name: name, On: "btree (" + e.expiryColumn() + ", id)", Live: true}
}

// checkExpiry checks the member of a spec that has the time of expiry.
func (e *Entity) checkExpiry(spec json.RawMessage) []rest.FieldError {
	var members map[string]json.RawMessage
	if e.Expires == "" || json.Unmarshal(spec, &members) != nil {
		return nil
	}
	given, ok := members[e.Expires]
	if !ok || string(given) == "null" {
		return nil
	}
	var at time.Time
	if err := json.Unmarshal(given, &at); err == nil && at.Year() > 0 {
		return nil
	}
	return []rest.FieldError{{Field: "spec." + e.Expires, Constraint: "format", Value: raw(shorten(string(given))),
		Message: "must be a time such as 2026-01-02T15:04:05Z"}}
}

// expiries deletes expired resources for one server. Only the goroutine of run uses the
// fields, except that other goroutines call wakeAfterWrite.
type expiries struct {
	s       *Server
	kinds   []*Entity
	woken   chan struct{}
	retries map[string]retry // failed deletions by id
}

// retry is the back-off of a deletion that has failed.
type retry struct {
	at   time.Time
	wait time.Duration
}

func newExpiries(s *Server) *expiries {
	x := &expiries{s: s, woken: make(chan struct{}, 1), retries: map[string]retry{}}
	for _, e := range s.registry.entities {
		if e.Expires != "" {
			x.kinds = append(x.kinds, e)
		}
	}
	return x
}

// wakeAfterWrite wakes run after the server has written a resource of a kind. It never blocks.
func (x *expiries) wakeAfterWrite(e *Entity) {
	if e.Expires == "" {
		return
	}
	select {
	case x.woken <- struct{}{}:
	default:
	}
}

// run deletes resources when they expire, until ctx ends.
func (x *expiries) run(ctx context.Context) {
	if len(x.kinds) == 0 {
		return
	}
	ctx = withCaller(ctx, Caller{Name: itself, System: true}, "", "")
	for {
		next, err := x.deleteExpired(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			x.s.log.Warn("the server cannot look for expired resources; it tries again", "error", err)
		}
		timer := time.NewTimer(max(0, min(time.Until(next), checkEvery)))
		select {
		case <-ctx.Done():
		case <-x.woken:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// expiring is a resource that expires at a time.
type expiring struct {
	entity  *Entity
	id      string
	version int64
	at      time.Time
}

// deleteExpired deletes the resources that have expired by now, and returns the time of the
// next check.
func (x *expiries) deleteExpired(ctx context.Context, now time.Time) (next time.Time, err error) {
	next = now.Add(checkEvery)
	var waiting []string
	for id, r := range x.retries {
		switch {
		case r.at.After(now):
			waiting = append(waiting, id)
			next = earlier(next, r.at)
		case now.Sub(r.at) > checkEvery: // the resource was removed, or does not expire any more
			delete(x.retries, id)
		}
	}
	for _, e := range x.kinds {
		first, err := x.listFirst(ctx, e, waiting)
		if err != nil {
			return next, err
		}
		for _, r := range first {
			if r.at.After(now) {
				next = earlier(next, r.at)
				break
			}
			if changed := x.deleteOne(ctx, r, now); changed {
				next = now
			}
		}
		if len(first) == maxExpired && !first[maxExpired-1].at.After(now) {
			next = now // more resources may have expired
		}
	}
	return next, nil
}

// earlier returns the first of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// listFirst returns the resources of a kind that expire first, without those with an id in but.
func (x *expiries) listFirst(ctx context.Context, e *Entity, but []string) (found []expiring, err error) {
	column := e.expiryColumn()
	if but == nil {
		but = []string{}
	}
	err = x.s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		found = nil
		rows, err := c.Query(ctx, "select id, version, "+column+" from document where kind = '"+e.Kind+
			"' and removed_at is null and "+
			column+" is not null and id <> all($1) order by "+column+", id limit $2", but, maxExpired)
		if err != nil {
			return err
		}
		var at int64
		r := expiring{entity: e}
		_, err = pgx.ForEachRow(rows, []any{&r.id, &r.version, &at}, func() error {
			r.at = time.UnixMicro(at)
			found = append(found, r)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for expired %s: %w", e.Kind, err)
	}
	return found, nil
}

// deleteOne deletes an expired resource. changed is true if the resource has changed since
// it was read: then it is not deleted, and the next check reads it again. A failed deletion
// is tried again with back-off.
func (x *expiries) deleteOne(ctx context.Context, r expiring, now time.Time) (changed bool) {
	_, err := x.s.deleteResource(ctx, address{entity: r.entity, id: r.id}, r.version)
	problem, _ := errors.AsType[*rest.Error](err)
	switch {
	case err == nil:
		delete(x.retries, r.id)
		x.s.log.Info("a resource expired", "kind", r.entity.Kind, "id", r.id, "expired", r.at)
	case errors.Is(err, store.ErrStale):
		return true
	case problem != nil && problem.Status == http.StatusNotFound, ctx.Err() != nil:
	default:
		d := x.retries[r.id]
		d.wait = min(max(2*d.wait, 10*time.Second), 10*time.Minute)
		d.at = now.Add(d.wait)
		x.retries[r.id] = d
		x.s.log.Warn("a resource that expired cannot be deleted", "kind", r.entity.Kind, "id", r.id, "error", err,
			"again_in", d.wait)
	}
	return false
}
