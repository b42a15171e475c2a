package maestro

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// heldSpecs answers a server that asks for works, as an agent of ours does.
func (a *scriptedAgent) heldSpecs(m bus.Event) []bus.Event {
	var wanted work.SpecsWanted
	if err := json.Unmarshal(m.Data, &wanted); err != nil {
		a.t.Error(err)
	}
	var replies []bus.Event
	for _, id := range wanted.IDs {
		if w := a.works[id]; w != nil {
			data, _ := json.Marshal(work.HeldSpec{ID: id, Version: w.generation, Metadata: w.metadata, Bundle: w.data})
			replies = append(replies, a.message(work.AgentSpec, data))
		}
	}
	return replies
}

// recorded returns what the history has of a bundle, under an action.
func (i *instance) recorded(id work.ID, action string) []store.Record {
	i.t.Helper()
	records, err := i.server.store.History(i.t.Context(), store.HistoryQuery{Kind: bundle.Kind, ID: string(id)})
	if err != nil {
		i.t.Fatal(err)
	}
	var found []store.Record
	for _, r := range records {
		if r.Action == action {
			found = append(found, r)
		}
	}
	return found
}

// TestABundleWhoseAgentNeverAnswersIsEndedByAnOperator: a bundle without an answer shows since
// when it waits, is removed when an operator gives a reason, and the agent gets the delete when
// it is back after all.
func TestABundleWhoseAgentNeverAnswersIsEndedByAnOperator(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)
	m.awaitAllObserved(1)
	if d := m.bundle("w1").Delivery; d.UnansweredSince != nil {
		t.Errorf("an acknowledged bundle is unanswered since %v", d.UnansweredSince)
	}
	agent.stop()
	src.remove("mc1", "w1")
	eventually(t, "it is repeated and marked as repeated", func() error {
		d := m.bundle("w1").Delivery
		if d.UnansweredSince == nil || d.Attempts < 3 || d.UnansweredSince.Before(*d.AcceptedAt) {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})

	const path = "/api/maestro/v1/resource-bundles/w1"
	m.want(http.StatusBadRequest, "DELETE", path+"?force=true", "")
	m.want(http.StatusBadRequest, "DELETE", path+"?force=perhaps&reason=x", "")
	m.want(http.StatusPreconditionFailed, "DELETE", path+"?force=true&reason=x", "", "If-Match", `"77"`)
	reason := "the cluster burnt down; ticket 7 & more"
	m.want(http.StatusNoContent, "DELETE", path+"?force=true&reason="+url.QueryEscape(reason), "", "X-Atoll-Principal",
		"alice")
	m.want(http.StatusNotFound, "GET", path, "")
	m.want(http.StatusNoContent, "DELETE", path+"?force=true&reason=again", "")
	records := m.recorded("w1", "force-delete")
	if len(records) != 1 {
		t.Fatalf("records %+v", records)
	}
	var note struct{ Reason string }
	if err := json.Unmarshal(records[0].Note, &note); err != nil || note.Reason != reason ||
		records[0].Actor.Principal == "" || records[0].Scope != "mc1" {
		t.Errorf("record %+v, note %s", records[0], records[0].Note)
	}
	if removed := m.recorded("w1", "remove"); len(removed) != 1 || !removed[0].At.Equal(records[0].At) &&
		removed[0].Actor != records[0].Actor {
		t.Errorf("removed %+v", removed)
	}

	agent.start() // it has the work, and receives the deletion
	eventually(t, "the agent has deleted it", func() error {
		if n := agent.count(); n > 0 {
			return fmt.Errorf("it holds %d works", n)
		}
		return nil
	})
	eventually(t, "the tombstone is confirmed", func() error {
		var unconfirmed bool
		err := m.server.store.Tx(t.Context(), func(tx *store.Tx) error {
			return tx.QueryRow(t.Context(), `select unconfirmed from ledger where id = 'w1'`).Scan(&unconfirmed)
		})
		if err == nil && unconfirmed {
			err = fmt.Errorf("it is not")
		}
		return err
	})

	src.create("mc1", "w1", "second life")
	agent.awaitValue("w1", "second life")
	m.awaitAllObserved(1)
}

// TestWhatIsNotedOfAWorkIsNotItsDeletions: the server records an attempt to send a work after the attempt. The work's
// deletion has the same generation. When a client requests the deletion before or during the record, the record must
// not count for the deletion, which the server has not sent yet.
func TestWhatIsNotedOfAWorkIsNotItsDeletions(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1") // its agent is away
	record := func(attempt ledger.Attempt) {
		if err := m.server.ledger.RecordAttempts(t.Context(), []ledger.Attempt{attempt}); err != nil {
			t.Error(err)
		}
	}
	create := ledger.Attempt{ID: "w1", Generation: 1, At: time.Now().Add(-time.Hour)}
	m.source().create("mc1", "w1", 1)
	var recording sync.WaitGroup
	err := m.server.store.Tx(t.Context(), func(tx *store.Tx) error {
		if err := ledger.Lock(t.Context(), tx, "w1"); err != nil {
			return err
		}
		recording.Go(func() { record(create) })
		eventually(t, "the record waits for the lock", func() error {
			var waiting int
			err := tx.QueryRow(t.Context(), `select count(*) from pg_locks where not granted`).Scan(&waiting)
			if err == nil && waiting == 0 {
				err = errors.New("no transaction waits for a lock")
			}
			return err
		})
		now := time.Now()
		return ledger.RecordOrder(t.Context(), tx, store.Document{ID: "w1", Scope: "mc1", Generation: 1, DeletedAt: &now},
			bundle.Spec{Source: "test"})
	})
	if err != nil {
		t.Fatal(err)
	}
	recording.Wait()
	record(create)
	d := m.bundle("w1").Delivery
	for what, at := range map[string]*time.Time{"sent": d.SentAt, "unanswered since": d.UnansweredSince} {
		if at != nil && at.Before(*d.AcceptedAt) {
			t.Errorf("a deletion that was ordered at %v is %s %v", d.AcceptedAt, what, at)
		}
	}
	record(ledger.Attempt{ID: "w1", Generation: 1, Deleting: true, At: time.Now()})
	if d := m.bundle("w1").Delivery; d.SentAt == nil || d.UnansweredSince == nil || d.Attempts < 1 {
		t.Errorf("a deletion that was sent: %+v", d)
	}
}

