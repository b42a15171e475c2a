package maestro

import (
	"fmt"
	"net/http"
	"testing"

	"atoll.dev/api/work"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// TestI3AReapplyOfTheSameWorkIsNothing: an event with another id and time, and
// data that only reads otherwise, makes no version, no message, no history and
// not even a transaction that writes; a change of metadata alone is a change.
func TestI3AReapplyOfTheSameWorkIsNothing(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	src.create("mc1", "w1", "one")
	m.awaitAllObserved(1)
	before := m.call("GET", "/api/maestro/v1/resource-bundles/w1", "").header.Get("Etag")
	sent := len(firstDeliveries(agent.received(work.SpecUpdate)))
	type counts struct{ history, version, xmin string }
	look := func() (c counts) {
		t.Helper()
		err := m.server.store.Tx(t.Context(), func(tx *store.Tx) error {
			return tx.QueryRow(t.Context(),
				`select (select count(*)::text from history where id = 'w1'), version::text, xmin::text from document where kind = 'Bundle' and id = 'w1'`).
				Scan(&c.history, &c.version, &c.xmin)
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	was := look()
	for n := range 50 {
		data := specData(configMap("w1", "one"))
		if n%2 == 1 { // the same, written otherwise
			data = []byte(
				fmt.Sprintf(
					`{ "manifests" : [ {"kind":"ConfigMap","data":{"value":"one"},"apiVersion":"v1","metadata":{"namespace":"default","name":%q}} ] }`, "w1"))
		}
		if err := src.publish(src.event(work.SpecUpdate, "mc1", "w1", 0, data)); err != nil {
			t.Fatal(err)
		}
	}
	if now := look(); now != was {
		t.Errorf("%+v after 50 applies of the same, %+v before", now, was)
	}
	if tag := m.call("GET", "/api/maestro/v1/resource-bundles/w1", "").header.Get("Etag"); tag != before {
		t.Errorf("entity tag %s, it was %s", tag, before)
	}

	e := src.event(work.SpecUpdate, "mc1", "w1", 0, specData(configMap("w1", "one")))
	changed, err := wire.FromProto(e)
	if err != nil {
		t.Fatal(err)
	}
	changed.Extensions[work.ExtMetadata] = `{"name":"name-of-w1","labels":{"app":"other"}}`
	if err := src.publish(wire.ToProto(changed)); err != nil {
		t.Fatal(err)
	}
	if b := m.bundle("w1"); b.Version != 2 {
		t.Errorf("version %d after a change of metadata", b.Version)
	}
	eventually(t, "the agent has the new metadata", func() error {
		if n := len(firstDeliveries(agent.received(work.SpecUpdate))); n != sent+1 {
			return fmt.Errorf("%d updates", n-sent)
		}
		return nil
	})
}

// TestI5ARequestIsOneTransaction: a bundle, its ledger and its history are
// written by the same transaction, whichever request it was.
func TestI5ARequestIsOneTransaction(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	src := m.source()
	checked := 0
	same := func(id work.ID, action string) {
		t.Helper()
		var document, history, ledger string
		var attempts int
		err := m.server.store.Tx(t.Context(), func(tx *store.Tx) error {
			return tx.QueryRow(t.Context(), `select d.xmin::text, h.xmin::text, l.xmin::text, l.attempts from document d
				join ledger l using (id) join history h on h.id = d.id and h.version = d.version where d.kind = 'Bundle' and d.id = $1 and h.action = $2`, id, action).
				Scan(&document, &history, &ledger, &attempts)
		})
		if err != nil {
			t.Fatalf("%s %s: %v", action, id, err)
		}
		if document != history {
			t.Errorf("%s %s: document by %s, history by %s", action, id, document, history)
		}
		if attempts > 0 {
			return // noted meanwhile how its delivery goes
		}
		checked++
		if ledger != document {
			t.Errorf("%s %s: document by %s, ledger by %s", action, id, document, ledger)
		}
	}
	for n := range 20 {
		id := fmt.Sprintf("w%d", n)
		src.create("mc1", work.ID(id), 1)
		same(work.ID(id), "create")
		src.update("mc1", work.ID(id), 2)
		same(work.ID(id), "update")
		m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/"+id, "")
		same(work.ID(id), "delete")
	}
	if checked == 0 {
		t.Error("no ledger was seen before its delivery was noted")
	}
}
