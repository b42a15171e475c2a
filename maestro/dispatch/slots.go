package dispatch

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

	"atoll.dev/api/work"
	"atoll.dev/internal/pause"
	"atoll.dev/internal/pgsession"
	"atoll.dev/internal/rendezvous"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// Consumers whose agents use the MQTT broker are divided into slots. Each slot has at
// most one holder: the server that delivers to its consumers. The lease of a holder is an
// advisory lock of its database session, so the lease ends at once with the process,
// and within 3 s when the host vanishes; no clocks of different hosts are compared. All
// servers compute the same wanted holders from the list of those locks.
//
// SlotsSchema is a migration of the database: the tables of the division.
const SlotsSchema = `
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

// Slots is the number of slots.
const Slots = 64

const (
	slotEvery = 500 * time.Millisecond
	// slotValid is how long a holder may send after it began to read the division: less
	// than the time in which the database notices that the holder's host is gone.
	slotValid = 2500 * time.Millisecond
)

// slotOf returns the slot of a consumer.
func slotOf(consumer work.Consumer) int {
	h := fnv.New32a()
	h.Write([]byte(consumer))
	return int(h.Sum32() % Slots)
}

// wantedHolder returns the live server that should hold a slot, 0 if there is none.
func wantedHolder(slot int, live []int64) int64 {
	owner, _ := rendezvous.Owner(live, func(key int64) string {
		return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(slot)), uint64(key)))
	})
	return owner
}

// divide decides which slots the server me gives back and which it takes. live has the
// keys of all live servers, holders the key of each slot's holder. A server takes a slot
// only when its holder is not live, and gives a slot back only when another live server
// should hold it.
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

// slotLease identifies the lease of this server. One goroutine uses it.
type slotLease struct {
	d     *Dispatcher
	class int64 // first number of the advisory locks: the same for all servers of a source
	key   int64 // second number: new for each session
}

func newSlotLease(d *Dispatcher) *slotLease {
	h := fnv.New32a()
	h.Write([]byte("maestro delivery " + d.o.SourceID))
	return &slotLease{d: d, class: int64(h.Sum32() >> 1)}
}

// leaseInterval is the pause before a server opens a new session for its lease,
// or subscribes to the feed again, after a failure.
const leaseInterval = 250 * time.Millisecond

// runSlots keeps a session that holds this server's lease, until ctx ends.
func (d *Dispatcher) runSlots(ctx context.Context) error {
	l := newSlotLease(d)
	for {
		err := l.session(ctx)
		if ctx.Err() != nil {
			d.broker.setHeldSlots(nil, time.Time{})
			return nil
		}
		// The server sends nothing until it holds slots again, and keeps its works in
		// memory. Alone, it holds the same slots again a moment later.
		d.o.Logger.LogAttrs(ctx, slog.LevelWarn, "delivery is interrupted: the lease's session ended",
			slog.Any("error", err))
		if !pause.For(ctx, leaseInterval) {
			d.broker.setHeldSlots(nil, time.Time{})
			return nil
		}
	}
}

// session opens a database session with the lease, and holds slots until the session fails or ctx ends.
func (l *slotLease) session(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, 2*time.Second)
	conn, err := pgsession.Connect(dial, l.d.o.DSN)
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		// The end of the session frees the lease, and another server may take the slots at once.
		l.d.broker.stopSending()
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
	for {
		begun := time.Now()
		if err := l.refresh(ctx, conn); err != nil {
			return err
		}
		// The held slots are valid for slotValid from begun on: a slow refresh leaves no time to wait.
		if err := waitInSession(ctx, conn, slotEvery-time.Since(begun)); err != nil {
			return fmt.Errorf("waiting in the session of a lease: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// waitInSession waits for the given time or for the end of ctx, and returns nil. When PostgreSQL ends the session or
// the connection breaks, waitInSession returns the error at once: the lease is free then, and another server may send.
func waitInSession(ctx context.Context, conn *pgx.Conn, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		_, err := conn.WaitForNotification(ctx) // nothing notifies this session
		switch {
		case err == nil:
		case ctx.Err() != nil && !conn.IsClosed():
			return nil
		default:
			return err
		}
	}
}

// refresh reads the division, exchanges this server's slots where needed, and passes the
// held slots and the hints to the deliverer.
func (l *slotLease) refresh(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	begun := time.Now()
	live, holders, hints, err := l.readDivision(ctx, conn)
	if err != nil {
		return fmt.Errorf("reading the division of delivery: %w", err)
	}
	if len(hints) > 0 { // the database has deleted them, so the rest of refresh may fail
		defer l.d.broker.requestReload(hints...)
	}
	if give, take := divide(l.key, live, holders); len(give)+len(take) > 0 || len(holders) < Slots {
		if len(give) > 0 { // stop sending to the consumers of a slot before giving it back
			for _, slot := range give {
				holders[slot] = 0
			}
			l.d.broker.setHeldSlots(l.ownSlots(holders), begun.Add(slotValid))
		}
		if holders, err = l.exchangeSlots(ctx, conn); err != nil {
			return fmt.Errorf("dividing delivery: %w", err)
		}
	}
	l.d.broker.setHeldSlots(l.ownSlots(holders), begun.Add(slotValid))
	return nil
}

// ownSlots returns the slots of which this server is the holder.
func (l *slotLease) ownSlots(holders []int64) []int {
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

// query runs a query of one row on conn, with a time limit.
func query(ctx context.Context, conn *pgx.Conn, sql string, result any, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return conn.QueryRow(ctx, sql, args...).Scan(result)
}

// readDivision reads the live servers and the holders of the slots, and removes and
// returns the hints about consumers of this server.
func (l *slotLease) readDivision(ctx context.Context, conn *pgx.Conn) (
	live, holders []int64, hints []work.Consumer, err error) {
	err = conn.QueryRow(ctx, `select array(`+liveSQL+
		`), array(select holder from delivery_slot where source = $2 order by slot),
		array(select consumer from delivery_hint where source = $2 and slot in (select slot from delivery_slot where source = $2 and holder = $3))`,
		l.class, l.d.o.SourceID, l.key).Scan(&live, &holders, &hints)
	if err != nil || len(hints) == 0 {
		return live, holders, nil, err
	}
	rows, err := conn.Query(
		ctx,
		`delete from delivery_hint where source = $1 and consumer = any($2) returning consumer`,
		l.d.o.SourceID,
		hints,
	)
	if err != nil {
		return nil, nil, nil, err
	}
	hints, err = pgx.CollectRows(rows, pgx.RowTo[work.Consumer])
	return live, holders, hints, err
}

// exchangeSlots gives back and takes slots in the database, and returns the new holders. A lock
// admits one server at a time.
func (l *slotLease) exchangeSlots(ctx context.Context, conn *pgx.Conn) (holders []int64, err error) {
	source := l.d.o.SourceID
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1::int, 0)`, l.class); err != nil {
			return err
		}
		if _, err := tx.Exec(
			ctx,
			`insert into delivery_slot (source, slot) select $1, generate_series(0, $2 - 1) on conflict do nothing`,
			source,
			Slots,
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

// hintDelivery stores a hint: within slotEvery the server that delivers to the consumer
// reads its unacknowledged works and sends them.
func hintDelivery(ctx context.Context, o Options, consumer work.Consumer) error {
	return o.Store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(
			ctx, `insert into delivery_hint (source, consumer, slot) values ($1, $2, $3) on conflict do nothing`,
			o.SourceID, consumer, slotOf(consumer))
		return err
	})
}

