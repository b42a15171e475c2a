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
	"atoll.dev/internal/pause"
)

// Limits of denials, so that nobody fills the disk by requests that are refused. A denial over them is counted, and a
// record each minute has the count.
const (
	// An account, and all senders without a proven identity together, have accountBurst records at once, and then one
	// every accountEvery.
	accountBurst = 60
	accountEvery = 10 * time.Second
	// The region has regionBurst, and then one a second.
	regionBurst = 600
	regionEvery = time.Second
	// sumPeriod is how often the counts are written; maxSums bounds the records of one time. What does not fit is
	// counted together, without account.
	sumPeriod = time.Minute
	maxSums   = 20
	// maxPending bounds the records that wait for the database.
	maxPending  = 1000
	maxAccounts = 10_000 // with a limit of their own
	lastFlush   = 2 * time.Second
)

// Denials appends refused requests to the chain, soon after they were refused: a request does not wait for it, and a
// killed process loses those that it has not written yet. Several goroutines may use it.
type Denials struct {
	chain *Chain
	log   *slog.Logger
	woken chan struct{}

	mu      sync.Mutex
	region  *rate.Limiter
	of      map[string]*rate.Limiter // by account; "" for senders without a proven identity
	pending []Record
	sums    map[sum]*Record
}

// sum is what denials over the limits are counted by.
type sum struct{ account, code string }

var _ access.Denials = (*Denials)(nil)

// NewDenials returns Denials that append to a chain. Run must run.
func NewDenials(chain *Chain, log *slog.Logger) *Denials {
	return &Denials{chain: chain, log: log, woken: make(chan struct{}, 1),
		region: rate.NewLimiter(rate.Every(regionEvery), regionBurst), of: map[string]*rate.Limiter{},
		sums: map[sum]*Record{}}
}

// Record implements access.Denials.
func (d *Denials) Record(denial access.Denial) {
	who := denial.Caller
	proof, credential := who.ProvedBy()
	r := Record{Time: timeText(time.Now()), Service: "platform", Key: "denial." + uuid.NewString(), Outcome: Denied,
		Principal: audit.Cut(who.Principal), Account: string(who.Account), Owner: audit.Cut(denial.Owner),
		Operator: who.Privileged, Proof: audit.Cut(proof), ProofID: audit.Cut(credential),
		Action: string(denial.Action), Method: audit.Cut(denial.Method), Route: audit.Cut(denial.Route),
		Resource: Resource{Kind: string(denial.Kind), ID: audit.Cut(denial.ID)}, Code: audit.Cut(denial.Code),
		Status: denial.Status, Policies: cutPolicies(denial.Policies), RequestID: audit.Cut(denial.RequestID),
		Source: audit.Cut(denial.Source), UserAgent: audit.Cut(denial.UserAgent)}
	if who.Account == "" {
		r.Proof, r.Principal = audit.Unproven, "" // what the sender claims is in ProofID
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isWithinLimits(r.Account) && len(d.pending) < maxPending {
		d.pending = append(d.pending, r)
		select {
		case d.woken <- struct{}{}:
		default:
		}
		return
	}
	d.count(r, 1)
}

// cutPolicies returns at most 20 ids.
func cutPolicies(ids []string) []string { return ids[:min(len(ids), 20)] }

// isWithinLimits reports whether a denial of an account may have a record of its own.
func (d *Denials) isWithinLimits(account string) bool {
	limit := d.of[account]
	if limit == nil {
		if len(d.of) >= maxAccounts {
			clear(d.of) // the limit of the region holds
		}
		limit = rate.NewLimiter(rate.Every(accountEvery), accountBurst)
		d.of[account] = limit
	}
	return limit.Allow() && d.region.Allow()
}

// count adds n denials to the sums.
func (d *Denials) count(r Record, n int) {
	key := sum{r.Account, r.Code}
	if d.sums[key] == nil && len(d.sums) >= maxSums-1 {
		key = sum{}
	}
	if d.sums[key] == nil {
		d.sums[key] = &Record{Time: r.Time, Service: r.Service, Key: r.Key, Outcome: Denied, Account: key.account,
			Code: key.code}
	}
	d.sums[key].Count += n
}

// Run writes the records until ctx ends, and returns its cause. While the database does not answer, it keeps up to
// maxPending records and counts the others.
func (d *Denials) Run(ctx context.Context) error {
	tick := time.NewTicker(sumPeriod)
	defer tick.Stop()
	backoff := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
			defer cancel()
			d.closeSums()
			if err := d.flush(last); err != nil {
				d.log.Warn("audit records of refused requests are lost", "error", err)
			}
			return context.Cause(ctx)
		case <-tick.C:
			d.closeSums()
		case <-d.woken:
		}
		if err := d.flush(ctx); err != nil && ctx.Err() == nil {
			if backoff == 0 {
				d.log.Warn("audit records of refused requests are not written yet", "error", err)
			}
			backoff = min(max(2*backoff, 100*time.Millisecond), maxBackoff)
			pause.For(ctx, backoff)
			d.wake()
			continue
		}
		backoff = 0
	}
}

func (d *Denials) wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// closeSums makes records of the sums.
func (d *Denials) closeSums() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.sums {
		d.pending = append(d.pending, *r) // at most maxSums more
	}
	clear(d.sums)
}

// flush appends the pending records. After an error they are pending again.
func (d *Denials) flush(ctx context.Context) error {
	d.mu.Lock()
	records := d.pending
	d.pending = nil
	d.mu.Unlock()
	if len(records) == 0 {
		return nil
	}
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.Time, b.Time) })
	err := d.chain.appendDirectly(ctx, records)
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
