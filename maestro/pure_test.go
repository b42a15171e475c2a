package maestro

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/work"
	"atoll.dev/store"
)

func documents(n int) []store.Document {
	docs := make([]store.Document, n)
	for i := range docs {
		docs[i] = store.Document{Kind: kindBundle, ID: fmt.Sprintf("d%d", i), Version: 1}
	}
	return docs
}

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
		if got := newer(c.a, c.b); got != c.want {
			t.Errorf("newer(%q, %q) = %v", c.a, c.b, got)
		}
	}
}

// TestStatusesAreJudged is the receiving half of I6 and I7: what a status does
// to a bundle.
func TestStatusesAreJudged(t *testing.T) {
	now := time.Now()
	doc := store.Document{Kind: kindBundle, ID: "w1", Scope: "mc1", Generation: 5, Version: 9}
	deleting := doc
	deleting.DeletedAt = &now
	event := func(change func(*statusEvent)) statusEvent {
		ev := statusEvent{topic: "mc1", record: statusRecord{Consumer: "mc1", ID: "w1", OriginalSource: "maestro",
			Version: 5, Sequence: "20", Data: json.RawMessage(`{"conditions":[]}`)}}
		if change != nil {
			change(&ev)
		}
		return ev
	}
	old := statusRecord{Version: 5, Sequence: "10", Data: json.RawMessage(`{"conditions":[{"type":"Applied"}]}`)}
	same := event(nil).record
	for name, c := range map[string]struct {
		doc      store.Document
		have     statusRecord
		sequence string
		ev       statusEvent
		want     verdict
	}{
		"first":         {doc, statusRecord{}, "", event(nil), verdict{replace: true, ack: 5}},
		"newer":         {doc, old, "10", event(nil), verdict{replace: true, ack: 5}},
		"duplicate":     {doc, same, "20", event(nil), verdict{drop: dropStale}},
		"reordered":     {doc, old, "30", event(nil), verdict{drop: dropStale}},
		"equal content": {doc, same, "10", event(nil), verdict{ack: 5}},
		"overtaken answer": {doc, old, "30",
			event(func(e *statusEvent) { e.record.Type = work.StatusResyncResponse }), verdict{drop: dropStale}},
		"older generation": {doc, old, "10", event(func(e *statusEvent) { e.record.Version = 4 }),
			verdict{ack: 4}},
		"future generation": {doc, old, "10", event(func(e *statusEvent) { e.record.Version = 6 }),
			verdict{drop: dropFuture}},
		"another topic": {doc, old, "10", event(func(e *statusEvent) { e.topic = "mc2" }),
			verdict{drop: dropConsumer}},
		"another consumer's": {doc, old, "10", event(func(e *statusEvent) {
			e.topic, e.record.Consumer = "mc2",
				"mc2"
		}), verdict{drop: dropConsumer}},
		"another source's": {doc, old, "10", event(func(e *statusEvent) { e.record.OriginalSource = "x" }),
			verdict{drop: dropSource}},
		"unknown": {store.Document{}, statusRecord{}, "", event(nil), verdict{drop: dropUnknown}},
		"deleted": {deleting, old, "10", event(func(e *statusEvent) { e.deleted = true }),
			verdict{remove: true, ack: 5}},
		"deleted, late sequence": {deleting, old, "30", event(func(e *statusEvent) { e.deleted = true }),
			verdict{remove: true, ack: 5}},
		"deleted, earlier life": {deleting, old, "10", event(func(e *statusEvent) {
			e.deleted, e.record.Version = true,
				4
		}), verdict{drop: dropStale}},
		"deleted, but wanted": {doc, old, "10", event(func(e *statusEvent) { e.deleted = true }),
			verdict{drop: dropStale, lost: true}},
		"deleted, of old": {doc, old, "10", event(func(e *statusEvent) { e.deleted, e.record.Version = true, 4 }),
			verdict{drop: dropStale}},
	} {
		got := decideStatus(c.doc, c.have, c.sequence, c.ev, "maestro")
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(verdict{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestComparisonOfWhatAnAgentHolds(t *testing.T) {
	ours := []held{{id: "new", generation: 1, unacknowledged: true}, {id: "older", generation: 3, unacknowledged: true},
		{id: "equal", generation: 2}, {id: "unanswered", generation: 4, unacknowledged: true},
		{id: "ahead", generation: 2}, {id: "going", generation: 2, deleting: true}}
	theirs := []work.SpecVersion{{ID: "older", Version: 2}, {ID: "equal", Version: 2}, {ID: "unanswered", Version: 4}, {ID: "ahead", Version: 7},
		{ID: "going", Version: 2}, {ID: "strange", Version: 1}}
	got := compareSpecs(ours, theirs)
	want := comparison{
		send:     []held{ours[5], ours[0], ours[1]},
		received: []held{{id: "equal", generation: 2}, {id: "unanswered", generation: 4}, {id: "ahead", generation: 7}},
		pending:  []held{ours[3]},
		unknown:  []string{"strange"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(comparison{}, held{})); diff != "" {
		t.Error(diff)
	}
	if all := compareSpecs(ours, nil); len(all.send) != len(ours) {
		t.Errorf("an empty list asks for everything: %+v", all)
	}
}

func TestHashesAreAskedForInBoundedBatchesAndNeverForAll(t *testing.T) {
	if batches := batchHashes(nil, 96<<10); len(batches) != 0 {
		t.Errorf("no bundle makes %d requests: an empty one asks for everything", len(batches))
	}
	var hashes []work.StatusHash
	for n := range 2500 {
		hashes = append(hashes, work.StatusHash{ID: fmt.Sprintf("%0253d", n), Hash: strings.Repeat("f", 64)})
	}
	total := 0
	for _, b := range batchHashes(hashes, 96<<10) {
		data, err := json.Marshal(work.StatusHashes{Hashes: b})
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 || len(b) > 1000 || len(data) > 96<<10 {
			t.Errorf("a batch of %d hashes, %d bytes", len(b), len(data))
		}
		total += len(b)
	}
	if total != len(hashes) {
		t.Errorf("%d of %d", total, len(hashes))
	}
}

// TestTheHashIsWhatAgentsCompute checks the hash against the original's rule:
// sha256 of {"conditions":...,"resourceStatus":{"manifests":...}}.
func TestTheHashIsWhatAgentsCompute(t *testing.T) {
	if got, err := hashOf(statusRecord{}); err != nil ||
		got != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("no status: %s %v", got, err)
	}
	if got, err := hashOf(statusRecord{Hash: "given", Data: json.RawMessage(`{}`)}); err != nil || got != "given" {
		t.Errorf("given: %s %v", got, err)
	}
	a, err := hashOf(statusRecord{Data: json.RawMessage(
		`{"conditions":[{"type":"Applied","status":"True"}],"resourceStatus":[{"conditions":[]}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := hashOf(statusRecord{Data: json.RawMessage(
		`{"resourceStatus":[{"conditions":[]}],"conditions":[{"status":"True","type":"Applied"}]}`)})
	if err != nil || a != b {
		t.Errorf("%s %s %v: the order of keys matters", a, b, err)
	}
}
