package clm

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/clm/status"
	"atoll.dev/internal/jsonscan"
	"atoll.dev/store"
)

// pending counts unreconciled resources for the metrics. It follows the feed, so that a scrape reads
// memory only, however many resources there are. Only unreconciled resources have an entry, of about
// 100 bytes each.
//
// There are no figures before the first load has ended. If the subscription to the feed ends, the last
// figures stay until the next load has ended.
type pending struct {
	store     *store.Store
	feed      *store.Broadcast
	registry  *Registry
	threshold time.Duration // a resource that is unreconciled for longer is stuck
	log       *slog.Logger
	page      int // how many resources one statement of a load reads

	mu      sync.Mutex
	entries map[pendingKey]pendingEntry // nil: not loaded yet
}

func newPending(db *Database, threshold time.Duration, log *slog.Logger) *pending {
	return &pending{store: db.Store, feed: db.Feed, registry: db.Registry, threshold: threshold, log: log, page: 5_000}
}

// pendingKey is a short hash of a resource's kind and id.
type pendingKey [16]byte

func pendingKeyOf(kind store.Kind, id string) (k pendingKey) {
	sum := sha256.Sum256([]byte(string(kind) + "/" + id))
	copy(k[:], sum[:])
	return k
}

// pendingEntry is one unreconciled resource.
type pendingEntry struct {
	group pendingGroup
	since time.Time // Reconciled has been False since then
}

// pendingGroup has the labels of the metrics.
type pendingGroup struct {
	kind    store.Kind
	deleted bool
}

// pendingRetry is the time between a load that failed, or a subscription that ended, and the next load.
const pendingRetry = time.Second

