package maestro

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/resync"
)

// TestASlowAgentIsAskedForStatusesSeldom: works that are delivered again and
// again to an agent that sends nothing make one request for statuses in
// resync.AskPause, not one for each delivery; and that request recovers the statuses
// that were lost.
func TestASlowAgentIsAskedForStatusesSeldom(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	agent.fault(func() {
		agent.mangle = func(out []bus.Event) []bus.Event {
			return slices.DeleteFunc(out, func(m bus.Event) bool { return m.Type != work.Seen })
		}
	})
	begun := time.Now()
	src := m.source()
	const works, repeated = 120, 120
	for n := range works {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	eventually(t, "works are delivered again", func() error {
		agent.send(t.Context(), agent.message(work.Seen, []byte(`{}`))) // it is slow, not gone
		if n := len(agent.received(work.SpecCreate)); n < works+repeated {
			return fmt.Errorf("%d deliveries", n)
		}
		return nil
	})
	asked := len(agent.received(work.StatusResync))
	if most := 1 + int(time.Since(begun)/resync.AskPause); asked > most {
		t.Errorf("the agent was asked %d times in %s, at most %d are needed", asked, time.Since(begun), most)
	}
	agent.fault(func() { agent.mangle = nil })
	eventually(t, "all statuses are here", func() error {
		for n := range works {
			if b := m.bundle(work.ID(fmt.Sprintf("w%d", n))); b.Status.ObservedVersion != 1 {
				return fmt.Errorf("w%d has none", n)
			}
		}
		return nil
	})
}

// TestListTakenAfterStatusLosesNoAcknowledgement: servers that share a subscription take an agent's events out of
// order. One stores the status of a work, then another one takes a list from before the agent had the work, and
// records that the agent lacks it. The agent ignores the work when it is sent again; the server must get its status.
func TestListTakenAfterStatusLosesNoAcknowledgement(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	site.agent("mc1")
	m.source().create("mc1", "w1", 1)
	acknowledged := func() error {
		if n := m.text(`select acknowledged::text from ledger where id = 'w1'`); n != "1" {
			return fmt.Errorf("generation %s is acknowledged", n)
		}
		return nil
	}
	eventually(t, "the work is acknowledged", acknowledged)
	m.exec(`update ledger set acknowledged = 0 where id = 'w1'`) // as the list of an agent without the work does
	eventually(t, "the work is acknowledged again", acknowledged)
}

// TestI6AnOldStatusInAResponseIsRepaired: OCM's agents copy their statuses when a request for them arrives, and
// number the responses when they send them. A status that changes in between is sent first and numbered first, so the
// old status of the response replaces it, and the agent has nothing to report any more.
func TestI6AnOldStatusInAResponseIsRepaired(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	m.source().create("mc1", "w1", 1)
	has := func(condition string) func() error {
		return func() error {
			if text := m.text(`select status::text from document where id = 'w1'`); !strings.Contains(text, condition) {
				return fmt.Errorf("the status is %s", text)
			}
			return nil
		}
	}
	eventually(t, "the first status is stored", has("Applied"))
	var old agentWork
	agent.fault(func() { old = *agent.works["w1"] })
	agent.report("w1", "Available")
	eventually(t, "the second status is stored", has("Available"))
	var response bus.Event
	agent.fault(func() { response = agent.status("w1", &old, work.StatusResyncResponse) })
	agent.send(t.Context(), response)
	eventually(t, "the response is stored", has("Applied"))
	eventually(t, "the second status is stored again", has("Available"))
}
