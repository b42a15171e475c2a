package access

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"atoll.dev/internal/rest"
	"github.com/prometheus/client_golang/prometheus"
)

// Public is a request that needs no identity: one method, one exact path.
type Public struct{ Method, Path string }

// PublicPaths are all there are: whether the region lives, and is ready.
var PublicPaths = []Public{
	{http.MethodGet, "/api/v0/live"},
	{http.MethodGet, "/api/v0/ready"},
	{http.MethodGet, "/prod/api/v0/live"},
	{http.MethodGet, "/prod/api/v0/ready"},
}

// An Authenticator stands before the handlers of a front.
type Authenticator struct {
	Verifier *Verifier
	// Public lists what needs no identity; usually PublicPaths. Handlers of
	// these run without one.
	Public []Public
	Log    *slog.Logger // default slog.Default()
	// Metrics, when set, gets access_denied_total by code.
	Metrics prometheus.Registerer
}

// Authenticate returns next behind a: a handler that
//
//  1. lets the public paths through, without identity;
//  2. verifies the signature of everything else, over the request as it was sent;
//  3. removes what a caller could claim to be from the headers, and the
//     signature itself, so that nothing behind can use or log them;
//  4. decides: privileged accounts may do all, others nothing yet;
//  5. calls next with the Identity in the context and the body in memory.
//
// It is to run inside rest.Observe, which answers its errors and gives
// requests their ids. It panics when its metric is registered already.
func (a Authenticator) Authenticate(next http.Handler) http.Handler {
	log := a.Log
	if log == nil {
		log = slog.Default()
	}
	public := make(map[Public]bool, len(a.Public))
	for _, p := range a.Public {
		public[p] = true
	}
	denied := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "access_denied_total", Help: "Requests that were refused before a handler, by code.",
	}, []string{"code"})
	if a.Metrics != nil {
		a.Metrics.MustRegister(denied)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The path as sent: an encoded one is not public.
		if m, ok := messageOf(r); ok && public[Public{r.Method, m.path}] {
			next.ServeHTTP(w, withoutClaims(r, nil))
			return
		}
		keyID, key, body, err := a.Verifier.verify(r)
		if err == nil {
			err = authorize(key)
		}
		if err != nil {
			e := err.(*rest.Error) // verify and authorize return no other
			denied.WithLabelValues(e.Code).Inc()
			if e.Status < http.StatusInternalServerError { // Fail logs the others
				log.LogAttrs(r.Context(), slog.LevelInfo, "access denied",
					slog.String("operation_id", rest.OperationID(r.Context())),
					slog.String("code", e.Code), slog.String("access_key_id", quoted(keyID)),
					slog.String("account", key.Account), slog.String("principal", key.Principal),
					slog.String("method", r.Method), slog.String("path", r.URL.Path),
					slog.String("remote", r.RemoteAddr))
			}
			rest.Fail(w, r, e)
			return
		}
		next.ServeHTTP(w, withoutClaims(r, body).WithContext(WithIdentity(r.Context(), Identity{
			Principal: key.Principal, Account: key.Account, AccessKeyID: key.AccessKeyID,
			Privileged: key.Privileged, RequestID: rest.OperationID(r.Context()),
		})))
	})
}

// authorize decides what a verified caller may do. Until there are policies,
// that is everything or nothing.
func authorize(key Key) error {
	if !key.Privileged {
		return refuse(NotPrivileged, "the account %s is not privileged; an operator of the region can make it so",
			key.Account)
	}
	return nil
}

// withoutClaims returns the request for handlers: without signature, without
// headers that say who calls, and with body, unless it is nil, in place of
// what was read.
func withoutClaims(r *http.Request, body []byte) *http.Request {
	clean := r.WithContext(r.Context())
	clean.Header = make(http.Header, len(r.Header))
	for name, values := range r.Header {
		if !claimsIdentity(name) {
			clean.Header[name] = values
		}
	}
	if kept := withoutParams(r.URL.RawQuery); kept != r.URL.RawQuery {
		u := *r.URL
		u.RawQuery = kept
		clean.URL = &u
		clean.RequestURI = u.RequestURI()
	}
	if body != nil {
		clean.Body = io.NopCloser(bytes.NewReader(body))
		clean.ContentLength = int64(len(body))
		clean.TransferEncoding = nil
	}
	clean.Trailer = nil // not signed
	return clean
}

// claimsIdentity says whether a header is one by which a caller could say who
// it is. All x-amz-* headers are, beyond the five that API Gateway sets, as
// none has a meaning behind Authenticate.
func claimsIdentity(name string) bool {
	// Some servers behind us take _ for -.
	n := strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return n == "authorization" || strings.HasPrefix(n, "x-amz-") || strings.HasPrefix(n, "x-atoll-")
}

// withoutParams removes the parameters of a presigned request from a query.
func withoutParams(raw string) string {
	var kept []string
	for part := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(part, "=")
		if n, err := url.QueryUnescape(name); err == nil && strings.HasPrefix(n, "X-Amz-") {
			continue
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, "&")
}
