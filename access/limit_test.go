package access

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// limitedTo returns a Limiter with one rate for all classes, and its clock.
func limitedTo(rate Rate, o Limits) (*Limiter, *time.Time) {
	o.Rates = map[Class]Rate{}
	for class := range DefaultRates {
		o.Rates[class] = rate
	}
	l, now := NewLimiter(o), testTime
	l.now = func() time.Time { return now }
	return l, &now
}

func TestAnAccountHasARateForEachClass(t *testing.T) {
	l, now := limitedTo(Rate{PerSecond: 2, Burst: 3}, Limits{Exempt: []cluster.Account{"000000000009"}})
	h := http.Header{}
	for i := range 3 {
		if err := l.take(h, account, Writes); err != nil {
			t.Fatal(err)
		}
		if got := h.Get("X-RateLimit-Limit") + " " + h.Get("X-RateLimit-Remaining"); got != fmt.Sprint("3 ", 2-i) {
			t.Errorf("headers: %s", got)
		}
	}
	err := l.take(h, account, Writes)
	e, ok := errors.AsType[*rest.Error](err)
	if !ok || e.Status != http.StatusTooManyRequests || Code(e.Code) != RateLimited || e.RetryAfter != time.Second/2 ||
		h.Get("X-RateLimit-Remaining") != "0" || h.Get("X-RateLimit-Reset") != "2" {
		t.Errorf("over the rate: %+v %v", e, h)
	}
	for _, other := range []struct {
		account cluster.Account
		class   Class
	}{{account, Reads}, {account, Lists}, {account, Credentials}, {"000000000002", Writes}, {"000000000009", Writes}} {
		if err := l.take(http.Header{}, other.account, other.class); err != nil {
			t.Errorf("%v: %v", other, err)
		}
	}
	exempt := http.Header{}
	for range 20 {
		if err := l.take(exempt, "000000000009", Writes); err != nil || len(exempt) != 0 {
			t.Fatalf("exempt: %v %v", err, exempt)
		}
	}
	*now = now.Add(time.Second)
	for i, want := range []bool{true, true, false} {
		if err := l.take(h, account, Writes); (err == nil) != want {
			t.Errorf("request %d of the next second: %v", i, err)
		}
	}
}

// failingLedger deducts nothing.
type failingLedger struct{}

func (failingLedger) Deduct(context.Context, []Spending) (map[string]float64, error) {
	return nil, store.ErrUnavailable
}