var (
	pendingLabels = []string{"resource_type", "is_delete"}
	pendingDesc   = prometheus.NewDesc("hyperfleet_api_resource_pending_reconciliation",
		"Resources that are unreconciled.", pendingLabels, nil)
	stuckDesc = prometheus.NewDesc("hyperfleet_api_resource_pending_reconciliation_stuck",
		"Resources that are unreconciled for longer than the threshold.", pendingLabels, nil)
	stuckForDesc = prometheus.NewDesc("hyperfleet_api_resource_pending_reconciliation_stuck_duration_seconds",
		"How long the longest of them is unreconciled.", pendingLabels, nil)

	openDesc  = prometheus.NewDesc("hyperfleet_db_connections_open", "Open connections to the database.", nil, nil)
	inUseDesc = prometheus.NewDesc("hyperfleet_db_connections_in_use", "Connections to the database in use.", nil, nil)
	idleDesc  = prometheus.NewDesc("hyperfleet_db_connections_idle", "Idle connections to the database.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *pending) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pendingDesc, stuckDesc, stuckForDesc, openDesc, inUseDesc, idleDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (p *pending) Collect(to chan<- prometheus.Metric) {
	open, inUse, idle := p.store.Connections()
	for desc, n := range map[*prometheus.Desc]int{openDesc: open, inUseDesc: inUse, idleDesc: idle} {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
	for group, f := range p.figures(time.Now()) {
		labels := []string{resourceType(string(group.kind)), strconv.FormatBool(group.deleted)}
		to <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(f.pending), labels...)
		to <- prometheus.MustNewConstMetric(stuckDesc, prometheus.GaugeValue, float64(f.stuck), labels...)
		to <- prometheus.MustNewConstMetric(stuckForDesc, prometheus.GaugeValue, f.longest.Seconds(), labels...)
	}
}

// pendingFigures are the figures of one group.
type pendingFigures struct {
	pending, stuck int
	longest        time.Duration // of the stuck resources
}

// figures counts the entries as of now. Each kind with required adapters has its two groups, also when
// they are empty. The result is empty before the first load.
func (p *pending) figures(now time.Time) map[pendingGroup]pendingFigures {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[pendingGroup]pendingFigures{}
	if p.entries == nil {
		return all
	}
	for _, kind := range p.kinds() {
		all[pendingGroup{kind, false}], all[pendingGroup{kind, true}] = pendingFigures{}, pendingFigures{}
	}
	for _, e := range p.entries {
		f := all[e.group]
		f.pending++
		if age := now.Sub(e.since); age > p.threshold {
			f.stuck++
			f.longest = max(f.longest, age)
		}
		all[e.group] = f
	}
	return all
}

// kinds returns the kinds with required adapters. Resources of other kinds are never unreconciled.
func (p *pending) kinds() (kinds []store.Kind) {
	for _, e := range p.registry.entities {
		if len(e.RequiredAdapters) > 0 {
			kinds = append(kinds, e.storeKind())
		}
	}
	return kinds
}

// run follows the feed until ctx ends. A nil *pending does nothing.
func (p *pending) run(ctx context.Context) {
	if p == nil || len(p.kinds()) == 0 {
		return
	}
	for {
		err := p.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		p.log.Warn("the figures of pending resources are loaded again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pendingRetry):
		}
	}
}

// follow loads all unreconciled resources, and then applies the changes of the feed, until ctx or the
// subscription ends. It subscribes before it loads, so that no change is missed.
func (p *pending) follow(ctx context.Context) error {
	kinds := map[store.Kind]bool{}
	for _, kind := range p.kinds() {
		kinds[kind] = true
	}
	sub := p.feed.Subscribe(func(c *store.Change) bool { return kinds[c.Kind] })
	defer sub.Close()
	entries := map[pendingKey]pendingEntry{}
	for kind := range kinds {
		if err := p.loadKind(ctx, kind, sub, entries); err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.entries = entries
	p.mu.Unlock()
	for {
		rounds, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		p.mu.Lock()
		applyRounds(p.entries, rounds)
		p.mu.Unlock()
	}
}

// loadKind loads the unreconciled resources of a kind in pages. After each page it applies the changes
// that the feed has sent meanwhile, so that the subscription's queue stays short. That order is correct: a
// page is read after the changes before it were applied, so it is at least as new as they are. A later
// change may be older than the page, but then the feed also sends the change that made the page's state.
func (p *pending) loadKind(
	ctx context.Context, kind store.Kind, sub *store.Subscription, entries map[pendingKey]pendingEntry,
) error {
	for after := ""; ; {
		page, last, err := p.readPage(ctx, kind, after)
		if err != nil {
			return err
		}
		maps.Copy(entries, page)
		rounds, err := sub.Take()
		if err != nil {
			return err
		}
		applyRounds(entries, rounds)
		if last == "" {
			return nil
		}
		after = last
	}
}

// pendingSQL reads one page of a kind's resources, in the order of their ids. It returns a row for each
// unreconciled resource, and a row without a time for the last resource of a full page.
const pendingSQL = `
	with page as (
		select id, deleted_at is not null as deleted, status from document
		where kind = $1 and id > $2 and removed_at is null order by id limit $3
	), found as (
		select id, deleted, (jsonb_path_query_first(status,
			'$.conditions[*] ? (@.type == "Reconciled" && @.status == "False")')
			->> 'last_transition_time')::timestamptz as since
		from page
	)
	select id, deleted, since from found where since is not null
	union all
	select max(id), false, null from page having count(*) = $3`

// readPage reads the page after an id. last is the id after which the next page begins, "" if there is none.
func (p *pending) readPage(ctx context.Context, kind store.Kind, after string) (
	entries map[pendingKey]pendingEntry, last string, err error) {
	entries = map[pendingKey]pendingEntry{}
	err = p.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		clear(entries)
		last = ""
		rows, err := conn.Query(ctx, pendingSQL, string(kind), after, p.page)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			var deleted bool
			var since *time.Time
			if err := rows.Scan(&id, &deleted, &since); err != nil {
				return err
			}
			if since == nil {
				last = id
				continue
			}
			entries[pendingKeyOf(kind, id)] = pendingEntry{pendingGroup{kind, deleted}, *since}
		}
		return rows.Err()
	})
	return entries, last, err
}

// applyRounds updates the entries of all documents in rounds of the feed.
func applyRounds(entries map[pendingKey]pendingEntry, rounds []store.Round) {
	for _, round := range rounds {
		for _, change := range round.Changes {
			applyPending(entries, change.Document)
		}
	}
}

// applyPending updates the entry of a document that the feed has sent.
func applyPending(entries map[pendingKey]pendingEntry, d store.Document) {
	key := pendingKeyOf(d.Kind, d.ID)
	since, unreconciled := unreconciledSince(d)
	if d.Removed || !unreconciled {
		delete(entries, key)
		return
	}
	entries[key] = pendingEntry{pendingGroup{d.Kind, d.DeletedAt != nil}, since}
}

// unreconciledSince returns the time at which Reconciled became False. ok is false if Reconciled is not False.
func unreconciledSince(d store.Document) (since time.Time, ok bool) {
	s := jsonscan.New(d.Status)
	s.Object(func(key string) {
		if key != "conditions" {
			s.Skip()
			return
		}
		for _, c := range status.ScanConditions(s) {
			if c.Type == status.Reconciled {
				since, ok = c.LastTransitionTime, c.Status == status.False
			}
		}
	})
	return since, ok && s.End() == nil
}
