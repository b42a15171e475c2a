package clm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/rendezvous"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Replicas of an adapter share its resources: each resource is in one of the
// adapter's slots, by a hash of its id, and one replica holds each slot, under
// a lease that it renews here. So no two replicas work on one resource at once.

const (
	// memberSlots is how many slots an adapter has.
	memberSlots = 32
	// minLease and maxLease bound the lease that a replica may request.
	minLease, maxLease = time.Second, time.Minute
	maxMember          = 100
)

// memberTable has a row for each adapter that has replicas.
const memberTable = `create table adapter_share (
	adapter text primary key,
	state   jsonb not null -- a sharing
)`

// memberName names a replica among the replicas of an adapter.
type memberName string

// sharing is the division of an adapter's slots among its replicas. Times are microseconds
// since 1970.
type sharing struct {
	Until   map[memberName]int64    `json:"until"`           // by replica: the end of its lease
	Holders [memberSlots]memberName `json:"holders"`         // "": no holder
	Since   [memberSlots]int64      `json:"since"`           // since when a slot's holder has held it
	Grace   map[memberName]bool     `json:"grace,omitempty"` // replicas whose lease was prolonged without them
}

// renewed returns the sharing after a replica has renewed its lease until a time. keep has
// the slots in which the replica still works. open are the slots in which it may begin new
// work; it should finish its work in its other slots, which then go to other replicas. A
// slot changes its holder only after the holder has released it, or its lease has ended.
//
// If all leases have ended, also that of this replica, then no replica could renew: this
// server or its database was down. The other replicas then get one more lease as grace, so
// that all of them keep their slots.
func (s sharing) renewed(member memberName, keep []int, until, now int64) (next sharing, open []int) {
	next = sharing{Until: map[memberName]int64{}, Holders: s.Holders, Since: s.Since,
		Grace: map[memberName]bool{}}
	allEnded := s.Until[member] != 0
	for _, end := range s.Until {
		allEnded = allEnded && end <= now
	}
	for m, end := range s.Until {
		if grace := allEnded && m != member && !s.Grace[m]; grace {
			end = until
			next.Grace[m] = true
		} else if m != member && s.Grace[m] {
			next.Grace[m] = true // until the replica renews
		}
		if end > now {
			// If the clock was set back, a lease still does not last longer than maxLease.
			next.Until[m] = min(end, now+maxLease.Microseconds())
		}
	}
	next.Until[member] = max(until, next.Until[member])
	for slot, holder := range next.Holders {
		if _, lives := next.Until[holder]; !lives {
			holder = ""
		}
		shouldHold := next.ownerOf(slot) == member
		if holder == member && !shouldHold && !slices.Contains(keep, slot) {
			holder = ""
		}
		if holder == "" && shouldHold {
			holder = member
			next.Since[slot] = now
		}
		if holder == member && next.Since[slot] == 0 { // an earlier version of this server did not store it
			next.Since[slot] = now
		}
		if next.Holders[slot] = holder; holder == member && shouldHold {
			open = append(open, slot)
		}
	}
	return next, open
}

// without returns the sharing after a replica has finished all its work and released its
// slots.
func (s sharing) without(member memberName) sharing {
	next := sharing{Until: map[memberName]int64{}, Holders: s.Holders, Since: s.Since, Grace: maps.Clone(s.Grace)}
	delete(next.Grace, member)
	for m, end := range s.Until {
		if m != member {
			next.Until[m] = end
		}
	}
	for slot, holder := range next.Holders {
		if holder == member {
			next.Holders[slot] = ""
		}
	}
	return next
}

// ownerOf returns the replica that should hold a slot, "" if there is none.
func (s sharing) ownerOf(slot int) memberName {
	owner, _ := rendezvous.Owner(slices.Collect(maps.Keys(s.Until)), func(member memberName) string {
		return strconv.Itoa(slot) + "\x00" + string(member)
	})
	return owner
}

// changeSharing changes the sharing of an adapter. Times are the database's.
func (s *Server) changeSharing(ctx context.Context, adapter cluster.Adapter, change func(have sharing,
	now int64) sharing) error {
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(ctx, `insert into adapter_share (adapter, state) values ($1, '{}') on conflict do nothing`,
			adapter); err != nil {
			return err
		}
		var text []byte
		var now int64
		// clock_timestamp, because now() is the time before the wait for the lock.
		err := tx.QueryRow(ctx, `select state, (extract(epoch from clock_timestamp()) * 1000000)::bigint
			from adapter_share where adapter = $1 for update`, adapter).Scan(&text, &now)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.ErrConflict
		}
		if err != nil {
			return err
		}
		var have sharing
		if err := json.Unmarshal(text, &have); err != nil {
			return err
		}
		text, err = json.Marshal(change(have, now))
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `update adapter_share set state = $2 where adapter = $1`, adapter, text)
		return err
	})
	if err != nil {
		return fmt.Errorf("sharing the work of adapter %s: %w", adapter, err)
	}
	return nil
}

// putMember renews a replica's lease, and answers with the slots in which it may work.
func (s *Server) putMember(w http.ResponseWriter, r *http.Request) error {
	var req api.AdapterMemberRenewal
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	adapter, member, err := s.member(r)
	if err != nil {
		return err
	}
	lease := time.Duration(req.LeaseMs) * time.Millisecond
	if lease < minLease || lease > maxLease {
		return fieldError(http.StatusBadRequest, codeValidation, "lease_ms", "range",
			fmt.Sprintf("must be from %d to %d", minLease.Milliseconds(), maxLease.Milliseconds()))
	}
	answer := api.AdapterMember{Slots: memberSlots, Open: []int{}}
	if err := s.changeSharing(r.Context(), adapter, func(have sharing, now int64) sharing {
		next, open := have.renewed(member, req.Keep, now+lease.Microseconds(), now)
		answer.Open, answer.Since, answer.Members = append([]int{}, open...), nil, len(next.Until)
		for _, slot := range open {
			answer.Since = append(answer.Since, next.Since[slot])
		}
		return next
	}); err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, answer)
}

// deleteMember ends a replica's lease.
func (s *Server) deleteMember(w http.ResponseWriter, r *http.Request) error {
	adapter, member, err := s.member(r)
	if err != nil {
		return err
	}
	if err := s.changeSharing(r.Context(), adapter, func(have sharing, _ int64) sharing {
		return have.without(member)
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// member reads the names of the adapter and the replica from the path.
func (s *Server) member(r *http.Request) (adapter cluster.Adapter, member memberName, err error) {
	adapter, member = cluster.Adapter(r.PathValue("adapter")), memberName(r.PathValue("member"))
	if len(adapter) > maxMember || len(member) > maxMember {
		return "", "", rest.Errorf(http.StatusBadRequest, codeBadRequest, "names have at most %d bytes", maxMember)
	}
	return adapter, member, nil
}
