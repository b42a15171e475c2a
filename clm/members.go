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
	"atoll.dev/internal/rendezvous"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Replicas of an adapter share its resources: each resource is in one of the
// adapter's slots, by a hash of its id, and each slot is held by one replica, under
// a lease that it renews here. So no two of them work on one resource at once.

const (
	// memberSlots is how many slots an adapter has.
	memberSlots = 32
	// minLease and maxLease bound what a replica may ask for.
	minLease, maxLease = time.Second, time.Minute
	maxMember          = 100
)

// memberTable has a row for each adapter that has replicas.
const memberTable = `create table adapter_share (
	adapter text primary key,
	state   jsonb not null -- a sharing
)`

// sharing is who shares an adapter's work. Times are microseconds since 1970.
type sharing struct {
	Until   map[string]int64    `json:"until"`           // by replica: the end of its lease
	Holders [memberSlots]string `json:"holders"`         // "": nobody
	Since   [memberSlots]int64  `json:"since"`           // since when a slot's holder has held it
	Grace   map[string]bool     `json:"grace,omitempty"` // replicas whose lease was prolonged without them
}

// renewed is a sharing after a replica was heard, which still works in the slots
// keep. held are the slots that nobody else may work in, open those of them in
// which it may begin: it should end in the others, and then they are another's. A
// slot changes hands only when its holder has let it go, or its lease is over.
//
// When all leases are over, that of a replica that is heard now included, nobody
// could renew: this server or its database was away. The other replicas then have
// one more lease to be heard, so that all come back to the slots that they had.
func (s sharing) renewed(member string, keep []int, until, now int64) (next sharing, open []int) {
	next = sharing{Until: map[string]int64{}, Holders: s.Holders, Since: s.Since, Grace: map[string]bool{}}
	away := s.Until[member] != 0
	for _, end := range s.Until {
		away = away && end <= now
	}
	for m, end := range s.Until {
		if grace := away && m != member && !s.Grace[m]; grace {
			end = until
			next.Grace[m] = true
		} else if m != member && s.Grace[m] {
			next.Grace[m] = true // until it is heard
		}
		if end > now {
			// Where the clock was put back a lease does not last for longer than any may.
			next.Until[m] = min(end, now+maxLease.Microseconds())
		}
	}
	next.Until[member] = max(until, next.Until[member])
	for slot, holder := range next.Holders {
		if _, lives := next.Until[holder]; !lives {
			holder = ""
		}
		mine := next.wanted(slot) == member
		if holder == member && !mine && !slices.Contains(keep, slot) {
			holder = ""
		}
		if holder == "" && mine {
			holder = member
			next.Since[slot] = now
		}
		if holder == member && next.Since[slot] == 0 { // an earlier version of this server did not note it
			next.Since[slot] = now
		}
		if next.Holders[slot] = holder; holder == member && mine {
			open = append(open, slot)
		}
	}
	return next, open
}

// left is a sharing after a replica has ended all its work.
func (s sharing) left(member string) sharing {
	next := sharing{Until: map[string]int64{}, Holders: s.Holders, Since: s.Since, Grace: maps.Clone(s.Grace)}
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

// wanted returns the replica that should hold a slot, "" if there is none.
func (s sharing) wanted(slot int) string {
	owner, _ := rendezvous.Owner(slices.Collect(maps.Keys(s.Until)), func(member string) string {
		return strconv.Itoa(slot) + "\x00" + member
	})
	return owner
}

// changeSharing changes the sharing of an adapter. Times are the database's.
func (s *Server) changeSharing(ctx context.Context, adapter string, change func(have sharing,
	now int64) sharing) error {
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(ctx, `insert into adapter_share (adapter, state) values ($1, '{}') on conflict do nothing`,
			adapter); err != nil {
			return err
		}
		var text []byte
		var now int64
		// clock_timestamp: now() is of before the lock was waited for.
		err := tx.QueryRow(
			ctx, `select state, (extract(epoch from clock_timestamp()) * 1000000)::bigint from adapter_share where adapter = $1 for update`, adapter).Scan(&text, &now)
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

// putMember renews a replica's lease, and answers what it may work on.
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
		return have.left(member)
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// member reads the path of a replica. No tenant has any.
func (s *Server) member(r *http.Request) (adapter, member string, err error) {
	adapter, member = r.PathValue("adapter"), r.PathValue("member")
	switch {
	case callerOf(r.Context()).Tenancy != nil:
		return "", "", rest.Errorf(http.StatusForbidden, codeForbidden, "only the region's own adapters share work")
	case len(adapter) > maxMember || len(member) > maxMember:
		return "", "", rest.Errorf(http.StatusBadRequest, codeBadRequest, "names have at most %d bytes", maxMember)
	}
	return adapter, member, nil
}
