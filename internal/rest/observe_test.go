package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func do(h http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var errDown = errors.New("database is down")

func TestErrorsHaveStatusAndCode(t *testing.T) {
	var log bytes.Buffer
	mux := NewMux()
	for pattern, err := range map[string]error{
		"GET /typed": fmt.Errorf("getting: %w", Errorf(409, "exists", "it exists").Because(errors.New("SECRET"))),
		"GET /fields": &Error{Status: 422, Code: "invalid", Reason: "wrong", Fields: []FieldError{
			{Field: "spec.x", Message: "is bad"}}},
		"GET /aws":     &Error{Status: 403, Code: "denied", Reason: "no", Type: "AccessDeniedException"},
		"GET /down":    fmt.Errorf("reading: %w", errDown),
		"GET /unknown": errors.New("SECRET"),
		"GET /late":    context.DeadlineExceeded,
		"GET /absent":  Errorf(501, "absent", "not in this version"),
		"GET /big":     &http.MaxBytesError{Limit: 5},
	} {
		mux.Handle(pattern, func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("ETag", `"1"`)
			return err
		})
	}
	mux.Handle("GET /panic", func(http.ResponseWriter, *http.Request) error { panic("SECRET") })
	h := Observe(Options{
		Log: slog.New(slog.NewJSONHandler(&log, nil)),
		Classify: func(err error) *Error {
			if errors.Is(err, errDown) {
				return &Error{Status: 503, Code: "unavailable", Reason: "the store is down",
					RetryAfter: 1500 * time.Millisecond, Err: err}
			}
			return nil
		},
	}, mux)

	for _, tc := range []struct {
		target string
		status int
		body   string
		logged int
	}{
		{"/typed", 409, `{"kind":"Error","code":"exists","reason":"it exists"}`, 0},
		{"/fields", 422,
			`{"kind":"Error","code":"invalid","reason":"wrong","errors":[{"field":"spec.x","message":"is bad"}]}`, 0},
		{"/aws", 403, `{"kind":"Error","code":"denied","reason":"no","message":"no"}`, 0},
		{"/down", 503, `{"kind":"Error","code":"unavailable","reason":"the store is down"}`, 1},
		{"/unknown", 500,
			`{"kind":"Error","code":"internal-error","reason":"internal error; the region's log has it under ` +
				`operation id op-1"}`, 1},
		{"/panic", 500,
			`{"kind":"Error","code":"internal-error","reason":"internal error; the region's log has it under ` +
				`operation id op-1"}`, 1},
		{"/late", 504, `{"kind":"Error","code":"timeout","reason":"the request took too long; try again"}`, 1},
		{"/big", 413,
			`{"kind":"Error","code":"body-too-large","reason":"the request body is larger than 5 bytes; send less"}`,
			0},
		{"/absent", 501, `{"kind":"Error","code":"absent","reason":"not in this version"}`, 1},
		{"/nowhere", 404, `{"kind":"Error","code":"not-found","reason":"there is nothing at /nowhere"}`, 0},
	} {
		log.Reset()
		w := do(h, "GET", tc.target, "X-Operation-ID", "op-1")
		if diff := cmp.Diff(tc.body+"\n", w.Body.String()); w.Code != tc.status || diff != "" {
			t.Errorf("%s: %d %s", tc.target, w.Code, diff)
		}
		if got := w.Header().Get("ETag"); got != "" {
			t.Errorf("%s: the error carries the ETag %s", tc.target, got)
		}
		if got := strings.Count(log.String(), "request failed"); got != tc.logged {
			t.Errorf("%s: logged %d times, want %d:\n%s", tc.target, got, tc.logged, &log)
		}
		if got := w.Header().Get("X-Operation-ID"); got != "op-1" {
			t.Errorf("%s: operation id %q", tc.target, got)
		}
	}
	for target, level := range map[string]string{"/down": "WARN", "/late": "WARN", "/unknown": "ERROR",
		"/absent": "INFO"} {
		log.Reset()
		if do(h, "GET", target); !strings.Contains(log.String(), `"level":"`+level+`"`) {
			t.Errorf("%s is not logged as %s: %s", target, level, &log)
		}
	}
	if got := do(h, "GET", "/down").Header().Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After %q", got)
	}
	if got := do(h, "GET", "/aws").Header().Get("x-amzn-ErrorType"); got != "AccessDeniedException" {
		t.Errorf("x-amzn-ErrorType %q", got)
	}
	if log.Reset(); !strings.Contains(func() string { do(h, "GET", "/panic"); return log.String() }(),
		"observe_test.go") {
		t.Errorf("a panic is logged without its stack: %s", &log)
	}
	w := do(h, "PUT", "/typed")
	if w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("PUT: %d, Allow %q", w.Code, w.Header().Get("Allow"))
	}
}

func TestAFailedAnswerClosesItsConnection(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("late") },
		"panic": func() error { panic("late") },
	} {
		t.Run(name, func(t *testing.T) {
			mux := NewMux()
			mux.Handle("GET /", func(w http.ResponseWriter, _ *http.Request) error {
				_, _ = io.WriteString(w, `{"half":`)
				_ = http.NewResponseController(w).Flush()
				return fail()
			})
			srv := httptest.NewServer(Observe(Options{Log: slog.New(slog.DiscardHandler)}, mux))
			defer srv.Close()
			res, err := http.Get(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("the client took %q for whole", b)
			}
		})
	}
}

func TestValidOperationIDsAreKept(t *testing.T) {
	var seen string
	mux := NewMux()
	mux.Handle("GET /", func(_ http.ResponseWriter, r *http.Request) error {
		seen = OperationID(r.Context())
		return nil
	})
	h := Observe(Options{IDHeaders: []string{"X-Request-Id", "X-Operation-ID"}}, mux)
	for _, tc := range []struct {
		id   string
		kept bool
	}{{"abc-1.2:3_4=", true}, {"", false}, {"a b", false}, {"a\"b", false}, {strings.Repeat("x", 129), false}} {
		w := do(h, "GET", "/", "X-Operation-ID", tc.id)
		if (seen == tc.id) != tc.kept || seen == "" {
			t.Errorf("%q became %q", tc.id, seen)
		}
		for _, n := range []string{"X-Request-Id", "X-Operation-ID"} {
			if got := w.Header().Get(n); got != seen {
				t.Errorf("%s is %q, want %q", n, got, seen)
			}
		}
	}
}

func TestTheAccessLogHasNoQuery(t *testing.T) {
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	mux := NewMux()
	mux.Handle("GET /things/{id}", func(http.ResponseWriter, *http.Request) error { return nil })
	h := Observe(Options{Log: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: reg}, mux)
	do(h, "GET", "/things/7?X-Amz-Signature=SECRET")
	var line map[string]any
	if err := json.Unmarshal(log.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if line["route"] != "GET /things/{id}" || line["status"] != 200.0 || strings.Contains(log.String(), "SECRET") {
		t.Errorf("log: %s", &log)
	}
	do(h, "BREW", "/nowhere")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(families)
	for _, want := range []string{`GET /things/{id}`, `other`, `404`, `none`} {
		if !strings.Contains(got, want) {
			t.Errorf("metrics lack %s:\n%s", want, got)
		}
	}
}

func TestRoutesAreListed(t *testing.T) {
	m := NewMux()
	m.Handle("PUT /b", answerNothing)
	m.Handle("GET /a", answerNothing)
	if diff := cmp.Diff([]string{"GET /a", "PUT /b"}, m.Routes()); diff != "" {
		t.Error(diff)
	}
}

func answerNothing(http.ResponseWriter, *http.Request) error { return nil }
