package access

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"atoll.dev/cluster"
)

// Class is a class of requests with a rate of its own for each account.
type Class string

// The classes. Each request has one.
const (
	Reads       Class = "reads"       // one resource
	Lists       Class = "lists"       // a collection, or a watch
	Writes      Class = "writes"      // mutations, but those of credentials
	Credentials Class = "credentials" // creating and revoking credentials
)

// Rate is the size of a token bucket, and how fast it fills again. A request takes one
// token.
type Rate struct {
	PerSecond float64
	Burst     float64
}

// DefaultRates are the rates of an account in a region that configures none.
var DefaultRates = map[Class]Rate{
	Reads: {2000, 10_000}, Lists: {500, 5000}, Writes: {500, 5000}, Credentials: {20, 400},
}

// ParseRate reads a rate in the form 500/5000: tokens per second, and the size of the
// bucket.
func ParseRate(text string) (Rate, error) {
	perSecond, burst, _ := strings.Cut(text, "/")
	var r Rate
	var errs [2]error
	r.PerSecond, errs[0] = strconv.ParseFloat(perSecond, 64)
	r.Burst, errs[1] = strconv.ParseFloat(burst, 64)
	if errs[0] != nil || errs[1] != nil || !(r.PerSecond > 0 && r.PerSecond <= 1e6) || !(r.Burst >= 1 && r.Burst <= 1e9) {
		return Rate{}, fmt.Errorf("the rate %s is not like 500/5000: requests per second, and how many at once",
			quoted(text))
	}
	return r, nil
}

// Limits are the limits of identified callers.
type Limits struct {
	Rates  map[Class]Rate    // of each account; a class without a rate has that of DefaultRates
	Exempt []cluster.Account // accounts without a rate

	// Concurrent is how many requests run at the same time, open watches not counted; default
	// 1024. A quarter of them may be those of one account that is not exempt. From 80 % of them
	// on, and of the quarter, reads are refused, so that writes still have room.
	Concurrent int
}

// readShare is the part of Limits.Concurrent, and of the share of an account, that reads and lists
// may fill.
const readShare = 0.8

// accountPart is the part of Limits.Concurrent that one account may fill: one of four.
const accountPart = 4

// Limiter limits requests by account and class, and how many run at the same time. It
// decides from memory. Run subtracts the tokens that each replica took from the buckets of
// all replicas. Without Run, and while the database is down, each replica limits by its own
// buckets alone. Several goroutines may use it.
type Limiter struct {
	rates      map[Class]Rate
	exempt     map[cluster.Account]bool
	concurrent int
	now        func() time.Time

	mu      sync.Mutex
	buckets map[bucketKey]*bucket
	running int
	of      map[cluster.Account]int // running requests of each account that has some
}

type bucketKey struct {
	account cluster.Account
	class   Class
}

// bucket is the token bucket of an account and a class.
type bucket struct {
	tokens float64   // at the time at; negative when replicas together took more than there was
	at     time.Time // of the last change
	spent  float64   // tokens taken in this process since the last Deduct
}

// NewLimiter returns a Limiter with full buckets.
func NewLimiter(o Limits) *Limiter {
	l := &Limiter{rates: map[Class]Rate{}, exempt: map[cluster.Account]bool{}, concurrent: o.Concurrent,
		now: time.Now, buckets: map[bucketKey]*bucket{}, of: map[cluster.Account]int{}}
	for class, rate := range DefaultRates {
		if configured, ok := o.Rates[class]; ok {
			rate = configured
		}
		l.rates[class] = rate
	}
	for _, account := range o.Exempt {
		l.exempt[account] = true
	}
	if l.concurrent <= 0 {
		l.concurrent = 1024
	}
	return l
}

// refill adds the tokens of the time since the last change.
func (b *bucket) refill(rate Rate, now time.Time) {
	if passed := now.Sub(b.at).Seconds(); passed > 0 {
		b.tokens = min(rate.Burst, b.tokens+passed*rate.PerSecond)
		b.at = now
	}
}

// take takes one token of the account for a request of the class. It sets the headers
// of the answer. Its error is the 429, after which no token is taken. Accounts that are
// exempt get neither.
func (l *Limiter) take(h http.Header, account cluster.Account, class Class) error {
	if l == nil || l.exempt[account] {
		return nil
	}
	rate := l.rates[class]
	now := l.now()
	l.mu.Lock()
	key := bucketKey{account, class}
	b := l.buckets[key]
	if b == nil {
		b = &bucket{tokens: rate.Burst, at: now}
		l.buckets[key] = b
	}
	b.refill(rate, now)
	ok := b.tokens >= 1
	if ok {
		b.tokens--
		b.spent++
	}
	tokens := b.tokens
	l.mu.Unlock()
	rate.show(h, tokens)
	if ok {
		return nil
	}
	e := refuse(RateLimited, "the account %s sends more %s than the region takes: %g in a second, %g at once; wait, and "+
		"send fewer", account, class, rate.PerSecond, rate.Burst)
	e.RetryAfter = time.Duration((1 - tokens) / rate.PerSecond * float64(time.Second))
	return e
}

