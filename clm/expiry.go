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

// Resources of a kind that expires are deleted, as by DELETE, when their time
// has come. Each server looks after all of them: an index has them in the order
// of their times, so looking costs one step in it, and what one server deleted
// the others find deleted. A server looks when the first time comes, when it
// has written one itself, and else every lookEvery, for what others wrote.

const (
	lookEvery   = 30 * time.Second
	expireAtOne = 100 // deleted between two looks
	// itself is the name under which the server changes what nobody asks it to.
	itself = "system:clm"
)

// instant makes an SQL function of a time in RFC 3339: microseconds since 1970,
// null for anything else. It is the same everywhere, because such a time names
// its offset, so an index can rest on it.
const instant = `create function instant(t text) returns bigint immutable language plpgsql as $$ begin
	if t ~ '^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$' then
		return floor(extract(epoch from t::timestamptz) * 1000000)::bigint;
	end if;
	return null;
exception when others then return null;
end $$`

// expiryColumn is when a resource expires, null for those that do not, and for
// those whose deletion was requested already.
func (e *Entity) expiryColumn() string {
	return "(case when deleted_at is null then instant(spec #>> '{spec," + e.Expires + "}') end)"
}

func (e *Entity) expiryIndex() store.Index {
	// Another member is another index. Names in PostgreSQL are short.
	name := fmt.Sprintf("expiry_%08x", crc32.ChecksumIEEE([]byte(e.Expires)))
	return store.Index{Name: name, On: "btree (" + e.expiryColumn() + ", id)", Live: true}
}

// checkExpiry checks the member of a spec that says when it expires.
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

// expiries is a server's part in it. Only run uses it, but for written.
type expiries struct {
	s      *Server
	kinds  []*Entity
	tell   chan struct{}
	denied map[string]denial // by id: those whose deletion failed
}

// denial is a deletion that failed: what is in the way may go.
type denial struct {
	again time.Time
	wait  time.Duration
}

func newExpiries(s *Server) *expiries {
	x := &expiries{s: s, tell: make(chan struct{}, 1), denied: map[string]denial{}}
	for _, e := range s.registry.entities {
		if e.Expires != "" {
			x.kinds = append(x.kinds, e)
		}
	}
	return x
}

// written says that a resource of a kind was written.
func (x *expiries) written(e *Entity) {
	if e.Expires == "" {
		return
	}
	select {
	case x.tell <- struct{}{}:
	default:
	}
}

// run deletes what expires until ctx ends.
func (x *expiries) run(ctx context.Context) {
	if len(x.kinds) == 0 {
		return
	}
	ctx = withCaller(ctx, Caller{Name: itself, System: true}, "")
	for {
		next, err := x.look(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			x.s.log.Warn("what expires was not looked at", "error", err)
		}
		timer := time.NewTimer(max(0, min(time.Until(next), lookEvery)))
		select {
		case <-ctx.Done():
		case <-x.tell:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// expiring is a resource that has a time.
type expiring struct {
	entity  *Entity
	id      string
	version int64
	at      time.Time
}

// look deletes what has expired by now, and returns when it should look again.
func (x *expiries) look(ctx context.Context, now time.Time) (next time.Time, err error) {
	next = now.Add(lookEvery)
	var denied []string
	for id, d := range x.denied {
		switch {
		case d.again.After(now):
			denied = append(denied, id)
			next = earlier(next, d.again)
		case now.Sub(d.again) > lookEvery: // it did not come again: it is gone, or lives on
			delete(x.denied, id)
		}
	}
	for _, e := range x.kinds {
		first, err := x.first(ctx, e, denied)
		if err != nil {
			return next, err
		}
		for _, r := range first {
			if r.at.After(now) {
				next = earlier(next, r.at)
				break
			}
			if changed := x.end(ctx, r, now); changed {
				next = now
			}
		}
		if len(first) == expireAtOne && !first[expireAtOne-1].at.After(now) {
			next = now // there are more
		}
	}
	return next, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// first are the resources of a kind that expire first.
func (x *expiries) first(ctx context.Context, e *Entity, but []string) (found []expiring, err error) {
	column := e.expiryColumn()
	if but == nil {
		but = []string{}
	}
	err = x.s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		found = nil
		rows, err := c.Query(ctx, "select id, version, "+column+" from document where kind = '"+e.Kind+
			"' and removed_at is null and "+
			column+" is not null and id <> all($1) order by "+column+", id limit $2", but, expireAtOne)
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
		return nil, fmt.Errorf("looking for what expires of %s: %w", e.Kind, err)
	}
	return found, nil
}

// end deletes a resource whose time has come, unless it was changed meanwhile:
// then one has to look at it again.
func (x *expiries) end(ctx context.Context, r expiring, now time.Time) (changed bool) {
	_, err := x.s.deleteResource(ctx, address{entity: r.entity, id: r.id}, r.version)
	problem, _ := errors.AsType[*rest.Error](err)
	switch {
	case err == nil:
		delete(x.denied, r.id)
		x.s.log.Info("a resource expired", "kind", r.entity.Kind, "id", r.id, "expired", r.at)
	case errors.Is(err, store.ErrStale):
		return true
	case problem != nil && problem.Status == http.StatusNotFound, ctx.Err() != nil:
	default:
		d := x.denied[r.id]
		d.wait = min(max(2*d.wait, 10*time.Second), 10*time.Minute)
		d.again = now.Add(d.wait)
		x.denied[r.id] = d
		x.s.log.Warn("a resource that expired cannot be deleted", "kind", r.entity.Kind, "id", r.id, "error", err,
			"again_in", d.wait)
	}
	return false
}
