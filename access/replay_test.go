package access

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/postgres"
	"atoll.dev/store"
)

func openSignatures(t *testing.T, dsn string) *UsedSignatures {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn, Kinds: StoreKinds(), Migrations: Migrations()}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return NewUsedSignatures(s)
}

// replica returns the stack of one replica, with a counter of handled requests.
func replica(signatures Signatures, handled *atomic.Int64) http.Handler {
	return replicaWith(&Verifier{Region: testRegion, Keys: testKeys(), PresignedMethods: methods}, signatures, handled)
}

func replicaWith(identifier Identifier, signatures Signatures, handled *atomic.Int64) http.Handler {
	rt := NewRouter(Options{Log: quiet, Signatures: signatures, Identifier: identifier})
	handleEverything(rt, func(http.ResponseWriter, *http.Request) error { handled.Add(1); return nil })
	return rt
}

// signedNow returns a function that makes the same signed request each time.
func signedNow(t *testing.T, method, target, body string) func() *http.Request {
	first := request(t, method, target, body)
	sdkSign(t, first, body, time.Now())
	header := first.Header
	return func() *http.Request {
		r := request(t, method, target, body)
		r.Header = header.Clone()
		return r
	}
}

// A signed mutation is executed once: not again at once, not after it was answered, not by another
// replica, not by many senders at the same time. Reads may be sent again.
func TestASignedMutationIsExecutedOnce(t *testing.T) {
	dsn := pgtest.DSN(t)
	var handled atomic.Int64
	replicas := []http.Handler{replica(openSignatures(t, dsn), &handled), replica(openSignatures(t, dsn), &handled)}
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		handled.Store(0)
		again := signedNow(t, method, "/api/v0/clusters/a/credentials", "{}")
		var refused atomic.Int64
		var senders sync.WaitGroup
		for i := range 20 {
			r := again()
			senders.Go(func() {
				w := serve(replicas[i%2], r)
				if w.Code == http.StatusForbidden && strings.Contains(w.Body.String(), string(SignatureUsed)) {
					refused.Add(1)
				}
			})
		}
		senders.Wait()
		if handled.Load() != 1 || refused.Load() != 19 {
			t.Errorf("%s: executed %d times, refused %d times", method, handled.Load(), refused.Load())
		}
		if w := serve(replicas[1], signedNow(t, method, "/api/v0/other", "{}")()); w.Code != http.StatusOK {
			t.Errorf("%s, another request: %d %s", method, w.Code, w.Body)
		}
	}
	handled.Store(0)
	again := signedNow(t, "GET", "/api/v0/clusters", "")
	for range 3 {
		if w := serve(replicas[0], again()); w.Code != http.StatusOK {
			t.Errorf("GET again: %d %s", w.Code, w.Body)
		}
	}
	presigned := sdkPresign(t, request(t, "DELETE", "/x", ""), "", time.Now())
	if w := serve(replicas[0], presigned); w.Code != http.StatusOK {
		t.Errorf("presigned: %d %s", w.Code, w.Body)
	}
	if w := serve(replicas[1], presigned); w.Code != http.StatusForbidden {
		t.Errorf("presigned again: %d %s", w.Code, w.Body)
	}
}

// While the database is down, no mutation is executed; reads are.
func TestNoMutationWithoutARecordOfItsSignature(t *testing.T) {
	db := pgtest.StartServer(t)
	var handled atomic.Int64
	h := replica(openSignatures(t, db.DSN("postgres", postgres.Superuser)), &handled)
	again := signedNow(t, "POST", "/x", "{}")
	if w := serve(h, again()); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	db.Kill()
	w := serve(h, signedNow(t, "POST", "/y", "{}")())
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), string(SignaturesNotReady)) ||
		w.Header().Get("Retry-After") == "" {
		t.Errorf("a new signature, database down: %d %s", w.Code, w.Body)
	}
	if w := serve(h, again()); w.Code != http.StatusForbidden {
		t.Errorf("a used signature, database down: %d %s", w.Code, w.Body)
	}
	if handled.Load() != 1 {
		t.Errorf("%d executed", handled.Load())
	}
	if w := serve(h, signedNow(t, "GET", "/x", "")()); w.Code != http.StatusOK {
		t.Errorf("GET, database down: %d %s", w.Code, w.Body)
	}
	db.Start()
	if w := serve(h, again()); w.Code != http.StatusForbidden {
		t.Errorf("the signature of before the crash: %d %s", w.Code, w.Body)
	}
}