// heldSlots has the slots of a deliverer. The deliverer's lock guards it.
type heldSlots struct {
	held  [Slots]bool
	until time.Time // the deliverer may send until then
}

func (h *heldSlots) serves(consumer work.Consumer) bool { return h.held[slotOf(consumer)] }

// stopSending makes the deliverer send nothing until setHeldSlots sets a later time. The deliverer keeps its slots
// and its works.
func (d *deliverer) stopSending() {
	d.update(func(*delivery.Machine) { d.leased.until = time.Time{} })
}

// setHeldSlots sets the slots of the deliverer and the time until which it may send to
// their consumers. It drops the works of lost slots. When it gained a slot, it requests the
// unacknowledged works of all its consumers from the ledger.
func (d *deliverer) setHeldSlots(slots []int, until time.Time) {
	var held [Slots]bool
	for _, slot := range slots {
		held[slot] = true
	}
	gained := false
	d.update(func(m *delivery.Machine) {
		lost := [Slots]bool{}
		for slot, was := range d.leased.held {
			lost[slot] = was && !held[slot]
			gained = gained || held[slot] && !was
		}
		d.leased.held, d.leased.until = held, until
		if lost == ([Slots]bool{}) {
			return
		}
		m.DropIf(func(consumer work.Consumer) bool { return lost[slotOf(consumer)] })
		for id, doc := range d.fresh {
			if lost[slotOf(work.Consumer(doc.Scope))] {
				d.takeFresh(id)
			}
		}
	})
	d.o.Metrics.Slots.Set(float64(len(slots)))
	if gained {
		d.requestReload()
		d.o.Gained()
	}
}

// requestReload makes follow read the unacknowledged works of the named consumers from
// the ledger, or of all consumers when none is named. It does not wait.
func (d *deliverer) requestReload(consumers ...work.Consumer) {
	d.mu.Lock()
	d.reloadAll = d.reloadAll || len(consumers) == 0
	for _, consumer := range consumers {
		d.reloadSome[consumer] = true
	}
	d.mu.Unlock()
	select {
	case d.reloadNow <- struct{}{}:
	default:
	}
}

// reloadRequested carries out the requests of requestReload. The works of named
// consumers become due at once, unless all consumers are requested, too.
func (d *deliverer) reloadRequested(ctx context.Context) error {
	d.mu.Lock()
	all, some := d.reloadAll, slices.Sorted(maps.Keys(d.reloadSome))
	d.reloadAll = false
	clear(d.reloadSome)
	d.mu.Unlock()
	if all {
		return d.loadPending(ctx)
	}
	if len(some) == 0 {
		return nil
	}
	if err := d.loadPending(ctx, some...); err != nil {
		return err
	}
	d.update(func(m *delivery.Machine) {
		for _, consumer := range some {
			m.MakeDue(time.Now(), consumer)
		}
	})
	return nil
}
