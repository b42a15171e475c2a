package audit

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"atoll.dev/access"
	"atoll.dev/api/audit"
	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
)

// Limits of records, so that refused requests cannot fill the disk. A refused request over a limit gets no record of
// its own: Denials counts it, and once in sumPeriod appends one record with the count.
const (
	// Each account has accountBurst records at once, and then one record every accountEvery. All senders without a proven
	// identity share one such limit.
	accountBurst = 60
	accountEvery = 10 * time.Second
	// The region has regionBurst records at once, and then one record every regionEvery.
	regionBurst = 600
	regionEvery = time.Second
	// maxAccounts bounds the accounts whose limits are in memory.
	maxAccounts = 10_000
	// sumPeriod is the time between two records with counts. There are at most maxSums counts: each is of one account and
	// one error code, and the last one is of all others together.
	sumPeriod = time.Minute
	maxSums   = 20
	// maxPending bounds the records in memory that the database does not have yet.
	maxPending = 1000
	// finalFlushTimeout bounds the last write to the database, after the end of Run's context.
	finalFlushTimeout = 2 * time.Second
	// maxPolicies bounds the policy ids of a record.
	maxPolicies = 20
)

// Denials appends a record of each refused request to the chain of audit records. Record only queues the record in
// memory; Run writes it to the database. A process that is killed loses the records that Run has not written.
// Several goroutines may use it.
type Denials struct {
	chain *Chain
	log   *slog.Logger
	woken chan struct{} // has a value when Run must write

	mu       sync.Mutex
	region   *rate.Limiter
	accounts map[cluster.Account]*rate.Limiter // by account; "" for senders without a proven identity
	pending  []Record
	sums     map[sumKey]*Record
}

// sumKey identifies a count of refused requests. The zero key is that of all refused requests without a count of
// their own.
type sumKey struct {
	account cluster.Account
	code    string
}

var _ access.Denials = (*Denials)(nil)

// NewDenials returns Denials that append to a chain. The caller must call Run: nothing is written before.
func NewDenials(chain *Chain, log *slog.Logger) *Denials {
	return &Denials{chain: chain, log: log, woken: make(chan struct{}, 1),
		region: rate.NewLimiter(rate.Every(regionEvery), regionBurst), accounts: map[cluster.Account]*rate.Limiter{},
		sums: map[sumKey]*Record{}}
}

// Record implements access.Denials: it queues a record of the refused request, or counts it when it is over a limit.
func (d *Denials) Record(denial access.Denial) {
	caller := denial.Caller
	proof, credential := caller.ProvedBy()
	r := Record{Time: timeText(time.Now()), Service: "platform", Key: "denial." + uuid.NewString(), Outcome: Denied,
		Principal: audit.Cut(string(caller.Principal)), Account: string(caller.Account), Owner: audit.Cut(denial.Owner),
		Operator: caller.Privileged, Proof: audit.Cut(proof), ProofID: audit.Cut(credential),
		Action: string(denial.Action), Method: audit.Cut(denial.Method), Route: audit.Cut(denial.Route),
		Resource: Resource{Kind: string(denial.Kind), ID: audit.Cut(denial.ID)}, Code: audit.Cut(denial.Code),
		Status: denial.Status, Policies: cutPolicies(denial.Policies), RequestID: audit.Cut(denial.RequestID),
		Source: audit.Cut(denial.Source), UserAgent: audit.Cut(denial.UserAgent)}
	if caller.Account == "" {
		r.Proof, r.Principal = audit.Unproven, "" // ProofID has the claimed identity
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.allowRecord(cluster.Account(r.Account)) && len(d.pending) < maxPending {
		d.pending = append(d.pending, r)
		d.wakeRun()
		return
	}
	d.count(r, 1)
}

// cutPolicies returns the first maxPolicies ids.
func cutPolicies(ids []string) []string { return ids[:min(len(ids), maxPolicies)] }

// allowRecord reports whether a refused request of an account may have a record of its own. If so, it takes one record
// from the limits of the account and of the region. The caller holds mu.
func (d *Denials) allowRecord(account cluster.Account) bool {
	limit := d.accounts[account]
	if limit == nil {
		if len(d.accounts) >= maxAccounts {
			clear(d.accounts) // each account begins again with a full limit; the limit of the region still holds
		}
		limit = rate.NewLimiter(rate.Every(accountEvery), accountBurst)
		d.accounts[account] = limit
	}
	return limit.Allow() && d.region.Allow()
}

// count adds n refused requests like r to the count of r's account and code. The caller holds mu.
func (d *Denials) count(r Record, n int) {
	key := sumKey{cluster.Account(r.Account), r.Code}
	if d.sums[key] == nil && len(d.sums) >= maxSums-1 {
		key = sumKey{}
	}
	if d.sums[key] == nil {
		d.sums[key] = &Record{Time: r.Time, Service: r.Service, Key: r.Key, Outcome: Denied, Account: string(key.account),
			Code: key.code}
	}
	d.sums[key].Count += n
}

// Run writes queued records to the chain until ctx ends, and returns the cause of that end. After a failed write it
// tries again with growing pauses; meanwhile it keeps at most maxPending records and counts the others. When ctx
// ends it tries once more, for at most finalFlushTimeout; records that this attempt does not write are lost, and the
// log says so.
func (d *Denials) Run(ctx context.Context) error {
	tick := time.NewTicker(sumPeriod)
	defer tick.Stop()
	backoff := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalFlushTimeout)
			defer cancel()
			d.queueSums()
			if err := d.flush(last); err != nil {
				d.log.Warn("audit records of refused requests are lost", "error", err)
			}
			return context.Cause(ctx)
		case <-tick.C:
			d.queueSums()
		case <-d.woken:
		}
		if err := d.flush(ctx); err != nil && ctx.Err() == nil {
			if backoff == 0 {
				d.log.Warn("audit records of refused requests are not written yet", "error", err)
			}
			backoff = min(max(2*backoff, 100*time.Millisecond), maxBackoff)
			pause.For(ctx, backoff)
			d.wakeRun()
			continue
		}
		backoff = 0
	}
}

// wakeRun makes Run write the queued records now.
func (d *Denials) wakeRun() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// queueSums queues a record of each count, and begins to count from zero.
func (d *Denials) queueSums() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.sums {
		d.pending = append(d.pending, *r) // at most maxSums more
	}
	clear(d.sums)
}

// flush appends the queued records to the chain. If it fails, it queues them again before newer ones, and counts those
// that are more than maxPending.
func (d *Denials) flush(ctx context.Context) error {
	d.mu.Lock()
	records := d.pending
	d.pending = nil
	d.mu.Unlock()
	if len(records) == 0 {
		return nil
	}
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.Time, b.Time) })
	err := d.chain.appendRecords(ctx, records)
	if err == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending = append(records, d.pending...)
	for len(d.pending) > maxPending {
		last := d.pending[len(d.pending)-1]
		d.pending = d.pending[:len(d.pending)-1]
		d.count(last, max(1, last.Count))
	}
	return err
}
