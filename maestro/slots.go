package maestro

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgsession"
	"atoll.dev/internal/rendezvous"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// The consumers that are reached over the broker are divided into slots, and each
// slot has one holder: the server that delivers to its consumers. The lease of a
// holder is a lock of its database session, so it ends at once with the process,
// and within 3 s when its host vanishes; no clocks are compared. All servers
// compute the same division from the list of those locks.
const slotsSchema = `
create table delivery_slot (
	source text not null,
	slot   int not null,
	holder bigint not null default 0, -- the key of a session's lock; 0: nobody
	primary key (source, slot)
);
-- Consumers whose agents lack works, as another server than their holder found.
create table delivery_hint (
	source   text not null,
	consumer text not null,
	slot     int not null,
	primary key (source, consumer)
);
`

const (
	deliverySlots = 64
	slotEvery     = 500 * time.Millisecond
	// slotValid is for how long a holder may send after it began to ask whether it
	// still is one: less than the database takes to notice that its host is gone.
	slotValid = 2500 * time.Millisecond
)

func slotOf(consumer string) int {
	h := fnv.New32a()
	h.Write([]byte(consumer))
	return int(h.Sum32() % deliverySlots)
}

// wantedHolder returns the live server that should hold a slot, 0 if there is none.
func wantedHolder(slot int, live []int64) int64 {
	owner, _ := rendezvous.Owner(live, func(key int64) string {
		return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(slot)), uint64(key)))
	})
	return owner
}

// divide decides which slots a server gives back and takes. live has the keys of
// all servers, holders those of the slots. A slot is taken only from a holder
// that is gone, and given only to another that lives.
func divide(me int64, live, holders []int64) (give, take []int) {
	for slot, holder := range holders {
		switch wanted := wantedHolder(slot, live); {
		case wanted == me && holder != me && !slices.Contains(live, holder):
			take = append(take, slot)
		case wanted != me && holder == me:
			give = append(give, slot)
		}
	}
	return give, take
}

// slotLease is this server's part in the division. One goroutine uses it.
type slotLease struct {
	s     *Server
	class int64 // of the locks of all servers with the same source
	key   int64 // of this session
}

func newSlotLease(s *Server) *slotLease {
	h := fnv.New32a()
	h.Write([]byte("maestro delivery " + s.opts.SourceID))
	return &slotLease{s: s, class: int64(h.Sum32() >> 1)}
}

// runSlots keeps a session that holds this server's lease, until ctx ends.
func (s *Server) runSlots(ctx context.Context) error {
	if s.delivery == nil {
		return nil
	}
	l := newSlotLease(s)
	for {
		err := l.session(ctx)
		if ctx.Err() != nil {
			s.delivery.setHeldSlots(nil, time.Time{})
			return nil
		}
		// Nothing is sent meanwhile, and nothing is forgotten: mostly the slots
		// are this server's again a moment later.
		s.log.LogAttrs(ctx, slog.LevelWarn, "delivery is interrupted: the lease's session ended",
			slog.Any("error", err))
		if !sleep(ctx, leaseInterval) {
			s.delivery.setHeldSlots(nil, time.Time{})
			return nil
		}
	}
}

