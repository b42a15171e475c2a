package maestro

import (
	"context"
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/maestro/dispatch"
	"atoll.dev/store"
)

// slotsOf returns the number of slots that a server holds.
func slotsOf(i *instance) int { return int(gauge(i.t, i, "maestro_delivery_slots")) }

// divided waits until each slot has one holder.
func divided(t *testing.T, servers ...*instance) {
	t.Helper()
	eventually(t, "delivery is divided", func() error {
		all := 0
		for _, i := range servers {
			n := slotsOf(i)
			if n == 0 && len(servers) < 8 {
				return fmt.Errorf("a server has no slot")
			}
			all += n
		}
		if all != dispatch.Slots {
			return fmt.Errorf("%d of %d slots are held", all, dispatch.Slots)
		}
		return nil
	})
}

// TestI6ServersShareDelivery: each consumer has one server that delivers to it.
// One that stops is replaced within seconds; what was published meanwhile
// arrives; and an agent that lacks works gets them, whichever server learns of that.
func TestI6ServersShareDelivery(t *testing.T) {
	site := newSite(t)
	first := site.start()
	divided(t, first)
	second := site.start()
	divided(t, first, second)

	const consumers = 16
	var agents []*scriptedAgent
	src := second.source()
	for n := range consumers {
		name := fmt.Sprintf("mc%d", n)
		second.consumer(name)
		agents = append(agents, site.agent(work.Consumer(name)))
		src.create(work.Consumer(name), work.ID(name+"-w"), "one")
		if first.server.dispatch.HoldsSlotOf(work.Consumer(name)) == second.server.dispatch.HoldsSlotOf(work.Consumer(name)) {
			t.Errorf("%s has two deliverers, or none", name)
		}
	}
	for _, a := range agents {
		a.awaitValue(work.ID(a.consumer+"-w"), "one")
	}
	second.awaitAllObserved(consumers)
	for _, a := range agents { // any server receives a comparison
		a.wipe()
		a.resync(t.Context())
	}
	for _, a := range agents {
		a.awaitValue(work.ID(a.consumer+"-w"), "one")
	}
	for n, a := range agents {
		if n == consumers/2 {
			first.end()
		}
		src.update(a.consumer, work.ID(a.consumer+"-w"), "two")
	}
	begun := time.Now()
	for _, a := range agents {
		a.awaitValue(work.ID(a.consumer+"-w"), "two")
	}
	if took := time.Since(begun); took > time.Minute { // seconds, and what a busy machine adds
		t.Errorf("it took %v until the other server delivered", took)
	}
	divided(t, second)
}

// TestI6ALostLeaseSessionForgetsNothing: the database ends the session that holds a server's lease.
// The server takes its slots again with another session, sends no acknowledged work again, and
// delivers later changes.
func TestI6ALostLeaseSessionForgetsNothing(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	// The answer to the agent's first list would send a work again that is created after the list.
	eventually(t, "the agent's first list is compared", func() error {
		if n := m.text(`select count(*)::text from agent_compared`); n != "1" {
			return fmt.Errorf("%s agents were compared", n)
		}
		return nil
	})
	src := m.source()
	src.create("mc1", "w1", "one")
	agent.awaitValue("w1", "one")
	m.awaitAllObserved(1)
	divided(t, m)
	creations := len(agent.received(work.SpecCreate))
	for n := range 3 {
		const holders = `select string_agg(distinct holder::text, ',') from delivery_slot`
		before := m.text(holders)
		if err := terminateLeases(t.Context(), m.server); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the server takes its slots with another session", func() error {
			if now := m.text(holders); now == before {
				return fmt.Errorf("the holder is %s", now)
			}
			return nil
		})
		value := fmt.Sprintf("update-%d", n)
		src.update("mc1", "w1", value)
		agent.awaitValue("w1", value)
	}
	m.awaitAllObserved(1)
	if now := len(agent.received(work.SpecCreate)); now != creations {
		t.Errorf("the server sent the acknowledged work again %d times", now-creations)
	}
}

// terminateLeases ends the sessions that hold leases, as a database that is
// restarted does.
func terminateLeases(ctx context.Context, s *Server) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(
			ctx, `select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and objsubid = 2
			and database = (select oid from pg_database where datname = current_database())`)
		return err
	})
}