// show sets the headers of an answer to a request of an account with so many tokens left.
func (r Rate) show(h http.Header, tokens float64) {
	h.Set("X-Ratelimit-Limit", strconv.FormatFloat(math.Floor(r.Burst), 'f', 0, 64))
	h.Set("X-Ratelimit-Remaining", strconv.FormatFloat(max(0, math.Floor(tokens)), 'f', 0, 64))
	h.Set("X-Ratelimit-Reset", strconv.FormatFloat(math.Ceil((r.Burst-tokens)/r.PerSecond), 'f', 0, 64))
}

// giveBack gives back the token that take took for a request, and sets the headers of the answer.
func (l *Limiter) giveBack(h http.Header, account cluster.Account, class Class) {
	if l == nil || l.exempt[account] {
		return
	}
	l.mu.Lock()
	if b := l.buckets[bucketKey{account, class}]; b != nil { // else it was full, and is forgotten
		b.tokens = min(l.rates[class].Burst, b.tokens+1)
		b.spent-- // below zero when the token was deducted meanwhile: the next Deduct gives it back
	}
	l.mu.Unlock()
	l.show(h, account, class)
}

// show sets the headers of an answer to a request that took no token.
func (l *Limiter) show(h http.Header, account cluster.Account, class Class) {
	if l == nil || l.exempt[account] {
		return
	}
	rate := l.rates[class]
	l.mu.Lock()
	tokens := rate.Burst
	if b := l.buckets[bucketKey{account, class}]; b != nil {
		b.refill(rate, l.now())
		tokens = b.tokens
	}
	l.mu.Unlock()
	rate.show(h, tokens)
}

// begin counts a running request of an account, until end is called, which may be called again.
// Its error is the 503 that sheds load, or the 429 over the share of the account: reads before writes.
func (l *Limiter) begin(account cluster.Account, class Class) (end func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	share := max(1, l.concurrent/accountPart)
	switch {
	case l.running >= mostOf(l.concurrent, class):
		return nil, refuse(Overloaded, "the region has as many requests to answer as it can; try again")
	case !l.exempt[account] && l.of[account] >= mostOf(share, class):
		return nil, refuse(RateLimited, "the account %s has %d requests running, and may have %d, the last of them "+
			"for changes; send fewer at the same time", account, l.of[account], share)
	}
	l.running++
	l.of[account]++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
		if l.of[account]--; l.of[account] == 0 {
			delete(l.of, account)
		}
	}), nil
}

// mostOf returns how many requests may run at the same time when another request of a class begins. Reads and lists get
// a share of limit only, so that writes always have room.
func mostOf(limit int, class Class) int {
	if class == Reads || class == Lists {
		return max(1, int(float64(limit)*readShare))
	}
	return limit
}

// classOf returns the class of a route's requests.
func classOf(route Route) Class {
	switch {
	case isMutation(route.Method) && strings.HasSuffix(string(route.Action), "Credential"):
		return Credentials
	case isMutation(route.Method):
		return Writes
	case strings.HasPrefix(string(route.Action), "List"):
		return Lists
	}
	return Reads
}

// exchangePeriod is the time between two calls of Deduct. In this time each replica may take all tokens that it knows
// of; then the shared bucket is in debt.
const exchangePeriod = time.Second

// Spending is the number of tokens that a replica took from a shared bucket since it last reported them.
type Spending struct {
	Key   string // account/class
	Spent float64
	Rate  Rate
}

// Ledger has the buckets that the replicas share.
type Ledger interface {
	// Deduct takes the spent tokens from the shared buckets, and returns how many each
	// then has, by key. With an error it is unknown whether they were taken.
	Deduct(ctx context.Context, spent []Spending) (map[string]float64, error)
}

// Run exchanges spent tokens with a ledger every second until ctx ends, and returns its cause. It counts and logs
// rounds that fail; the local buckets go on, and the next round tries again.
func (l *Limiter) Run(ctx context.Context, ledger Ledger, failures *Failures) error {
	tick := time.NewTicker(exchangePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			failures.record(ctx, settleRates, l.exchange(ctx, ledger))
		}
	}
}

// exchange deducts the spent tokens from the ledger once, and takes over the numbers of tokens that are left there.
// It also removes full buckets without spent tokens from memory.
func (l *Limiter) exchange(ctx context.Context, ledger Ledger) error {
	now := l.now()
	var spent []Spending
	keys := map[string]bucketKey{}
	l.mu.Lock()
	for key, b := range l.buckets {
		rate := l.rates[key.class]
		b.refill(rate, now)
		if b.spent == 0 {
			if b.tokens >= rate.Burst {
				delete(l.buckets, key)
			}
			continue
		}
		name := string(key.account) + "/" + string(key.class)
		keys[name] = key
		spent = append(spent, Spending{Key: name, Spent: b.spent, Rate: rate})
		b.spent = 0
	}
	l.mu.Unlock()
	if len(spent) == 0 {
		return nil
	}
	left, err := ledger.Deduct(ctx, spent)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range spent {
		b := l.buckets[keys[s.Key]]
		if b == nil {
			continue
		}
		if tokens, ok := left[s.Key]; ok && err == nil {
			b.tokens, b.at = min(s.Rate.Burst, tokens-b.spent), now
			continue
		}
		b.spent = min(b.spent+s.Spent, s.Rate.Burst) // a long outage makes no debt over one bucket
	}
	return err
}