// session makes a session, and holds slots for as long as it lives.
func (l *slotLease) session(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, 2*time.Second)
	conn, err := pgsession.Connect(dial, l.s.opts.DSN)
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(bye)
	}()
	var set string
	if err := query(ctx, conn,
		`select set_config('tcp_keepalives_idle', '1', false) || set_config('tcp_keepalives_interval', '1', false) ||
			set_config('tcp_keepalives_count', '2', false) || set_config('tcp_user_timeout', '3000', false)
			|| set_config('lock_timeout', '2000', false)`, &set); err != nil {
		return err
	}
	l.key = 1 + rand.Int64N(1<<31-1)
	var held bool
	if err := query(ctx, conn, `select pg_try_advisory_lock($1::int, $2::int)`, &held, l.class, l.key); err != nil ||
		!held {
		return fmt.Errorf("taking the lock of a lease: %w", cmp.Or(err, store.ErrConflict))
	}
	tick := time.NewTicker(slotEvery)
	defer tick.Stop()
	for {
		if err := l.refresh(ctx, conn); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// refresh looks at the division, changes this server's part of it where it has to,
// and tells the deliverer what it holds.
func (l *slotLease) refresh(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	begun := time.Now()
	live, holders, hints, err := l.readDivision(ctx, conn)
	if err != nil {
		return fmt.Errorf("reading the division of delivery: %w", err)
	}
	if give, take := divide(l.key, live, holders); len(give)+len(take) > 0 || len(holders) < deliverySlots {
		if len(give) > 0 { // nothing of a slot is sent once it is given back
			for _, slot := range give {
				holders[slot] = 0
			}
			l.s.delivery.setHeldSlots(l.held(holders), begun.Add(slotValid))
		}
		if holders, err = l.exchangeSlots(ctx, conn); err != nil {
			return fmt.Errorf("dividing delivery: %w", err)
		}
	}
	l.s.delivery.setHeldSlots(l.held(holders), begun.Add(slotValid))
	if len(hints) > 0 {
		l.s.delivery.hasten(hints)
	}
	return nil
}

func (l *slotLease) held(holders []int64) []int {
	held := []int{}
	for slot, holder := range holders {
		if holder == l.key {
			held = append(held, slot)
		}
	}
	return held
}

// liveSQL lists the keys of the sessions that hold a lease.
const liveSQL = `select objid::bigint from pg_locks where locktype = 'advisory' and granted and objsubid = 2 and objid <> 0
	and classid = $1::bigint::oid and database = (select oid from pg_database where datname = current_database())`

// readDivision reads the live servers, the slots' holders, and takes the hints about
// consumers of this one.
func (l *slotLease) readDivision(ctx context.Context, conn *pgx.Conn) (live, holders []int64, hints []string, err error) {
	err = conn.QueryRow(ctx, `select array(`+liveSQL+
		`), array(select holder from delivery_slot where source = $2 order by slot),
		array(select consumer from delivery_hint where source = $2 and slot in (select slot from delivery_slot where source = $2 and holder = $3))`,
		l.class, l.s.opts.SourceID, l.key).Scan(&live, &holders, &hints)
	if err != nil || len(hints) == 0 {
		return live, holders, nil, err
	}
	rows, err := conn.Query(
		ctx,
		`delete from delivery_hint where source = $1 and consumer = any($2) returning consumer`,
		l.s.opts.SourceID,
		hints,
	)
	if err != nil {
		return nil, nil, nil, err
	}
	hints, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return live, holders, hints, err
}

// exchangeSlots gives and takes slots. One server does so at a time.
func (l *slotLease) exchangeSlots(ctx context.Context, conn *pgx.Conn) (holders []int64, err error) {
	source := l.s.opts.SourceID
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1::int, 0)`, l.class); err != nil {
			return err
		}
		if _, err := tx.Exec(
			ctx,
			`insert into delivery_slot (source, slot) select $1, generate_series(0, $2 - 1) on conflict do nothing`,
			source,
			deliverySlots,
		); err != nil {
			return err
		}
		var live []int64
		if err := tx.QueryRow(ctx, `select array(`+liveSQL+
			`), array(select holder from delivery_slot where source = $2 order by slot)`,
			l.class, source).Scan(&live, &holders); err != nil {
			return err
		}
		give, take := divide(l.key, live, holders)
		for _, slot := range give {
			holders[slot] = 0
		}
		for _, slot := range take {
			holders[slot] = l.key
		}
		_, err := tx.Exec(
			ctx, `update delivery_slot s set holder = v.holder from unnest($2::int[], $3::bigint[]) v(slot, holder)
			where s.source = $1 and s.slot = v.slot and s.holder <> v.holder`,
			source, slices.Concat(give, take), slices.Concat(make([]int64, len(give)), slices.Repeat([]int64{l.key},
				len(take))))
		return err
	})
	return holders, err
}

// hintDelivery has the server that delivers to a consumer look for what its agent
// lacks, within slotEvery.
func (s *Server) hintDelivery(ctx context.Context, consumer string) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(
			ctx, `insert into delivery_hint (source, consumer, slot) values ($1, $2, $3) on conflict do nothing`,
			s.opts.SourceID, consumer, slotOf(consumer))
		return err
	})
}

// heldSlots are the slots of a deliverer. Its owner has the deliverer's lock.
type heldSlots struct {
	held  [deliverySlots]bool
	until time.Time // it may send
}

func (h *heldSlots) serves(consumer string) bool { return h.held[slotOf(consumer)] }

// hold tells the deliverer which slots it has, and until when it may send to
// their consumers. What it knows of those that it has no more is dropped; what is
// unacknowledged of new ones is read.
func (d *deliverer) setHeldSlots(slots []int, until time.Time) {
	var held [deliverySlots]bool
	for _, slot := range slots {
		held[slot] = true
	}
	gained := false
	d.update(func(m *delivery.Machine) {
		lost := [deliverySlots]bool{}
		for slot, was := range d.leased.held {
			lost[slot] = was && !held[slot]
			gained = gained || held[slot] && !was
		}
		d.leased.held, d.leased.until = held, until
		if lost == ([deliverySlots]bool{}) {
			return
		}
		m.DropIf(func(consumer string) bool { return lost[slotOf(consumer)] })
		for id, doc := range d.fresh {
			if lost[slotOf(doc.Scope)] {
				d.takeFresh(id)
			}
		}
	})
	d.s.metrics.delivering.Set(float64(len(slots)))
	if !gained {
		return
	}
	d.requestCompare()
	if d.s.opts.Topics.AgentEvents.Group == "" {
		d.s.askStatuses() // comparisons that came while nobody delivered were answered by nobody
	}
}

// hasten has what is unacknowledged of some consumers read and sent soon.
func (d *deliverer) hasten(consumers []string) { d.requestCompare(consumers...) }

// requestCompare has follow compare with the ledger: all consumers, or some.
func (d *deliverer) requestCompare(consumers ...string) {
	d.mu.Lock()
	d.compareAll = d.compareAll || len(consumers) == 0
	for _, consumer := range consumers {
		d.compareSome[consumer] = true
	}
	d.mu.Unlock()
	select {
	case d.compareNow <- struct{}{}:
	default:
	}
}

// compareRequested compares what was asked for.
func (d *deliverer) compareRequested(ctx context.Context) error {
	d.mu.Lock()
	all, some := d.compareAll, slices.Sorted(maps.Keys(d.compareSome))
	d.compareAll = false
	clear(d.compareSome)
	d.mu.Unlock()
	if all {
		return d.compare(ctx)
	}
	if len(some) == 0 {
		return nil
	}
	if err := d.compare(ctx, some...); err != nil {
		return err
	}
	d.update(func(m *delivery.Machine) {
		for _, consumer := range some {
			m.Hasten(time.Now(), consumer)
		}
	})
	return nil
}
