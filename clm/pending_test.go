package clm

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/cluster"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// followed is a pending that follows the feed of a server's database, in pages of two resources.
func followed(t *testing.T, a *testAPI, threshold time.Duration) *pending {
	t.Helper()
	p := newPending(a.server.opts.Database, threshold, slog.New(slog.DiscardHandler))
	p.page = 2
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return p
}

// counts are the figures of the groups that have some, as pending and stuck.
func (p *pending) counts() map[string]string {
	counts := map[string]string{}
	for group, f := range p.figures(time.Now()) {
		if f.pending > 0 {
			counts[fmt.Sprintf("%s %v", group.kind, group.deleted)] = fmt.Sprintf("%d %d", f.pending, f.stuck)
		}
	}
	return counts
}

// want waits until the counts are as wanted.
func (p *pending) want(t *testing.T, want map[string]string) {
	t.Helper()
	var diff string
	for end := time.Now().Add(testsite.HangLimit); time.Now().Before(end); {
		if diff = cmp.Diff(want, p.counts()); diff == "" {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Fatal(diff)
}

// The figures come from pages at the start, and then from the feed's creates, reports, changes,
// deletions and removals.
func TestPendingResourcesAreCountedFromTheFeed(t *testing.T) {
	a := start(t)
	var clusters []string
	for i := range 5 {
		clusters = append(clusters, "/clusters/"+a.cluster(fmt.Sprint("c", i, "x")))
	}
	reconcile := func(path string, generation int, finalized string) {
		t.Helper()
		for _, adapter := range []cluster.Adapter{"dns", "validation"} {
			a.report(path, adapter, generation, "True", finalized).want(201)
		}
	}
	reconcile(clusters[2], 1, "")
	reconcile(clusters[4], 1, "")
	a.do("DELETE", clusters[0], "").want(202)

	p := followed(t, a, time.Hour)
	p.want(t, map[string]string{"Cluster false": "2 0", "Cluster true": "1 0"})
	reconcile(clusters[1], 1, "")
	p.want(t, map[string]string{"Cluster false": "1 0", "Cluster true": "1 0"})
	a.do("PATCH", clusters[4], `{"labels":{"a":"b"}}`).want(200)
	a.do("POST", clusters[4]+"/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`).want(201)
	p.want(t, map[string]string{"Cluster false": "2 0", "Cluster true": "1 0", "NodePool false": "1 0"})
	reconcile(clusters[0], 2, "True") // it is gone
	a.do("DELETE", clusters[4], "").want(202)
	p.want(t, map[string]string{"Cluster false": "1 0", "Cluster true": "1 0", "NodePool true": "1 0"})

	// Another process loads the same.
	followed(t, a, 0).want(t, map[string]string{"Cluster false": "1 1", "Cluster true": "1 1", "NodePool true": "1 1"})
}

// When the subscription ends, the figures stay until the next load, which includes the changes of
// the gap.
func TestPendingFiguresSurviveABrokenFeed(t *testing.T) {
	a := start(t)
	a.cluster("one")
	p := followed(t, a, time.Hour)
	p.want(t, map[string]string{"Cluster false": "1 0"})
	a.server.feed.Fail(store.ErrTooSlow)
	if diff := cmp.Diff(map[string]string{"Cluster false": "1 0"}, p.counts()); diff != "" {
		t.Error(diff)
	}
	a.cluster("two")
	p.want(t, map[string]string{"Cluster false": "2 0"})
}

// The longest wait is computed at the scrape, from the oldest Reconciled=False. Resources below the
// threshold do not count as stuck.
func TestTheLongestWaitIsComputedAtTheScrape(t *testing.T) {
	registry, err := ParseRegistry([]byte(testEntities))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	group := pendingGroup{kind: "Cluster"}
	p := &pending{registry: registry, threshold: 10 * time.Minute}
	if got := p.figures(now); len(got) != 0 {
		t.Errorf("before the load: %v", got)
	}
	p.entries = map[pendingKey]pendingEntry{
		pendingKeyOf("Cluster", "a"): {group, now.Add(-time.Minute)},
		pendingKeyOf("Cluster", "b"): {group, now.Add(-30 * time.Minute)},
		pendingKeyOf("Cluster", "c"): {group, now.Add(-20 * time.Minute)},
	}
	if got, want := p.figures(now)[group], (pendingFigures{3, 2, 30 * time.Minute}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := p.figures(now.Add(10 * time.Minute))[group], (pendingFigures{3, 3, 40 * time.Minute}); got != want {
		t.Errorf("10 minutes later: %+v, want %+v", got, want)
	}
	if f, there := p.figures(now)[pendingGroup{"NodePool", true}]; !there || f != (pendingFigures{}) {
		t.Errorf("a kind without pending resources: %+v, %v", f, there)
	}
}
