package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"atoll.dev/api/work"
)

func TestAWorkReachesItsAgentAndItsStatusComesBack(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	src.create("mc1", "w1", "one")
	agent.awaitValue("w1", "one")

	eventually(t, "the status is stored", func() error {
		b := m.bundle("w1")
		if b.Status.ObservedVersion != 1 || len(b.Status.Conditions) != 1 {
			return fmt.Errorf("status %+v", b.Status)
		}
		return nil
	})
	eventually(t, "the delivery is recorded", func() error {
		d := m.bundle("w1").Delivery
		if d == nil || d.AcceptedAt == nil || d.SentAt == nil || d.ReceivedAt == nil || d.AppliedAt == nil ||
			d.AcknowledgedGeneration != 1 || d.Attempts != 1 || d.LastError != "" {
			return fmt.Errorf("delivery %+v", d)
		}
		return nil
	})

	src.update("mc1", "w1", "two")
	agent.awaitValue("w1", "two")
	eventually(t, "the second generation is acknowledged", func() error {
		if b := m.bundle("w1"); b.Version != 2 || b.Status.ObservedVersion != 2 {
			return fmt.Errorf("version %d, observed %d", b.Version, b.Status.ObservedVersion)
		}
		return nil
	})

	// The wire, as captured from the original.
	created := firstDeliveries(agent.received(work.SpecCreate))
	if len(created) != 1 {
		t.Fatalf("%d create events", len(created))
	}
	ext := created[0].Extensions
	if ext[work.ExtClusterName] != "mc1" || ext[work.ExtResourceID] != "w1" || ext[work.ExtResourceVersion] != "1" {
		t.Errorf("extensions %v", ext)
	}
	var meta struct{ Name, Namespace string }
	if err := json.Unmarshal([]byte(ext[work.ExtMetadata]), &meta); err != nil || meta.Name != "w1" ||
		meta.Namespace != "mc1" {
		t.Errorf("metadata %s: %v", ext[work.ExtMetadata], err)
	}
	if updated := firstDeliveries(agent.received(work.SpecUpdate)); len(updated) != 1 || updated[0].Extensions[work.ExtResourceVersion] != "2" {
		t.Errorf("update events %+v", updated)
	}

	src.remove("mc1", "w1")
	eventually(t, "the bundle is gone", func() error {
		if a := m.call("GET", "/api/maestro/v1/resource-bundles/w1", ""); a.status != http.StatusNotFound {
			return fmt.Errorf("status %d: %s", a.status, a.body)
		}
		return nil
	})
	deleted := firstDeliveries(agent.received(work.SpecDelete))
	if len(deleted) != 1 || deleted[0].Extensions[work.ExtDeletionTimestamp] == "" ||
		!strings.Contains(string(deleted[0].Data), "two") {
		t.Errorf("delete events %+v", deleted)
	}

	// The id is free again, and goes on above the generations that agents may
	// still have.
	src.create("mc1", "w1", "three")
	agent.awaitValue("w1", "three")
}

func TestADeletionBeforeTheAgentEverConnectedConverges(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)
	m.want(http.StatusNoContent, "DELETE", "/api/maestro/v1/resource-bundles/w1", "")
	if b := m.bundle("w1"); b.DeletedAt == nil {
		t.Error("no deleted_at while the agent has not confirmed")
	}
	site.agent("mc1")
	eventually(t, "the bundle is gone", func() error {
		if a := m.call("GET", "/api/maestro/v1/resource-bundles/w1", ""); a.status != http.StatusNotFound {
			return fmt.Errorf("status %d", a.status)
		}
		return nil
	})
}

func TestTheAgentIsSeen(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	c := m.consumer("mc1")
	if c.LastSeenAt != nil {
		t.Error("seen before it spoke")
	}
	agent := site.agent("mc1")
	agent.send(context.Background(), agent.message(work.Seen, []byte(`{}`)))
	eventually(t, "last_seen_at is set", func() error {
		var c2 struct {
			LastSeenAt string `json:"last_seen_at"`
		}
		a := m.want(http.StatusOK, "GET", "/api/maestro/v1/consumers/"+c.ID, "")
		a.into(t, &c2)
		if c2.LastSeenAt == "" {
			return errors.New("not seen")
		}
		if tag := a.header.Get("Etag"); tag != `"1"` {
			return fmt.Errorf("being seen made a version: %s", tag)
		}
		return nil
	})
}
