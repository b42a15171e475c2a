package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"atoll.dev/client"
	"atoll.dev/internal/rest"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// methods are those for which handleEverything registers a handler.
var methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}

// newTestRouter returns a Router that verifies signatures by keys at testTime.
func newTestRouter(log *slog.Logger, keys Keys, metrics prometheus.Registerer) *Router {
	return NewRouter(Options{
		Identifier: &Verifier{Region: testRegion, Keys: keys, Now: func() time.Time { return testTime },
			PresignedMethods: methods},
		Log: log, Metrics: metrics,
	})
}

// handleEverything registers a handler for every path, and for the public paths
// of a front.
func handleEverything(rt *Router, h rest.Handler) {
	for _, path := range []string{"/api/v0/live", "/prod/api/v0/ready"} {
		rt.Handle(Route{"GET", path, "DescribeHealth", "Region", "", Public}, h)
	}
	for _, method := range methods {
		rt.Handle(Route{method, "/{path...}", "DoAnything", "Region", "", Customers}, h)
	}
}

// front returns a front's stack with one handler for everything, as cli composes
// it.
func front(h rest.Handler, log *slog.Logger, keys Keys, metrics prometheus.Registerer) http.Handler {
	rt := newTestRouter(log, keys, metrics)
	handleEverything(rt, h)
	return rest.Observe(rest.Options{Log: log}, rt)
}

