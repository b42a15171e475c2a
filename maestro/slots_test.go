package maestro

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/api/work"
	"atoll.dev/store"
)

// TestDivide: however servers come and go, and in whatever order they look, no
// slot is taken from a server that lives, each slot comes to have one holder that
// lives, and a server that goes moves its own slots only.
func TestDivide(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		holders := make([]int64, deliverySlots)
		live := []int64{}
		next := int64(1)
		look := func(me int64) {
			give, take := divide(me, live, holders)
			for _, slot := range give {
				if holders[slot] != me {
					rt.Fatalf("%d gives slot %d of %d", me, slot, holders[slot])
				}
				holders[slot] = 0
			}
			for _, slot := range take {
				for _, other := range live {
					if holders[slot] == other {
						rt.Fatalf("%d takes slot %d from %d, which lives", me, slot, other)
					}
				}
				holders[slot] = me
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"come": func(*rapid.T) { live = append(live, next*7919); next++ },
			"go": func(rt *rapid.T) {
				if len(live) > 0 {
					i := rapid.IntRange(0, len(live)-1).Draw(rt, "which")
					live = append(live[:i:i], live[i+1:]...)
				}
			},
			"look": func(rt *rapid.T) {
				if len(live) > 0 {
					look(rapid.SampledFrom(live).Draw(rt, "who"))
				}
			},
		})
		if len(live) == 0 {
			return
		}
		for range 2 {
			for _, me := range live {
				look(me)
			}
		}
		for slot, holder := range holders {
			if holder != wantedHolder(slot, live) {
				rt.Fatalf("slot %d is with %d", slot, holder)
			}
		}
		if len(live) < 2 {
			return
		}
		gone, rest := live[0], live[1:]
		for slot, holder := range holders {
			if now := wantedHolder(slot, rest); now != holder && holder != gone {
				rt.Fatalf("slot %d moves from %d to %d because %d went", slot, holder, now, gone)
			}
		}
	})
}

// slotsOf counts a server's slots.
func slotsOf(s *Server) (n int) {
	s.delivery.mu.Lock()
	defer s.delivery.mu.Unlock()
	for _, held := range s.delivery.leased.held {
		if held {
			n++
		}
	}
	return n
}

func divided(t *testing.T, servers ...*instance) {
	t.Helper()
	eventually(t, "delivery is divided", func() error {
		all := 0
		for _, i := range servers {
			n := slotsOf(i.server)
			if n == 0 && len(servers) < 8 {
				return fmt.Errorf("a server has no slot")
			}
			all += n
		}
		if all != deliverySlots {
			return fmt.Errorf("%d of %d slots are held", all, deliverySlots)
		}
		return nil
	})
}

// TestI6ServersShareDelivery: each consumer has one server that delivers to it.
// One that stops is replaced within seconds; what was published meanwhile
// arrives; and an agent that lacks works gets them, whoever hears of that.
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
		agents = append(agents, site.agent(name))
		src.create(name, name+"-w", "one")
		if first.server.delivery.reaches(name) == second.server.delivery.reaches(name) {
			t.Errorf("%s has two deliverers, or none", name)
		}
	}
	for _, a := range agents {
		a.awaitValue(a.consumer+"-w", "one")
	}
	second.settled(consumers)
	for _, a := range agents { // a comparison is heard by any server
		a.wipe()
		a.resync(t.Context())
	}
	for _, a := range agents {
		a.awaitValue(a.consumer+"-w", "one")
	}
	for n, a := range agents {
		if n == consumers/2 {
			first.end()
		}
		src.update(a.consumer, a.consumer+"-w", "two")
	}
	begun := time.Now()
	for _, a := range agents {
		a.awaitValue(a.consumer+"-w", "two")
	}
	if took := time.Since(begun); took > 10*time.Second {
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
	m.settled(1)
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
	m.settled(1)
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