// Without the ledger the local bucket limits; after an outage no debt is larger than the bucket.
func TestWithoutTheLedgerTheLocalBucketLimits(t *testing.T) {
	l, now := limitedTo(Rate{PerSecond: 1, Burst: 5}, Limits{})
	taken := 0
	for range 100 {
		for range 10 {
			if l.take(http.Header{}, account, Writes) == nil {
				taken++
			}
		}
		*now = now.Add(time.Second)
		if err := l.exchange(t.Context(), failingLedger{}); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if taken != 5+99 {
		t.Errorf("%d requests in 100 s, want 104", taken)
	}
	if b := l.buckets[bucketKey{account, Writes}]; b.spent > 5 {
		t.Errorf("%v tokens are to be deducted", b.spent)
	}
}

// Two replicas share one rate: what one took, the other lacks after both have exchanged.
func TestReplicasShareARate(t *testing.T) {
	dsn := pgtest.DSN(t)
	var limiters [2]*Limiter
	var ledgers [2]Ledger
	for i := range limiters {
		limiters[i], _ = limitedTo(Rate{PerSecond: 1e-6, Burst: 100}, Limits{})
		s, err := store.Open(t.Context(), store.Options{DSN: dsn, Kinds: StoreKinds(), Migrations: Migrations()}.Patient())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		ledgers[i] = NewSharedBuckets(s)
	}
	take := func(replica, n int) (taken int) {
		for range n {
			if limiters[replica].take(http.Header{}, account, Writes) == nil {
				taken++
			}
		}
		return taken
	}
	exchange := func() {
		t.Helper()
		var both sync.WaitGroup
		for i := range limiters {
			both.Go(func() {
				if err := limiters[i].exchange(t.Context(), ledgers[i]); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
	if taken := take(0, 60) + take(1, 1); taken != 61 {
		t.Fatalf("%d taken", taken)
	}
	exchange()
	if taken := take(1, 1); taken != 1 {
		t.Fatal("the shared bucket has tokens")
	}
	exchange() // the second replica learns what the first one took
	if taken := take(1, 100); taken != 38 {
		t.Errorf("the second replica took %d of the 38 that were left", taken)
	}
	exchange()
	take(0, 100) // the first replica has not exchanged since: replicas may go into debt for one period
	exchange()
	for i := range limiters {
		if taken := take(i, 100); taken != 0 {
			t.Errorf("replica %d took %d of an empty bucket", i, taken)
		}
	}
	b := limiters[0].buckets[bucketKey{account, Writes}]
	if b.tokens < -100 || math.IsNaN(b.tokens) {
		t.Errorf("the debt is %v, larger than the bucket", b.tokens)
	}
}

// Reads are shed before writes: of all requests, and of the share of an account.
func TestReadsAreShedBeforeWrites(t *testing.T) {
	l, _ := limitedTo(Rate{PerSecond: 1000, Burst: 1000}, Limits{Concurrent: 40, Exempt: []cluster.Account{account}})
	var ends []func()
	begin := func(of cluster.Account, class Class) int {
		end, err := l.begin(of, class)
		if err == nil {
			ends = append(ends, end)
			return http.StatusOK
		}
		e, ok := errors.AsType[*rest.Error](err)
		if !ok || e.RetryAfter == 0 {
			t.Fatalf("%s: %v", class, err)
		}
		return e.Status
	}
	const ordinary = "000000000002"
	for _, step := range []struct {
		account cluster.Account
		class   Class
		times   int
		status  int
	}{
		{ordinary, Reads, 8, http.StatusOK},
		{ordinary, Reads, 1, http.StatusTooManyRequests},
		{ordinary, Lists, 1, http.StatusTooManyRequests},
		{ordinary, Writes, 2, http.StatusOK},
		{ordinary, Credentials, 1, http.StatusTooManyRequests},
		{"000000000003", Lists, 8, http.StatusOK}, // another account has its own share
		{account, Reads, 14, http.StatusOK},       // an exempt account has no share
		{account, Reads, 1, http.StatusServiceUnavailable},
		{"000000000004", Lists, 1, http.StatusServiceUnavailable},
		{account, Writes, 7, http.StatusOK},
		{account, Credentials, 1, http.StatusOK},
		{account, Writes, 1, http.StatusServiceUnavailable},
	} {
		for range step.times {
			if status := begin(step.account, step.class); status != step.status {
				t.Errorf("%s of %s: %d, want %d", step.class, step.account, status, step.status)
			}
		}
	}
	for _, end := range ends {
		end()
		end()
	}
	if l.running != 0 || len(l.of) != 0 {
		t.Errorf("%d run after all have ended, of %v", l.running, l.of)
	}
}

// Every request counts while it runs, whatever its query says. A watch counts until its stream is
// open, also one that belongs to the class of reads.
func TestOnlyAnOpenWatchIsNotCounted(t *testing.T) {
	l, _ := limitedTo(Rate{PerSecond: 1000, Burst: 1000}, Limits{Concurrent: 10})
	rt := NewRouter(Options{Log: quiet, Identifier: testVerifier(), Limiter: l})
	begun, end, open := make(chan struct{}), make(chan struct{}), make(chan struct{})
	wait := func(http.ResponseWriter, *http.Request) error {
		begun <- struct{}{}
		<-end
		return nil
	}
	watch := func(w http.ResponseWriter, r *http.Request) error {
		return rest.Watch(w, r, rest.WatchOptions{}, func(ctx context.Context, s *rest.Stream) error {
			begun <- struct{}{}
			<-open
			if err := s.Open(""); err != nil {
				return err
			}
			begun <- struct{}{}
			<-end
			return nil
		})
	}
	rt.Handle(Route{"GET", "/events", "DescribeEvents", "Region", "", Customers}, watch)
	rt.Handle(Route{"GET", "/list", "ListThings", "Region", "", Customers}, wait)
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.running
	}
	done := make(chan int, 3)
	send := func(target string) {
		r := request(t, "GET", target, "")
		forge(t, r, creds)
		go func() { done <- serve(rt, r).Code }()
		<-begun
	}
	send("/events?watch=true")
	if n := count(); n != 1 {
		t.Errorf("%d run while a watch opens", n)
	}
	close(open)
	<-begun
	if n := count(); n != 0 {
		t.Errorf("%d run while a watch is open", n)
	}
	send("/list?watch=false")
	if n := count(); n != 1 {
		t.Errorf("%d run with one list that does not watch", n)
	}
	close(end)
	for range 2 {
		if code := <-done; code != http.StatusOK {
			t.Errorf("answered %d", code)
		}
	}
	if n := count(); n != 0 {
		t.Errorf("%d run after all have ended", n)
	}
}

// Over HTTP, the answer is the contract's, and the handler does not run.
func TestARateLimitedRequestIsAnswered429(t *testing.T) {
	l, _ := limitedTo(Rate{PerSecond: 1, Burst: 1}, Limits{})
	rt := NewRouter(Options{Log: quiet, Identifier: testVerifier(), Limiter: l})
	ran := 0
	handleEverything(rt, func(http.ResponseWriter, *http.Request) error { ran++; return nil })
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		r := request(t, "GET", fmt.Sprintf("/x/%d", i), "")
		forge(t, r, creds)
		w := serve(rt, r)
		if w.Code != want || w.Header().Get("X-Ratelimit-Limit") != "1" || ran != 1 ||
			want == http.StatusTooManyRequests && (w.Header().Get("Retry-After") != "1" ||
				!strings.Contains(w.Body.String(), `"code":"rate-limited"`)) {
			t.Errorf("request %d: %d %v %s", i, w.Code, w.Header(), w.Body)
		}
	}
	if w := serve(rt, request(t, "GET", "/api/v0/live", "")); w.Code != http.StatusOK {
		t.Errorf("public: %d", w.Code)
	}
}

func TestRatesAreParsed(t *testing.T) {
	if r, err := ParseRate("0.5/20"); err != nil || r != (Rate{0.5, 20}) {
		t.Errorf("%v %v", r, err)
	}
	for _, text := range []string{"", "5", "5/", "/5", "0/5", "5/0", "-1/5", "NaN/5", "5/NaN", "Inf/5", "5/Inf", "a/b",
		"5/6/7"} {
		if r, err := ParseRate(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
}

func BenchmarkLimiter(b *testing.B) {
	l := NewLimiter(Limits{Rates: map[Class]Rate{Reads: {PerSecond: 1e6, Burst: 1e9}}})
	h := http.Header{}
	for b.Loop() {
		if err := l.take(h, account, Reads); err != nil {
			b.Fatal(err)
		}
		end, err := l.begin(account, Reads)
		if err != nil {
			b.Fatal(err)
		}
		end()
	}
}