// While the database is down, no mutation through the gateway is executed, although it has no signature;
// reads are. Two equal mutations are two changes.
func TestNoMutationThroughTheGatewayWithoutTheDatabase(t *testing.T) {
	db := pgtest.StartServer(t)
	var handled atomic.Int64
	h := replicaWith(&CombinedIdentifier{Signatures: testVerifier(), Gateway: newTestGateway(t)},
		openSignatures(t, db.DSN("postgres", postgres.Superuser)), &handled)
	send := func(method string) *httptest.ResponseRecorder {
		return serve(h, gatewayRequest(t, method, "https://api.example.com/x", "{}"))
	}
	for range 2 {
		if w := send("POST"); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	db.Kill()
	if w := send("POST"); w.Code != http.StatusServiceUnavailable ||
		!strings.Contains(w.Body.String(), string(SignaturesNotReady)) || w.Header().Get("Retry-After") == "" {
		t.Errorf("database down: %d %s", w.Code, w.Body)
	}
	if handled.Load() != 2 {
		t.Errorf("%d executed", handled.Load())
	}
	if w := send("GET"); w.Code != http.StatusOK {
		t.Errorf("GET, database down: %d %s", w.Code, w.Body)
	}
}

// Signatures are forgotten when no replica accepts them any more, and not before.
func TestSignaturesAreForgottenAfterTheirEnd(t *testing.T) {
	u := openSignatures(t, pgtest.DSN(t))
	now := time.Now()
	use := func(n byte, validUntil time.Time) error {
		return u.Use(t.Context(), Proof{Signature: [32]byte{n}, ValidUntil: validUntil})
	}
	ends := []time.Time{now.Add(15 * time.Minute), now, now.Add(-signatureMargin + time.Minute),
		now.Add(-signatureMargin - time.Minute)}
	for i, end := range ends {
		if err := use(byte(i), end); err != nil {
			t.Fatal(err)
		}
	}
	if err := u.forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u.remembered != 3 {
		t.Errorf("%d are remembered", u.remembered)
	}
	for i, end := range ends[:3] {
		if err := use(byte(i), end); !errors.Is(err, ErrUsed) {
			t.Errorf("signature until %s: %v", end, err)
		}
	}
	u.of = map[cluster.Account]int64{}
	u.limit = 3
	if err := use(9, now); !errors.Is(err, ErrFull) {
		t.Errorf("over the limit: %v", err)
	}
	u.limit = 100
	u.now = func() time.Time { return now.Add(maxDrift + time.Minute) }
	if err := use(10, now); !errors.Is(err, ErrClock) {
		t.Errorf("with another clock: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := u.Run(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

// failingSignatures cannot record.
type failingSignatures struct{ error }

func (s failingSignatures) Use(context.Context, Proof) error { return s.error }

func TestAnUnclearUseRefusesTheMutation(t *testing.T) {
	for _, err := range []error{ErrFull, ErrClock, store.ErrUnavailable, store.ErrUnknownOutcome,
		context.DeadlineExceeded} {
		var handled atomic.Int64
		w := httptest.NewRecorder()
		replica(failingSignatures{err}, &handled).ServeHTTP(w, signedNow(t, "POST", "/x", "{}")())
		if w.Code != http.StatusServiceUnavailable || handled.Load() != 0 {
			t.Errorf("%v: %d, %d executed", err, w.Code, handled.Load())
		}
	}
}

// A presigned request only reads, and is valid for 15 minutes at most, unless the Verifier is
// configured otherwise.
func TestPresignedRequestsOnlyRead(t *testing.T) {
	v := testVerifier()
	v.PresignedMethods = nil
	for _, method := range methods {
		_, _, err := verifyWire(t, v, sdkPresign(t, request(t, method, "/x", ""), "", testTime))
		if want := map[bool]Code{true: "", false: PresignedMethod}[method == "GET"]; codeOf(err) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
	week := func() *http.Request {
		return sdkPresign(t, request(t, "GET", "/x?"+paramExpires+"=604800", ""), "", testTime)
	}
	if _, _, err := verifyWire(t, v, week()); codeOf(err) != InvalidExpiry {
		t.Errorf("a week: %v", err)
	}
	v.MaxPresigned, v.PresignedMethods = 7*24*time.Hour, []string{"DELETE"}
	if _, _, err := verifyWire(t, v, week()); codeOf(err) != PresignedMethod {
		t.Errorf("GET, where only DELETE may be presigned: %v", err)
	}
	v.PresignedMethods = nil
	if _, _, err := verifyWire(t, v, week()); err != nil {
		t.Errorf("a week, where it may be: %v", err)
	}
}
