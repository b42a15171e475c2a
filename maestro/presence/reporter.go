package presence

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/clm"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// Lifecycle has the calls of the region's lifecycle manager that report the presence of agents;
// *clmclient.Client implements it. Maestro is the adapter "maestro" of ManagementClusters. Named finds
// a ManagementCluster by its name, which is the consumer's. Report stores a report; taken is false when
// CLM has a later one or the resource has another generation.
type Lifecycle interface {
	Named(ctx context.Context, from clmclient.Collection, name string) (clmclient.Resource, error)
	Report(ctx context.Context, in clmclient.Collection, id string, report clm.AdapterStatusCreate) (taken bool,
		err error)
}

// Options are the parameters of New. All but CLM are needed.
type Options struct {
	Store       *store.Store
	Logger      *slog.Logger
	CLM         Lifecycle     // receives the presence of agents; nil: no reports
	LostAfter   time.Duration // an agent that is silent for so long is lost
	ReportEvery time.Duration // interval between two reports of a present agent
	Leads       func() bool   // this server reports for all servers that share the database
}

const (
	ManagementClusters clmclient.Collection = "managementclusters"
	tickInterval                            = time.Second // between two searches for silent agents
	readInterval                            = 5 * time.Second
	callTimeout                             = 5 * time.Second  // of one call
	passTimeout                             = 20 * time.Second // of all due calls
	maxCalls                                = 8
)

// reporter reports to the lifecycle manager which agents are present.
type reporter struct {
	Options
	contacts *Tracker
	wake     chan struct{} // holds a token when an agent has become present

	mu       sync.Mutex
	schedule *schedule
	refs     map[work.Consumer]clusterRef // by name

	// These belong to run.
	clockSkew time.Duration // of the database's clock against this one
}

// clusterRef is a ManagementCluster of the lifecycle manager.
type clusterRef struct {
	id         string
	generation int32
}

func newReporter(o Options, contacts *Tracker) *reporter {
	return &reporter{Options: o, contacts: contacts, wake: make(chan struct{}, 1), refs: map[work.Consumer]clusterRef{},
		schedule: newSchedule(o.LostAfter, o.ReportEvery, time.Now())}
}

