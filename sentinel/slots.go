package sentinel

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/rendezvous"
	"atoll.dev/store"
)

// migrations make the sentinel's tables; add only to the end.
var migrations = []string{tables}

// SchemaVersion returns the version of the schema of the sentinel's tables that this program knows.
func SchemaVersion() int { return len(migrations) }

// tables are the sentinel's tables in the database of CLM. A member is a replica; each process has a new
// session. The lease of a session ends at lease_until, by the database's clock. A slot belongs to the
// session in holder while the lease of that session has not ended. The holder has sent, or need not
// send, the events of all changes before the cursor.
const tables = `
create table sentinel_member (
	fleet       text not null,
	name        text not null,
	session     text not null,
	lease_until timestamptz not null,
	primary key (fleet, name)
);
create table sentinel_slot (
	fleet   text not null,
	slot    int not null,
	holder  text not null default '', -- a session
	changed timestamptz not null default now(), -- when the slot changed its holder
	cursor  text not null default '',
	primary key (fleet, slot)
);
alter table sentinel_slot set (fillfactor = 50);
`

// member is a replica whose lease has not ended.
type member struct{ name, session string }

// shareHolder returns the session of the member whose share has a slot, "" if there is no member. Replicas that
// read the same members compute the same result.
func shareHolder(fleet string, slot int, members []member) string {
	owner, _ := rendezvous.Owner(members, func(m member) string {
		return fleet + "\x00" + strconv.Itoa(slot) + "\x00" + m.name
	})
	return owner.session
}

// heldSlots are the slots that this replica holds, with their saved cursors.
type heldSlots map[int]store.Cursor

// cursorUpdates are the cursors to save, by slot.
type cursorUpdates map[int]store.Cursor

// membership renews this replica's lease and takes and releases its slots. One goroutine uses it.
type membership struct {
	store   *store.Store
	fleet   string
	name    string
	session string
	lease   time.Duration

	renewedAt     time.Time // when the last renewal began
	joined        bool
	held          heldSlots
	takeAllowedAt time.Time // no slots are taken before: after an outage of the database other replicas renew late
}

func newMembership(st *store.Store, fleet, name string, lease time.Duration) *membership {
	return &membership{store: st, fleet: fleet, name: name, session: uuid.NewString(), lease: lease, held: heldSlots{}}
}

// errSameName is the error of a renewal if another process has replaced this one's session under the same name.
var errSameName = errors.New("another replica has the same name")

// renewAndShare saves cursors, renews the lease, releases the slots of other replicas' shares, and takes the free slots
// of this replica's share, in one transaction. It returns the slots that this replica holds after that. If another
// process has this one's name, it returns errSameName and no slots, and goes on under a new name. After another error
// it takes no slots for one lease.
func (m *membership) renewAndShare(ctx context.Context, save cursorUpdates) (heldSlots, error) {
	var got heldSlots
	sameName := false
	now := time.Now()
	lease := m.lease
	if m.joined {
		lease = leaseLength(lease, now.Sub(m.renewedAt))
	}
	m.renewedAt = now
	err := m.store.Tx(ctx, func(tx *store.Tx) error {
		got, sameName = heldSlots{}, false
		if err := m.saveCursors(ctx, tx, save); err != nil {
			return err
		}
		err := m.renew(ctx, tx, lease)
		if errors.Is(err, errSameName) {
			sameName = true // the slots of the old session are free when its lease ends
			return nil
		}
		if err != nil {
			return err
		}
		members, err := m.members(ctx, tx)
		if err != nil {
			return err
		}
		got, err = m.takeShare(ctx, tx, members)
		return err
	})
	switch {
	case err != nil:
		m.takeAllowedAt = time.Now().Add(m.lease)
		return nil, fmt.Errorf("renewing the sentinel's lease: %w", err)
	case sameName:
		err := fmt.Errorf("%w: %s; this one changes its name", errSameName, m.name)
		m.name, m.session, m.joined, m.held = m.name+"-"+m.session[:8], uuid.NewString(), false, heldSlots{}
		return m.held, err
	}
	m.joined, m.held = true, got
	return got, nil
}

// renewals is how often a lease is renewed within its length.
const renewals = 4

// leaseLength returns the length of the lease that a replica requests when its last renewal is since ago. On a busy
// machine leases would end before they are renewed, and other replicas would read the slots again, which makes the
// machine busier. So a late replica requests a longer lease, up to one and a half times. The slots of a killed
// replica are therefore free after one and a half leases at most, and another replica takes them with its next
// renewal: with the default lease within 10 s, also if both replicas are late.
func leaseLength(lease, since time.Duration) time.Duration {
	return min(max(lease, renewals*since), lease*3/2)
}

const saveCursorsSQL = `update sentinel_slot s set cursor = v.cursor from unnest($3::int[], $4::text[]) v(slot, cursor)
	where s.fleet = $1 and s.holder = $2 and s.slot = v.slot and s.cursor <> v.cursor`

