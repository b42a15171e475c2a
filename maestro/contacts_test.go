package maestro

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/work"
)

// TestAgentsAreRecordedInOneStatement: a thousand agents that sent an event are
// one statement, by the database's clock whatever this server's shows, and a
// later record is never replaced by an older one.
func TestAgentsAreRecordedInOneStatement(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	contacts := map[work.Consumer]time.Time{}
	for n := range 1000 {
		contacts[work.Consumer(fmt.Sprintf("mc%d", n))] = time.Now().Add(-time.Duration(n) * time.Second)
	}
	if err := m.server.contacts.Record(t.Context(), contacts, nil); err != nil {
		t.Fatal(err)
	}
	if got := m.text(`select count(*) || ' ' || count(distinct xmin::text) from agent_seen`); got != "1000 1" {
		t.Errorf("%s: 1000 agents and 1 transaction were expected", got)
	}
	if err := m.server.contacts.Record(t.Context(), map[work.Consumer]time.Time{"mc0": time.Now().Add(-time.Hour),
		"mc999": time.Now().Add(time.Hour)}, nil); err != nil {
		t.Fatal(err)
	}
	seen, clock, err := m.server.contacts.Recorded(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]time.Duration{"mc0": 0, "mc500": 500 * time.Second, "mc999": 0} {
		s := seen[work.Consumer(name)]
		if late := s.Ago - most; late < 0 || late > patience || clock.Sub(s.At).Round(time.Millisecond) != s.Ago.Round(
			time.Millisecond) {
			t.Errorf("%s was heard %s ago, want %s", name, s.Ago, most)
		}
	}
	if len(seen) != 1000 {
		t.Errorf("%d agents", len(seen))
	}
}
