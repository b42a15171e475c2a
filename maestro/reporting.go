package maestro

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/store"
)

// Lifecycle is the region's lifecycle manager, *client.CLM, as far as agents'
// presence is reported to it: Maestro is the adapter "maestro" of
// ManagementClusters. Named finds one by its name, which is its consumer's;
// Report takes a report, or says that it knows better.
type Lifecycle interface {
	Named(ctx context.Context, from clmclient.Collection, name string) (clmclient.Resource, error)
	Report(ctx context.Context, in clmclient.Collection, id string, report clm.AdapterStatusCreate) (taken bool,
		err error)
}

const (
	managementClusters clmclient.Collection = "managementclusters"
	reportTick                              = time.Second // between two looks at who has become silent
	reportRead                              = 5 * time.Second
	reportTimeout                           = 5 * time.Second  // of one call
	reportPass                              = 20 * time.Second // of all calls that are due at a time
	reportsAtOnce                           = 8
)

// reporter tells the lifecycle manager which agents are heard.
type reporter struct {
	s    *Server
	clm  Lifecycle
	news chan struct{} // holds a token when somebody is heard whom the manager does not expect

	mu         sync.Mutex
	attendance *attendance
	known      map[string]mcRef // by name

	// These belong to run.
	skew time.Duration // of the database's clock against this one
}

// mcRef is a ManagementCluster of the lifecycle manager.
type mcRef struct {
	id         string
	generation int32
}

func newReporter(s *Server) *reporter {
	return &reporter{s: s, clm: s.opts.CLM, news: make(chan struct{}, 1), known: map[string]mcRef{},
		attendance: newAttendance(s.opts.LostAfter, s.opts.ReportEvery, time.Now())}
}

func (r *reporter) heard(consumer string, now time.Time) {
	r.mu.Lock()
	news := r.attendance.hear(consumer, now)
	r.mu.Unlock()
	if news {
		select {
		case r.news <- struct{}{}:
		default:
		}
	}
}

func (r *reporter) run(ctx context.Context) error {
	every := min(reportTick, r.s.opts.LostAfter/4)
	tick := time.NewTicker(every)
	defer tick.Stop()
	var read, failed time.Time
	for {
		now := time.Now()
		if now.Sub(read) >= reportRead {
			if err := r.read(ctx); err == nil {
				read = now
			}
		}
		if now.Sub(failed) >= every/2 { // not again for each that is heard
			if err := r.say(ctx, now); err != nil && ctx.Err() == nil {
				failed = now
				r.s.log.LogAttrs(ctx, slog.LevelDebug, "presence of agents not reported", slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.news:
		case <-tick.C:
		}
	}
}

// read reads when any server heard each consumer last.
func (r *reporter) read(ctx context.Context) error {
	seen, clock, err := r.s.lastSeen(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	r.skew = clock.Sub(now)
	heard := map[string]agentSeen{}
	q := store.Query{Kind: kindConsumer, Limit: 1000, WireOnly: true}
	for {
		page, err := r.s.store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			heard[d.Name] = seen[d.Name]
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attendance.note(heard, now)
	return nil
}

// say says what is due, a few words at a time, and takes no longer than
// reportPass. It ends with the first call that the lifecycle manager does not
// answer: the others would not fare better.
func (r *reporter) say(ctx context.Context, now time.Time) error {
	d := saysNews
	if r.s.leads.Load() {
		d = saysAll
	}
	r.mu.Lock()
	words := r.attendance.due(now, d)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, reportPass)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(reportsAtOnce)
	for _, w := range words {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return r.sayOne(ctx, w, now) })
	}
	return g.Wait()
}

func (r *reporter) sayOne(ctx context.Context, w word, now time.Time) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := r.report(ctx, w, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch status := remote.StatusOf(err); {
	case err == nil:
		r.attendance.told(w, now)
	case status >= 400 && status < 500:
		// It is not registered there, not yet, or not any more.
		delete(r.known, w.consumer)
		r.s.log.LogAttrs(ctx, slog.LevelDebug, "the presence of an agent was not taken",
			slog.String("consumer", w.consumer), slog.Any("error", err))
		r.attendance.refused(w, now)
	default:
		return err
	}
	return nil
}

func (r *reporter) report(ctx context.Context, w word, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for try := 0; ; try++ {
		r.mu.Lock()
		ref, cached := r.known[w.consumer]
		r.mu.Unlock()
		if !cached {
			mc, err := r.clm.Named(ctx, managementClusters, w.consumer)
			if err != nil {
				return err
			}
			ref = mcRef{mc.ID, mc.Generation}
			r.mu.Lock()
			r.known[w.consumer] = ref
			r.mu.Unlock()
		}
		taken, err := r.clm.Report(ctx, managementClusters, ref.id, reportOf(w, ref, now, r.skew))
		if err != nil || taken || !cached || try > 0 {
			return err
		}
		r.mu.Lock()
		delete(r.known, w.consumer) // it has another generation since, or another server has reported later
		r.mu.Unlock()
	}
}

// reportOf is the report that says a word. While an agent is heard only the
// time changes, which is no content of the resource: it makes no version, and
// wakes nobody. Its times are of the database's clock, which all servers share:
// the lifecycle manager orders reports by them.
func reportOf(w word, ref mcRef, now time.Time, skew time.Duration) clm.AdapterStatusCreate {
	available := clm.ReportedCondition{Type: "Available", Status: "True", Reason: new("Heard")}
	report := clm.AdapterStatusCreate{Adapter: "maestro", ObservedGeneration: ref.generation, ObservedTime: w.heard.Add(
		skew)}
	if w.sighting == absent {
		available = clm.ReportedCondition{Type: "Available", Status: "False", Reason: new("Lost"),
			Message: new("nothing is heard of its agent")}
		report.ObservedTime = now.Add(skew)
		// it cannot fail
		report.Data, _ = json.Marshal(map[string]time.Time{"last_seen": w.heard.Add(skew).UTC().Truncate(
			time.Millisecond)})
	}
	report.Conditions = []clm.ReportedCondition{available, {Type: "Applied", Status: "True"},
		{Type: "Health", Status: "True"}}
	return report
}