// recordContact notes an event of an agent, and wakes run when a report is due.
func (r *reporter) recordContact(consumer work.Consumer, now time.Time) {
	r.mu.Lock()
	news := r.schedule.observe(consumer, now)
	r.mu.Unlock()
	if news {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// run sends due reports until ctx ends.
func (r *reporter) run(ctx context.Context) error {
	every := min(tickInterval, r.LostAfter/4)
	tick := time.NewTicker(every)
	defer tick.Stop()
	var read, failed time.Time
	for {
		now := time.Now()
		if now.Sub(read) >= readInterval {
			if err := r.read(ctx); err == nil {
				read = now
			}
		}
		// Without a first read the clock of the database is unknown. After a failure, not again for each event.
		if !read.IsZero() && now.Sub(failed) >= every/2 {
			if err := r.sendDue(ctx, now); err != nil && ctx.Err() == nil {
				failed = now
				r.Logger.LogAttrs(ctx, slog.LevelDebug, "presence of agents not reported", slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-tick.C:
		}
	}
}

// read passes the last contacts of all consumers, at any server, to the schedule.
func (r *reporter) read(ctx context.Context) error {
	seen, clock, err := r.contacts.Recorded(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	r.clockSkew = clock.Sub(now)
	contacts := map[work.Consumer]agentSeen{}
	q := store.Query{Kind: bundle.ConsumerKind, Limit: 1000, WireOnly: true}
	for {
		page, err := r.Store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			contacts[work.Consumer(d.Name)] = seen[work.Consumer(d.Name)]
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule.merge(contacts, now)
	return nil
}

// sendDue sends the reports that are due, a few at a time, and takes no longer than
// passTimeout. It ends with the first call that the lifecycle manager does not
// answer: the other calls would fail, too. An error in the answer to one report ends no
// other; sendDue returns such errors after the pass, and the next pass repeats these reports.
func (r *reporter) sendDue(ctx context.Context, now time.Time) error {
	scope := newContactsHere
	if r.Leads() {
		scope = allAgents
	}
	r.mu.Lock()
	reports := r.schedule.dueReports(now, scope)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxCalls)
	failures := make([]error, len(reports))
	for i, w := range reports {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := r.sendOne(ctx, w, now)
			if concernsOneReport(err) {
				failures[i] = err
				return nil
			}
			return err
		})
	}
	err := g.Wait()
	return errors.Join(err, errors.Join(failures...))
}

// concernsOneReport reports whether the lifecycle manager answered a report with an error that it need not return for
// other reports: one resource may be damaged.
func concernsOneReport(err error) bool {
	status := remote.StatusOf(err)
	return status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout
}

// isContentRefused reports whether the lifecycle manager refused a report because of its body.
func isContentRefused(err error) bool {
	status := remote.StatusOf(err)
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge ||
		status == http.StatusUnprocessableEntity
}

// sendOne sends a report and passes the result to the schedule. When CLM refuses the content of a report that has
// figures of hosting, sendOne sends it once more without them: a management cluster makes the figures, and nothing may
// depend on them, least of all its presence. It returns only errors after which the other reports would fail, too.
func (r *reporter) sendOne(ctx context.Context, w dueReport, now time.Time) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := r.send(ctx, w, now)
	if w.hosting != "" && isContentRefused(err) {
		r.Logger.LogAttrs(ctx, slog.LevelDebug, "CLM refused the presence of an agent with the report of hosting",
			slog.String("consumer", string(w.consumer)), slog.Any("error", err))
		w.hosting = ""
		err = r.send(ctx, w, now)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch status := remote.StatusOf(err); {
	case err == nil:
		r.schedule.markReported(w, now)
	case status >= 400 && status < 500:
		// The management cluster is not registered, not yet or no longer.
		delete(r.refs, w.consumer)
		r.Logger.LogAttrs(ctx, slog.LevelDebug, "CLM refused the presence of an agent",
			slog.String("consumer", string(w.consumer)), slog.Any("error", err))
		r.schedule.markRefused(w, now)
	default:
		return err
	}
	return nil
}

// send sends a report. When CLM does not take a report about a cached ManagementCluster, send reads
// the ManagementCluster again and repeats the report once.
func (r *reporter) send(ctx context.Context, w dueReport, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for try := 0; ; try++ {
		r.mu.Lock()
		ref, cached := r.refs[w.consumer]
		r.mu.Unlock()
		if !cached {
			mc, err := r.CLM.Named(ctx, ManagementClusters, string(w.consumer))
			if err != nil {
				return err
			}
			ref = clusterRef{mc.ID, mc.Generation}
			r.mu.Lock()
			r.refs[w.consumer] = ref
			r.mu.Unlock()
		}
		taken, err := r.CLM.Report(ctx, ManagementClusters, ref.id, reportOf(w, ref, now, r.clockSkew))
		if err != nil || taken || !cached || try > 0 {
			return err
		}
		r.mu.Lock()
		delete(r.refs, w.consumer) // CLM has another generation, or a later report of another server
		r.mu.Unlock()
	}
}

// reportOf makes the report for CLM. While an agent is present, usually only the time of the report changes. The time
// is no content of the resource, so such a report makes no version and wakes no watch; a changed report of hosting
// does both. The times are of the database's clock, which all servers share, because CLM orders reports by them.
func reportOf(w dueReport, ref clusterRef, now time.Time, skew time.Duration) clm.AdapterStatusCreate {
	available := clm.ReportedCondition{Type: "Available", Status: "True", Reason: new("Heard")}
	report := clm.AdapterStatusCreate{
		Adapter:            "maestro",
		ObservedGeneration: ref.generation,
		ObservedTime:       w.lastSeen.Add(skew),
	}
	if w.state == absent {
		available = clm.ReportedCondition{Type: "Available", Status: "False", Reason: new("Lost"),
			Message: new("no event of its agent arrives")}
		report.ObservedTime = now.Add(skew)
	}
	// Marshal cannot fail: hosting is JSON that this program made.
	switch lastSeen := w.lastSeen.Add(skew).UTC().Truncate(time.Millisecond); {
	case w.state == absent:
		report.Data, _ = json.Marshal(map[string]time.Time{"last_seen": lastSeen})
	case w.hosting != "":
		report.Data, _ = json.Marshal(map[string]json.RawMessage{"hosting": json.RawMessage(w.hosting)})
	}
	report.Conditions = []clm.ReportedCondition{available, {Type: "Applied", Status: "True"},
		{Type: "Health", Status: "True"}}
	return report
}