func notFound(http.ResponseWriter, *http.Request) error {
	return rest.Errorf(http.StatusNotFound, "", "there is nothing")
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// I10: no handler runs without identity. The test calls every route with each kind of
// missing identity.
func TestI10NoHandlerRunsWithoutIdentity(t *testing.T) {
	ran := 0
	rt := newTestRouter(quiet, testKeys(), nil)
	for _, route := range []Route{
		{"GET", "/api/v0/live", "DescribeHealth", "Region", "", Public},
		{"GET", "/api/v0/ready", "DescribeHealth", "Region", "", Public},
		{"GET", "/prod/api/v0/live", "DescribeHealth", "Region", "", Public},
		{"GET", "/prod/api/v0/ready", "DescribeHealth", "Region", "", Public},
		{"GET", "/api/v0/openapi", "DescribeAPI", "Region", "", Customers},
		{"GET", "/api/v0/clusters", "ListClusters", "Cluster", "", Customers},
		{"POST", "/api/v0/management_clusters", "RegisterManagementCluster", "ManagementCluster", "", Operators},
		{"GET", "/prod/api/v0/work/{id}", "DescribeWork", "Work", "id", Operators},
		{"PUT", "/api/v0/work/{id}", "UpdateWork", "Work", "id", Operators},
		{"DELETE", "/api/v0/work/{id}", "DeleteWork", "Work", "id", Operators},
		{"GET", "/api/v0/live/{x...}", "DescribeHealth", "Region", "", Customers},
		{"POST", "/api/v0/live", "DescribeHealth", "Region", "", Customers},
		{"PATCH", "/{x...}", "DoAnything", "Region", "", Customers},
	} {
		rt.Handle(route, func(http.ResponseWriter, *http.Request) error { ran++; return nil })
	}
	h := rest.Observe(rest.Options{Log: quiet}, rt)
	attacks := map[string]func(*http.Request){
		"nothing": func(*http.Request) {},
		"headers": func(r *http.Request) {
			r.Header.Set("X-Amz-Account-Id", account)
			r.Header.Set("X-Amz-Caller-Arn", principal)
		},
		"basic": func(r *http.Request) { r.SetBasicAuth(testID, testSecret) },
		"bad signature": func(r *http.Request) {
			forge(t, r, client.Credentials{AccessKeyID: testID, SecretAccessKey: "x", Region: testRegion})
		},
		"unknown key": func(r *http.Request) {
			forge(t, r, client.Credentials{AccessKeyID: otherID, SecretAccessKey: testSecret, Region: testRegion})
		},
	}
	public := 0
	for _, route := range rt.Routes() {
		method := route.Method
		target := strings.NewReplacer("{id}", "1", "{x...}", "y").Replace(route.Path)
		for name, attack := range attacks {
			r := request(t, method, target, "")
			attack(r)
			before := ran
			w := serve(h, r)
			isPublic := method == "GET" && (strings.HasSuffix(target, "/live") || strings.HasSuffix(target, "/ready"))
			if isPublic {
				public++
			}
			if (ran != before) != isPublic || (w.Code == http.StatusForbidden) == isPublic {
				t.Errorf("%s with %s: %d, ran %v", route.pattern(), name, w.Code, ran != before)
			}
		}
		r := request(t, method, target, "")
		forge(t, r, creds)
		before := ran
		if w := serve(h, r); w.Code != http.StatusOK || ran != before+1 {
			t.Errorf("%s, signed: %d %s", route.pattern(), w.Code, w.Body)
		}
	}
	if public != 4*len(attacks) {
		t.Errorf("%d public requests; the exceptions are exactly four", public)
	}
}

func forge(t *testing.T, r *http.Request, c client.Credentials) {
	t.Helper()
	if err := client.Sign(r, nil, c, testTime); err != nil {
		t.Fatal(err)
	}
}

func TestPublicPathsAreExact(t *testing.T) {
	h := front(func(http.ResponseWriter, *http.Request) error { return nil }, quiet, testKeys(), nil)
	for target, want := range map[string]int{
		"/api/v0/live":            200,
		"/api/v0/live?x=1":        200,
		"/prod/api/v0/ready":      200,
		"/api/v0/live/":           403,
		"/api/v0//live":           403,
		"/api/v0/x/../live":       403,
		"/api/v0/%6cive":          403,
		"/api/v0/live%2f":         403,
		"/API/v0/live":            403,
		"/stage/api/v0/live":      403,
		"/prod/prod/api/v0/live":  403,
		"/api/v0/live;x":          403,
		"//api/v0/live":           403,
		"/api/v0/management/live": 403,
	} {
		r, err := received([]byte("GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		if w := serve(h, r); w.Code != want {
			t.Errorf("GET %s: %d, want %d", target, w.Code, want)
		}
	}
	for _, method := range []string{"POST", "HEAD", "OPTIONS", "get"} {
		if w := serve(h, httptest.NewRequest(method, "/api/v0/live", nil)); w.Code != 403 {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

func TestHandlersSeeIdentityAndNoClaims(t *testing.T) {
	var seen *http.Request
	var body string
	h := front(func(_ http.ResponseWriter, r *http.Request) error {
		b, err := io.ReadAll(r.Body)
		seen, body = r, string(b)
		return err
	}, quiet, testKeys(), nil)
	claims := []string{"X-Amz-Caller-Arn", "X-Amz-Account-Id", "X-Amz-User-Id", "X-Amz-Source-Ip", "X-Amz-Request-Id",
		"X-Amz-Security", "X-Atoll-Actor", "x-atoll-tenant", "X_Amz_Account_Id"}
	check := func(r *http.Request) {
		t.Helper()
		for _, n := range claims {
			if !strings.HasPrefix(n, "X-Amz-") {
				r.Header.Set(n, "forged") // not signed; arrives all the same
			}
		}
		r.Header.Set("X-Operation-Id", "op-7")
		r.Trailer = http.Header{"X-Amz-Account-Id": {"forged"}}
		seen = nil
		w := serve(h, r)
		if w.Code != 200 || seen == nil {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		id, ok := FromContext(seen.Context())
		want := Identity{Principal: principal, Account: account, AccessKeyID: testID, Privileged: true,
			RequestID: "op-7", Evidence: Evidence{Method: BySignature, Credential: testID}}
		if r.Header.Get("Authorization") == "" {
			want.Evidence.Method, want.Evidence.Until = ByPresigned, testTime.Add(15*time.Minute)
		}
		if !ok || id != want {
			t.Errorf("got %+v, want %+v", id, want)
		}
		for name := range seen.Header {
			if n := strings.ReplaceAll(strings.ToLower(name), "_", "-"); strings.HasPrefix(n, "x-amz") ||
				strings.HasPrefix(n, "x-atoll") || n == "authorization" {
				t.Errorf("the handler sees %s", name)
			}
		}
		if seen.Header.Get("If-Match") != `"1"` {
			t.Error("an ordinary header is gone")
		}
		if got := seen.URL.RawQuery + " " + seen.RequestURI; strings.Contains(got, "X-Amz") ||
			seen.URL.Query().Get("a") != "1 2" {
			t.Errorf("the handler sees the query %s", got)
		}
		if body != `{"x":1}` || seen.ContentLength != 7 || seen.Trailer != nil {
			t.Errorf("the handler reads %q, length %d, trailer %v", body, seen.ContentLength, seen.Trailer)
		}
	}
	build := func() *http.Request {
		r := request(t, "POST", "/x?a=1%202", `{"x":1}`)
		r.Header.Set("If-Match", `"1"`)
		for _, n := range claims {
			if strings.HasPrefix(n, "X-Amz-") {
				r.Header.Set(n, "forged") // signed, as some clients send them
			}
		}
		return r
	}
	r := build()
	sdkSign(t, r, `{"x":1}`, testTime)
	got, err := received(wire(t, r))
	if err != nil {
		t.Fatal(err)
	}
	check(got)
	r = sdkPresign(t, build(), `{"x":1}`, testTime)
	if got, err = received(wire(t, r)); err != nil {
		t.Fatal(err)
	}
	check(got)
}

func TestPublicHandlersSeeNoClaims(t *testing.T) {
	h := front(func(w http.ResponseWriter, r *http.Request) error {
		_, ok := FromContext(r.Context())
		_, err := fmt.Fprint(w, ok, len(r.Header))
		return err
	}, quiet, testKeys(), nil)
	r := httptest.NewRequest("GET", "/api/v0/live", nil)
	r.Header.Set("X-Amz-Account-Id", account)
	r.Header.Set("Authorization", "x")
	if w := serve(h, r); w.Body.String() != "false 0" {
		t.Errorf("got %s", w.Body)
	}
}

func TestOnlyPrivilegedAccountsMayDoAnything(t *testing.T) {
	keys := testKeys()
	key := keys[testID]
	key.Privileged = false
	keys[testID] = key
	ran := false
	h := front(func(http.ResponseWriter, *http.Request) error { ran = true; return nil }, quiet, keys, nil)
	r := request(t, "GET", "/x", "")
	forge(t, r, creds)
	w := serve(h, r)
	want := `{"kind":"Error","code":"not-privileged","reason":"the account 123456789012 is not privileged; an operator of the region can make it so","message":"the account 123456789012 is not privileged; an operator of the region can make it so"}` + "\n"
	if w.Code != 403 || ran || w.Body.String() != want ||
		w.Header().Get("x-amzn-ErrorType") != "AccessDeniedException" {
		t.Errorf("%d %v %s", w.Code, ran, w.Body)
	}
}

func TestDenialsAreLoggedAndCountedWithoutSecrets(t *testing.T) {
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	h := front(notFound, slog.New(slog.NewJSONHandler(&log, nil)), testKeys(), reg)
	r := request(t, "GET", "/x", "")
	forge(t, r, client.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, Region: testRegion,
		SessionToken: "TOKEN"})
	authorization := r.Header.Get("Authorization")
	w := serve(h, r)
	var line map[string]any
	if err := json.Unmarshal(log.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, &log)
	}
	if line["code"] != "unexpected-session-token" || line["access_key_id"] != "'"+testID+"'" ||
		line["level"] != "INFO" || line["operation_id"] != w.Header().Get("X-Operation-ID") {
		t.Errorf("log: %s", &log)
	}
	for _, secret := range []string{testSecret, "TOKEN", authorization, authorization[len(authorization)-64:]} {
		if strings.Contains(log.String()+w.Body.String(), secret) {
			t.Errorf("shown: %s", secret)
		}
	}
	serve(h, httptest.NewRequest("GET", "/y", nil))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				got[f.GetName()+" "+l.GetName()+" "+l.GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	want := map[string]float64{"access_denied_total code unexpected-session-token": 1,
		"access_denied_total code missing-authentication": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Every code has an answer, and no answer is without a code: a new one cannot
// be forgotten in the table, where it would panic.
func TestEveryRefusalHasAnAnswer(t *testing.T) {
	for code, a := range answers {
		e := refuse(code, "x")
		if e.Status != a.status || e.Type == "" || e.Status < 400 || strings.ToLower(e.Code) != e.Code {
			t.Errorf("%s: %+v", code, e)
		}
	}
}

func TestBodiesThatCannotBeHashed(t *testing.T) {
	h := front(notFound, quiet, testKeys(), nil)
	for name, tc := range map[string]struct {
		body   io.Reader
		length int64
		status int
		code   Code
	}{
		"declared too large": {strings.NewReader(""), MaxBody + 1, 413, BodyTooLarge},
		"turns out so":       {bytes.NewReader(make([]byte, MaxBody+1)), -1, 413, BodyTooLarge},
		"breaks off":         {io.MultiReader(strings.NewReader("x"), brokenReader{}), 5, 400, BodyIncomplete},
	} {
		r := request(t, "POST", "/x", "")
		r.Body, r.ContentLength = io.NopCloser(tc.body), 0
		sdkSign(t, r, "", testTime)
		r.ContentLength = tc.length
		w := serve(h, r)
		if w.Code != tc.status || !strings.Contains(w.Body.String(), string(tc.code)) ||
			w.Header().Get("x-amzn-ErrorType") == "" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Over real connections, with AWS's signer and our client's transport.
func TestOverTheWire(t *testing.T) {
	rt := NewRouter(Options{Identifier: &Verifier{Region: testRegion, Keys: testKeys()}, Log: quiet})
	handleEverything(rt, func(w http.ResponseWriter, r *http.Request) error {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		return rest.WriteJSON(w, 200, string(b))
	})
	for _, http2 := range []bool{false, true} {
		srv := httptest.NewUnstartedServer(rest.Observe(rest.Options{Log: quiet}, rt))
		srv.EnableHTTP2 = http2
		srv.StartTLS()
		c := &http.Client{Transport: &client.SigningTransport{Credentials: creds, Base: srv.Client().Transport}}
		for _, target := range targets {
			res, err := c.Post(srv.URL+target, "application/json", strings.NewReader(`{"x":1}`))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != 200 && !strings.Contains(target, "//") ||
				(res.ProtoMajor == 2) != http2 {
				t.Errorf("%s over %s: %d %s %v", target, res.Proto, res.StatusCode, b, err)
			}
		}
		c.CloseIdleConnections()
		srv.Close()
	}
}