// saveCursors saves cursors of slots that this session holds.
func (m *membership) saveCursors(ctx context.Context, tx *store.Tx, save cursorUpdates) error {
	// A crash of the database server may lose the last renewal: the next one repeats it, and an earlier cursor
	// causes some events twice.
	if _, err := tx.Exec(ctx, "set local synchronous_commit = off"); err != nil || len(save) == 0 {
		return err
	}
	var numbers []int
	var cursors []string
	for slot, cursor := range save {
		numbers, cursors = append(numbers, slot), append(cursors, string(cursor))
	}
	_, err := tx.Exec(ctx, saveCursorsSQL, m.fleet, m.session, numbers, cursors)
	return err
}

// renew renews this replica's lease, or inserts its row and the rows of the slots.
func (m *membership) renew(ctx context.Context, tx *store.Tx, lease time.Duration) error {
	var session string
	err := tx.QueryRow(ctx, `select session from sentinel_member where fleet = $1 and name = $2 for update`, m.fleet,
		m.name).Scan(&session)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return err
	case err == nil && m.joined && session != m.session:
		return errSameName
	}
	if !m.joined {
		// This session replaces that of an earlier process of the name at once, whose lease need not have ended.
		_, err := tx.Exec(ctx, `insert into sentinel_slot (fleet, slot) select $1, generate_series(0, $2 - 1)
			on conflict do nothing`, m.fleet, slots)
		if err != nil {
			return err
		}
	}
	_, err = tx.Exec(
		ctx,
		`insert into sentinel_member (fleet, name, session, lease_until) values ($1, $2, $3, now() + $4 * interval '1 microsecond')
		on conflict (fleet, name) do update set session = excluded.session, lease_until = excluded.lease_until`,
		m.fleet,
		m.name,
		m.session,
		lease.Microseconds(),
	)
	return err
}

// members returns the replicas whose lease has not ended. It deletes the rows of replicas whose lease
// ended a minute ago.
func (m *membership) members(ctx context.Context, tx *store.Tx) ([]member, error) {
	rows, err := tx.Query(
		ctx, `with gone as (delete from sentinel_member where lease_until < now() - interval '1 minute')
		select name, session from sentinel_member where fleet = $1 and lease_until > now()`, m.fleet)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (x member, err error) {
		return x,
			r.Scan(&x.name, &x.session)
	})
}

const (
	releaseSlotsSQL = `update sentinel_slot set holder = '', changed = now() where fleet = $1 and holder = $2 and slot = any($3)`
	takeSlotsSQL    = `update sentinel_slot set holder = $2, changed = now() where fleet = $1 and slot = any($3) and holder <> $2 and not holder = any($4)`
	heldSlotsSQL    = `select slot, cursor from sentinel_slot where fleet = $1 and holder = $2`
)

// takeShare releases the slots of other replicas' shares, takes the free slots of this replica's share, and returns
// all slots that it holds after that.
func (m *membership) takeShare(ctx context.Context, tx *store.Tx, members []member) (heldSlots, error) {
	mine, others, sessions := []int{}, []int{}, make([]string, len(members))
	for i, x := range members {
		sessions[i] = x.session
	}
	for slot := range slots {
		_, held := m.held[slot]
		switch wanted := shareHolder(m.fleet, slot, members) == m.session; {
		case wanted && !held:
			mine = append(mine, slot)
		case !wanted && held:
			others = append(others, slot)
		}
	}
	if len(others) > 0 {
		if _, err := tx.Exec(ctx, releaseSlotsSQL, m.fleet, m.session, others); err != nil {
			return nil, err
		}
	}
	if len(mine) > 0 && time.Now().After(m.takeAllowedAt) {
		if _, err := tx.Exec(ctx, takeSlotsSQL, m.fleet, m.session, mine, sessions); err != nil {
			return nil, err
		}
	}
	rows, err := tx.Query(ctx, heldSlotsSQL, m.fleet, m.session)
	if err != nil {
		return nil, err
	}
	held := heldSlots{}
	var slot int
	var cursor string
	_, err = pgx.ForEachRow(rows, []any{&slot, &cursor}, func() error {
		held[slot] = store.Cursor(cursor)
		return nil
	})
	return held, err
}

// leave releases all slots, so that other replicas need not wait for the end of the lease.
func (m *membership) leave(ctx context.Context, save cursorUpdates) error {
	err := m.store.Tx(ctx, func(tx *store.Tx) error {
		if err := m.saveCursors(ctx, tx, save); err != nil {
			return err
		}
		if _, err := tx.Exec(
			ctx,
			`update sentinel_slot set holder = '', changed = now() where fleet = $1 and holder = $2`,
			m.fleet,
			m.session,
		); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `delete from sentinel_member where fleet = $1 and name = $2 and session = $3`, m.fleet,
			m.name, m.session)
		return err
	})
	if err != nil {
		return fmt.Errorf("releasing the slots: %w", err)
	}
	return nil
}
