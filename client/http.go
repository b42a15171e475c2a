package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Document is a JSON document with its entity tag, as a service sent it.
type Document struct {
	JSON []byte
	ETag string
}

// caller makes HTTP calls to one service: with its identity, within its time
// limits, again when that is safe.
type caller struct {
	service string // for messages
	base    *url.URL
	http    *http.Client

	// prepare adds what every request carries, at each attempt anew: a
	// signature, the actor.
	prepare func(r *http.Request, body []byte) error

	headers  time.Duration // until the answer begins
	body     time.Duration // from then until it is complete
	budget   time.Duration // until the answer begins, with all further attempts
	patience time.Duration // a service that asks for more is not asked again
}

// request is one call.
type request struct {
	method string
	path   string // escaped, below base
	query  url.Values
	header http.Header
	body   []byte
	wait   time.Duration // until the answer begins, if that may take longer than the caller's headers
}

// maxAnswer bounds what is read into memory: 500 bundles of 500 KiB.
const maxAnswer = 256 << 20

// newCaller makes a caller with connections of its own.
func newCaller(service, endpoint string, config *tls.Config) (*caller, error) {
	base, err := url.Parse(endpoint)
	if err != nil || base.Host == "" || (base.Scheme != "https" && base.Scheme != "http") {
		return nil, fmt.Errorf("%s: the address %q is not like https://HOST:PORT", service, endpoint)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	if config != nil {
		config = config.Clone()
	}
	return &caller{
		service: service,
		base:    base,
		http: &http.Client{
			Transport: &http.Transport{
				DialContext: (&net.Dialer{Timeout: 1500 * time.Millisecond,
					KeepAlive: 15 * time.Second}).DialContext,
				TLSClientConfig:     config,
				TLSHandshakeTimeout: 1500 * time.Millisecond,
				MaxIdleConnsPerHost: 256,
				IdleConnTimeout:     90 * time.Second,
				DisableCompression:  true,
			},
			// A redirect would send a signed request elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		headers:  10 * time.Second,
		body:     30 * time.Second,
		budget:   20 * time.Second,
		patience: 10 * time.Second,
	}, nil
}

func (c *caller) close() { c.http.CloseIdleConnections() }

// do calls until there is an answer that it makes no sense, or is not safe, to
// ask for again.
func (c *caller) do(ctx context.Context, r request) (Document, http.Header, error) {
	var doc Document
	var header http.Header
	err := c.again(ctx, r.repeatable(), func(left time.Duration) error {
		resp, err := c.open(ctx, r, max(left, r.wait))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		buf := bytes.NewBuffer(make([]byte, 0, max(0, min(resp.ContentLength+bytes.MinRead, 8<<20))))
		if _, err := buf.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1)); err != nil {
			return unreachable(c.service, false, err)
		}
		if buf.Len() > maxAnswer {
			return fmt.Errorf("%s sent more than %d bytes", c.service, maxAnswer)
		}
		header = resp.Header
		doc = Document{JSON: buf.Bytes(), ETag: header.Get("Etag")}
		return nil
	})
	return doc, header, err
}

// open makes one attempt, which may take so long until the answer begins, and
// returns the answer when its status is 2xx. Its body ends when it is closed,
// or at the time limit unless it is a stream.
func (c *caller) open(ctx context.Context, r request, wait time.Duration) (*http.Response, error) {
	u := *c.base
	u.RawQuery = r.query.Encode()
	target := u.Scheme + "://" + u.Host + u.EscapedPath() + r.path
	if u.RawQuery != "" {
		target += "?" + u.RawQuery
	}
	ctx, cancel := context.WithCancelCause(ctx)
	limit := time.AfterFunc(wait, func() { cancel(errNoAnswer) })
	hr, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		limit.Stop()
		cancel(nil)
		return nil, fmt.Errorf("calling %s: %w", c.service, err)
	}
	for k, v := range r.header {
		hr.Header[k] = v
	}
	if len(r.body) > 0 && hr.Header.Get("Content-Type") == "" {
		hr.Header.Set("Content-Type", "application/json")
	}
	if c.prepare != nil {
		if err := c.prepare(hr, r.body); err != nil {
			limit.Stop()
			cancel(nil)
			return nil, fmt.Errorf("calling %s: %w", c.service, err)
		}
	}
	resp, err := c.http.Do(hr)
	if err != nil {
		limit.Stop()
		cause := context.Cause(ctx)
		cancel(nil)
		return nil, c.failure(cause, err)
	}
	isStream := strings.Contains(resp.Header.Get("Content-Type"), "stream=watch")
	if isStream || !limit.Reset(c.body) {
		limit.Stop()
	}
	resp.Body = &limitedBody{resp.Body, func() { limit.Stop(); cancel(nil) }}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return nil, errorOf(c.service, resp.StatusCode, resp.Header, body)
	}
	return resp, nil
}

