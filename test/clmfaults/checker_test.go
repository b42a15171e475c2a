package clmfaults

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"atoll.dev/clm/status"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// checker follows the feed and fails the test as soon as a document breaks an invariant.
type checker struct {
	t       *testing.T
	deleted func(kind, name string) bool // whether a writer requested the deletion

	mu    sync.Mutex
	docs  map[string]observed // by id
	names map[string]string   // kind, scope and name -> the one id that had it
	seen  int
}

// observed is the last state of a document that the feed showed.
type observed struct {
	version, generation int64
	removed, deleting   bool
	reports             map[string]status.Report
}

func newChecker(t *testing.T, deleted func(kind, name string) bool) *checker {
	return &checker{t: t, deleted: deleted, docs: map[string]observed{}, names: map[string]string{}}
}

// required are the adapters of a kind.
var required = map[store.Kind][]string{"Cluster": {"cl-namespace", "cl-second"}, "NodePool": {"np-configmap"}}

// apply checks the documents of a batch.
func (c *checker) apply(_ context.Context, b store.Batch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range b.Documents {
		if d.Kind != "Request" {
			c.observe(d)
		}
	}
	return nil
}

// observe compares a document with its state before and with its own reports.
func (c *checker) observe(d store.Document) {
	c.seen++
	wrong := func(invariant, format string, args ...any) {
		c.t.Errorf("%s: %s %s (version %d, generation %d): %s\nspec %s\nstatus %s", invariant, d.Kind, d.Name,
			d.Version, d.Generation, fmt.Sprintf(format, args...), d.Spec, d.Status)
	}
	before, known := c.docs[d.ID]
	// After an interruption the feed may show a version again, and never an older one.
	if known && d.Version < before.version {
		wrong("I1", "the feed went back from version %d", before.version)
	}
	if d.Generation < before.generation {
		wrong("I1", "the feed went back from generation %d", before.generation)
	}
	if before.removed && !d.Removed || before.deleting && d.DeletedAt == nil {
		wrong("I1", "it exists again after its deletion")
	}
	if !known {
		place := fmt.Sprintf("%s %s %s", d.Kind, d.Scope, d.Name)
		if other := c.names[place]; other != "" {
			wrong("I5", "one key created this one and %s", other)
		}
		c.names[place] = d.ID
	}
	if d.DeletedAt != nil && !before.deleting && !c.deleted(string(d.Kind), d.Name) {
		wrong("I9", "no writer requested its deletion")
	}
	var result struct {
		Conditions []status.Condition
		Reports    []status.Report
	}
	if err := json.Unmarshal(d.Status, &result); err != nil {
		wrong("I1", "%v", err)
		return
	}
	now := observed{version: d.Version, generation: d.Generation, removed: d.Removed, deleting: d.DeletedAt != nil,
		reports: map[string]status.Report{}}
	for _, r := range result.Reports {
		now.reports[string(r.Adapter)] = r
		was, ok := before.reports[string(r.Adapter)]
		if ok && (r.Generation < was.Generation || r.Generation == was.Generation && r.ObservedAt.Before(
			was.ObservedAt)) {
			wrong("I1", "a status regressed from %+v to %+v", was, r)
		}
	}
	c.docs[d.ID] = now
	if len(required[d.Kind]) == 0 {
		return
	}
	// Its conditions must agree with its reports.
	wanted, good := status.Available, true
	if d.DeletedAt != nil {
		wanted = status.Finalized
	}
	for _, name := range required[d.Kind] {
		r, ok := now.reports[name]
		good = good && ok && int64(r.Generation) == d.Generation && isTrue(r, wanted)
	}
	if len(result.Conditions) == 0 || result.Conditions[0].Type != status.Reconciled ||
		int64(result.Conditions[0].ObservedGeneration) != d.Generation {
		wrong("I1", "Reconciled has another generation")
		return
	}
	if reconciled := result.Conditions[0].Status == status.True; reconciled && !good {
		wrong("I1", "Reconciled before all adapters reported")
	} else if !reconciled && good && d.DeletedAt == nil {
		wrong("I1", "not Reconciled after all adapters reported")
	}
	if d.Removed && !good {
		wrong("I9", "removed before all adapters finalized it")
	}
}

// isTrue reports whether a condition of the report is True.
func isTrue(r status.Report, kind string) bool {
	for _, c := range r.Conditions {
		if c.Type == kind {
			return c.Status == status.True
		}
	}
	return false
}

// versions returns the last version of each document that is not removed, by id.
func (c *checker) versions() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]int64{}
	for id, d := range c.docs {
		if !d.removed {
			all[id] = d.version
		}
	}
	return all
}

// awaitSameVersions waits until the checker has the same versions as the table: the feed skipped nothing (I4).
func (c *checker) awaitSameVersions(ctx context.Context, s *store.Store) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testsite.HangLimit); ; <-tick.C {
		table := map[string]int64{}
		q := store.Query{Kinds: []store.Kind{"Cluster", "NodePool", "Note"}, Deletion: store.WithDeleting, Limit: 1000}
		page, err := s.List(ctx, q)
		for _, d := range page.Documents {
			table[d.ID] = d.Version
		}
		has := c.versions()
		if err == nil && maps.Equal(has, table) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the checker has %v, the table has %v (%v)", has, table, err)
		}
	}
}
