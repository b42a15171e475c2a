package bundle

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/work"
	"atoll.dev/store"
)

func TestSequencesCompareAsSnowflakes(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"1", "", true},
		{"", "", true},
		{"", "1", false},
		{"2", "1", true},
		{"1", "1", false},
		{"1", "2", false},
		{"x", "1", false},
		{"1", "x", true},
		{"1992864825344", "992864825344", true}, // as numbers, not as text
	} {
		if got := IsNewer(c.a, c.b); got != c.want {
			t.Errorf("newer(%q, %q) = %v", c.a, c.b, got)
		}
	}
}

// TestStatusesAreJudged is the receiving half of I6 and I7: what a status does
// to a
func TestStatusesAreJudged(t *testing.T) {
	now := time.Now()
	doc := store.Document{Kind: Kind, ID: "w1", Scope: "mc1", Generation: 5, Version: 9}
	deleting := doc
	deleting.DeletedAt = &now
	event := func(change func(*StatusEvent)) StatusEvent {
		ev := StatusEvent{Topic: "mc1", Record: Status{Consumer: "mc1", ID: "w1", OriginalSource: "maestro",
			Version: 5, Sequence: "20", Data: json.RawMessage(`{"conditions":[]}`)}}
		if change != nil {
			change(&ev)
		}
		return ev
	}
	old := Status{Version: 5, Sequence: "10", Data: json.RawMessage(`{"conditions":[{"type":"Applied"}]}`)}
	same := event(nil).Record
	for name, c := range map[string]struct {
		doc      store.Document
		have     Status
		sequence string
		ev       StatusEvent
		want     Verdict
	}{
		"first":         {doc, Status{}, "", event(nil), Verdict{Replace: true, Acknowledges: 5}},
		"newer":         {doc, old, "10", event(nil), Verdict{Replace: true, Acknowledges: 5}},
		"duplicate":     {doc, same, "20", event(nil), Verdict{Drop: DropStale}},
		"reordered":     {doc, old, "30", event(nil), Verdict{Drop: DropStale}},
		"equal content": {doc, same, "10", event(nil), Verdict{Acknowledges: 5}},
		"overtaken answer": {doc, old, "30",
			event(func(e *StatusEvent) { e.Record.Type = work.StatusResyncResponse }), Verdict{Drop: DropStale}},
		"older generation": {doc, old, "10", event(func(e *StatusEvent) { e.Record.Version = 4 }),
			Verdict{Acknowledges: 4}},
		"future generation": {doc, old, "10", event(func(e *StatusEvent) { e.Record.Version = 6 }),
			Verdict{Drop: DropFuture}},
		"another topic": {doc, old, "10", event(func(e *StatusEvent) { e.Topic = "mc2" }),
			Verdict{Drop: DropConsumer}},
		"another consumer's": {doc, old, "10", event(func(e *StatusEvent) {
			e.Topic, e.Record.Consumer = "mc2",
				"mc2"
		}), Verdict{Drop: DropConsumer}},
		"another source's": {doc, old, "10", event(func(e *StatusEvent) { e.Record.OriginalSource = "x" }),
			Verdict{Drop: DropSource}},
		"unknown": {store.Document{}, Status{}, "", event(nil), Verdict{Drop: DropUnknown}},
		"deleted": {deleting, old, "10", event(func(e *StatusEvent) { e.Deleted = true }),
			Verdict{Remove: true, Acknowledges: 5}},
		"deleted, late sequence": {deleting, old, "30", event(func(e *StatusEvent) { e.Deleted = true }),
			Verdict{Remove: true, Acknowledges: 5}},
		"deleted, earlier life": {deleting, old, "10", event(func(e *StatusEvent) {
			e.Deleted, e.Record.Version = true,
				4
		}), Verdict{Drop: DropStale}},
		"deleted, but wanted": {doc, old, "10", event(func(e *StatusEvent) { e.Deleted = true }),
			Verdict{Drop: DropStale, Resend: true}},
		"deleted, of old": {doc, old, "10", event(func(e *StatusEvent) { e.Deleted, e.Record.Version = true, 4 }),
			Verdict{Drop: DropStale}},
	} {
		got := DecideStatus(c.doc, c.have, c.sequence, c.ev, "maestro")
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Verdict{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestTheHashIsWhatAgentsCompute checks the hash against the original's rule:
// sha256 of {"conditions":...,"resourceStatus":{"manifests":...}}.
func TestTheHashIsWhatAgentsCompute(t *testing.T) {
	if got, err := HashOf(Status{}); err != nil ||
		got != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("no status: %s %v", got, err)
	}
	if got, err := HashOf(Status{Hash: "given", Data: json.RawMessage(`{}`)}); err != nil || got != "given" {
		t.Errorf("given: %s %v", got, err)
	}
	a, err := HashOf(Status{Data: json.RawMessage(
		`{"conditions":[{"type":"Applied","status":"True"}],"resourceStatus":[{"conditions":[]}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := HashOf(Status{Data: json.RawMessage(
		`{"resourceStatus":[{"conditions":[]}],"conditions":[{"status":"True","type":"Applied"}]}`)})
	if err != nil || a != b {
		t.Errorf("%s %s %v: the order of keys matters", a, b, err)
	}
}