// failure turns an error of the transport into an Error, but for the caller's
// own cancellation.
func (c *caller) failure(cause, err error) error {
	if cause != nil && !errors.Is(cause, errNoAnswer) {
		return fmt.Errorf("calling %s: %w", c.service, cause)
	}
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err // without the URL, which a presigned query makes secret
	}
	if cause != nil {
		err = cause
	}
	op, isOp := errors.AsType[*net.OpError](err)
	return unreachable(c.service, isOp && op.Op == "dial", err)
}

var errNoAnswer = errors.New("no answer in time")

// limitedBody releases the request's context when it is closed.
type limitedBody struct {
	io.ReadCloser
	release func()
}

func (b *limitedBody) Close() error {
	err := b.ReadCloser.Close()
	b.release()
	return err
}

// repeatable says whether the request may be sent again when nobody knows
// whether it took effect.
func (r request) repeatable() bool {
	switch r.method {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPut, http.MethodDelete:
		return r.header.Get("If-Match") == "" // a second time would be refused
	case http.MethodPost:
		return r.header.Get("Idempotency-Key") != ""
	}
	return false
}

// again calls f until it succeeds, or fails for good, or the budget is spent.
// A service that asks for patience (429, 503 with Retry-After) gets it; one
// that answers badly is asked again only when the request is repeatable.
func (c *caller) again(ctx context.Context, repeatable bool, f func(left time.Duration) error) error {
	deadline := time.Now().Add(c.budget)
	for attempt := 0; ; attempt++ {
		left := c.headers // the first attempt is always made
		if attempt > 0 {
			left = min(left, time.Until(deadline))
		}
		err := f(left)
		e, ok := errors.AsType[*Error](err)
		if !ok || !e.retryable(repeatable) {
			return err
		}
		wait := backoff(attempt)
		if e.Code != CodeUnreachable && e.RetryAfter > 0 {
			wait += e.RetryAfter
		}
		if wait > c.patience || time.Now().Add(wait).After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

func (e *Error) retryable(repeatable bool) bool {
	switch {
	case e.Unsent:
		return true
	case e.Code == CodeUnreachable:
		return repeatable
	case e.Status == http.StatusTooManyRequests:
		return true
	case e.Status == http.StatusServiceUnavailable:
		return repeatable || e.RetryAfter > 0
	case e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout:
		return repeatable
	}
	return false
}

// backoff grows from 50 ms to 2 s; half of it is chance, so that clients that
// failed together do not come back together.
func backoff(attempt int) time.Duration {
	d := min(50*time.Millisecond<<min(attempt, 6), 2*time.Second)
	return d/2 + rand.N(d/2)
}

// ListOptions select a page of a list. Absent members are the service's
// defaults.
type ListOptions struct {
	Page, Size              int
	Search, OrderBy, Fields string
}

func (o ListOptions) query() url.Values {
	q := url.Values{}
	for name, n := range map[string]int{"page": o.Page, "size": o.Size} {
		if n > 0 {
			q.Set(name, strconv.Itoa(n))
		}
	}
	set(q, "search", o.Search)
	set(q, "orderBy", o.OrderBy)
	set(q, "fields", o.Fields)
	return q
}

// set adds a parameter that has a value.
func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// ifMatch is the header of a write that insists on a version.
func ifMatch(etag string) http.Header {
	if etag == "" {
		return nil
	}
	return http.Header{"If-Match": {etag}}
}
