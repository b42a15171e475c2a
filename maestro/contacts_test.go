package maestro

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/store"
)

// TestARecordOfAContactKeepsANewerReportOfHosting: another server records a newer report while this one, which has
// none, waits for the row.
func TestARecordOfAContactKeepsANewerReportOfHosting(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	record := func(hosting map[work.Consumer]string) error {
		return m.server.contacts.Record(t.Context(), map[work.Consumer]time.Time{"mc": time.Now()}, hosting)
	}
	check := func(what, want string) {
		t.Helper()
		seen, _, err := m.server.contacts.Recorded(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := seen["mc"].Hosting; got != want {
			t.Errorf("%s: the report of hosting is %q, want %q", what, got, want)
		}
	}
	const older, newer = `{"warm_planes":1}`, `{"warm_planes":2,"capacity":{"planes":4}}`
	for _, step := range []struct {
		what    string
		hosting map[work.Consumer]string
		want    string
	}{{"the first contact", nil, ""}, {"a report", map[work.Consumer]string{"mc": older, "other": newer}, older},
		{"a contact without one", map[work.Consumer]string{"other": newer}, older},
		{"hosting has none", map[work.Consumer]string{"mc": ""}, ""},
		{"a report again", map[work.Consumer]string{"mc": older}, older}} {
		if err := record(step.hosting); err != nil {
			t.Fatal(err)
		}
		check(step.what, step.want)
	}

	recorded := make(chan error, 1)
	err := m.server.store.Tx(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Exec(t.Context(), `update agent_seen set hosting = $1`, newer); err != nil {
			return err
		}
		go func() { recorded <- record(nil) }()
		eventually(t, "the record of the contact waits for the row", func() error {
			waiting := 0
			err := tx.QueryRow(t.Context(), `select count(*) from pg_locks
				where not granted and pg_backend_pid() = any(pg_blocking_pids(pid))`).Scan(&waiting)
			if err == nil && waiting == 0 {
				err = errors.New("nothing waits")
			}
			return err
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-recorded; err != nil {
		t.Fatal(err)
	}
	check("a contact that waited", newer)
}

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