// listUnknown lists unknown works.
func (i *instance) listUnknown(query string) api.UnknownWorkList {
	i.t.Helper()
	var l api.UnknownWorkList
	i.want(http.StatusOK, "GET", "/api/maestro/v1/unknown-works"+query, "").into(i.t, &l)
	return l
}

// TestI8UnknownWorksAreListedAdoptedAndDeleted after the database was lost.
func TestI8UnknownWorksAreListedAdoptedAndDeleted(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	m.consumer("mc2")
	one, two := site.agent("mc1"), site.agent("mc2")
	one.fault(func() { one.digests = true })
	src := m.source()
	for n := range 5 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	src.create("mc2", "x", 1)
	src.update("mc1", "w1", "changed")
	m.awaitAllObserved(6)
	m.end()
	one.stop()
	two.stop()

	site.dsn = pgtest.DSN(t) // all is lost
	m = site.start()
	mc1 := m.consumer("mc1")
	m.consumer("mc2")
	one.start()
	two.start()
	eventually(t, "they are reported", func() error {
		if l := m.listUnknown("?orderBy=id"); l.Total != 6 || l.Items[1].Version != 2 {
			return fmt.Errorf("%+v", l)
		}
		if g := gauge(t, m, "maestro_unknown_works"); g != 6 {
			return fmt.Errorf("the gauge is %v", g)
		}
		return nil
	})
	if l := m.listUnknown("?size=2&page=2&orderBy=id&search=" + url.QueryEscape("consumer_name='mc1'")); l.Total != 5 ||
		l.Size != 2 || l.Items[0].ID != "w2" {
		t.Errorf("a page: %+v", l)
	}
	// What is known to be unknown is in sync.
	one.fault(func() { one.events = nil })
	one.sayDigest(t.Context())
	eventually(t, "agent and server agree", func() error {
		for _, e := range one.received(work.ServerDigest) {
			if string(e.Data) == `{"same":true}` {
				return nil
			}
		}
		return fmt.Errorf("not yet")
	})
	m.want(http.StatusOK, "GET", mc1.Href, "").into(t, &mc1)
	if mc1.ComparedAt == nil {
		t.Error("agent and server agree, and what the agent holds is not known")
	}

	const base = "/api/maestro/v1/unknown-works/"
	m.want(http.StatusNotFound, "POST", base+"mc1/none/adopt", `{"source":"s"}`)
	m.want(http.StatusBadRequest, "POST", base+"mc1/w1/adopt", `{}`)
	before, data := one.holds("w1")
	var b api.ResourceBundle
	m.want(http.StatusCreated, "POST", base+"mc1/w1/adopt", `{"source":"`+testSource+
		`","reason":"CLM does not know it"}`).into(t, &b)
	if b.ID != "w1" || b.ConsumerName != "mc1" || b.Version != 1 || len(b.Manifests) != 1 {
		t.Errorf("adopted %+v, the agent had generation %d", b, before)
	}
	eventually(t, "the agent has the same at a later generation", func() error {
		generation, now := one.holds("w1")
		if generation <= before || !jsonvalue.EqualOptional(json.RawMessage(now), json.RawMessage(data)) {
			return fmt.Errorf("generation %d: %s", generation, now)
		}
		return nil
	})
	if r := m.recorded("w1", "adopt-unknown"); len(r) != 1 || r[0].Actor.Principal == "" {
		t.Errorf("records %+v", r)
	}

	m.want(http.StatusBadRequest, "DELETE", base+"mc1/w2", "")
	m.want(http.StatusNoContent, "DELETE", base+"mc1/w2?reason=not+wanted", "")
	m.want(http.StatusNoContent, "DELETE", base+"mc1/w2?reason=not+wanted", "")
	eventually(t, "the agent has deleted it", func() error {
		if generation, _ := one.holds("w2"); generation != 0 {
			return fmt.Errorf("it holds generation %d", generation)
		}
		return nil
	})
	if r := m.recorded("w2", "delete-unknown"); len(r) != 1 {
		t.Errorf("records %+v", r)
	}
	src = m.source()
	src.create("mc1", "w3", "again") // a source takes it over
	one.awaitValue("w3", "again")
	src.create("mc1", "x", "another of this id")
	m.want(http.StatusConflict, "DELETE", base+"mc2/x?reason=x", "")
	if l := m.listUnknown("?orderBy=id"); l.Total != 3 || l.Items[0].ID != "w0" || l.Items[1].ID != "w4" ||
		l.Items[2].ID != "x" {
		t.Errorf("unknown at last: %+v", l)
	}
	if n := two.count(); n != 1 {
		t.Errorf("mc2 holds %d works", n)
	}

	// An agent that cannot say what it holds leaves the wish recorded.
	var u api.UnknownWork
	two.stop()
	m.want(http.StatusAccepted, "POST", base+"mc2/x/adopt", `{"source":"`+testSource+`"}`).into(t, &u)
	if u.AdoptingFor != testSource || u.Version != 1 {
		t.Errorf("%+v", u)
	}
}
