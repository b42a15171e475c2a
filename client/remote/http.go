// Package remote calls one service of a region over HTTP: with the caller's identity and time limits,
// with retries of requests that may be sent twice, and with watches that continue after a broken
// stream. The clients of the Platform API, of CLM and of Maestro share it.
//
// It is a tool: api and internal packages must not import it.
package remote

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

// Document is a JSON document with its ETag, as a service sent it.
type Document struct {
	JSON []byte
	ETag string
	// NotModified: the service answered 304, because the document has the ETag of the request's If-None-Match. JSON is
	// empty.
	NotModified bool
}

// Service sends HTTP requests to one service, within time limits and with retries.
type Service struct {
	Name string // for messages
	base *url.URL
	http *http.Client

	// Prepare adds headers to a request before each attempt: a signature, the actor. Its error ends the call.
	Prepare func(r *http.Request, body []byte) error

	AnswerTimeout time.Duration // of one attempt, until the answer begins
	bodyTimeout   time.Duration // from the beginning of the answer to its end
	Budget        time.Duration // of all attempts together, until the last answer begins
	MaxRetryAfter time.Duration // Do does not retry after an answer with a longer Retry-After
}

// SenderError is an error of Service.Prepare that a later attempt has, too: the sender cannot prove its identity any
// more.
type SenderError struct{ Err error }

func (e *SenderError) Error() string { return e.Err.Error() }

func (e *SenderError) Unwrap() error { return e.Err }

// Request is one call.
type Request struct {
	Method        string
	Path          string // escaped, below base
	Query         url.Values
	Header        http.Header
	Body          []byte
	AnswerTimeout time.Duration // until the answer begins, if that may take longer than the caller's headers
}

// maxAnswer bounds an answer in memory: 500 bundles of 500 KiB.
const maxAnswer = 256 << 20

// New returns a Service with connections of its own.
func New(service, endpoint string, config *tls.Config) (*Service, error) {
	base, err := url.Parse(endpoint)
	if err != nil || base.Host == "" || (base.Scheme != "https" && base.Scheme != "http") {
		return nil, fmt.Errorf("%s: the address %q is not like https://HOST:PORT", service, endpoint)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	if config != nil {
		config = config.Clone()
	}
	return &Service{
		Name: service,
		base: base,
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
		AnswerTimeout: 10 * time.Second,
		bodyTimeout:   30 * time.Second,
		Budget:        20 * time.Second,
		MaxRetryAfter: 10 * time.Second,
	}, nil
}

func (c *Service) Close() { c.http.CloseIdleConnections() }

// Do sends a request until it is answered, or may not be sent again. See retry.
func (c *Service) Do(ctx context.Context, r Request) (Document, http.Header, error) {
	var doc Document
	var header http.Header
	err := c.retry(ctx, r.repeatability(), func(left time.Duration) error {
		resp, err := c.Open(ctx, r, max(left, r.AnswerTimeout))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		buf := bytes.NewBuffer(make([]byte, 0, max(0, min(resp.ContentLength+bytes.MinRead, 8<<20))))
		if _, err := buf.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1)); err != nil {
			return NewUnreachableError(c.Name, err)
		}
		if buf.Len() > maxAnswer {
			return fmt.Errorf("%s sent more than %d bytes", c.Name, maxAnswer)
		}
		header = resp.Header
		doc = Document{JSON: buf.Bytes(), ETag: header.Get("Etag"), NotModified: resp.StatusCode == http.StatusNotModified}
		return nil
	})
	return doc, header, err
}

// Open makes one attempt and returns an answer with a status of 2xx, or of 304 to a request with If-None-Match; any
// other is an *Error. wait bounds the time until the answer begins. The caller closes the body; reading a body that is
// no stream fails at a time limit.
func (c *Service) Open(ctx context.Context, r Request, wait time.Duration) (*http.Response, error) {
	u := *c.base
	u.RawQuery = r.Query.Encode()
	target := u.Scheme + "://" + u.Host + u.EscapedPath() + r.Path
	if u.RawQuery != "" {
		target += "?" + u.RawQuery
	}
	ctx, cancel := context.WithCancelCause(ctx)
	limit := time.AfterFunc(wait, func() { cancel(ErrNoAnswer) })
	hr, err := http.NewRequestWithContext(ctx, r.Method, target, bytes.NewReader(r.Body))
	if err != nil {
		limit.Stop()
		cancel(nil)
		return nil, fmt.Errorf("calling %s: %w", c.Name, err)
	}
	for k, v := range r.Header {
		hr.Header[k] = v
	}
	if len(r.Body) > 0 && hr.Header.Get("Content-Type") == "" {
		hr.Header.Set("Content-Type", "application/json")
	}
	if c.Prepare != nil {
		if err := c.Prepare(hr, r.Body); err != nil {
			limit.Stop()
			cancel(nil)
			return nil, fmt.Errorf("calling %s: %w", c.Name, err)
		}
	}
	resp, err := c.http.Do(hr)
	if err != nil {
		limit.Stop()
		cause := context.Cause(ctx)
		cancel(nil)
		return nil, c.transportError(cause, err)
	}
	isStream := strings.Contains(resp.Header.Get("Content-Type"), "stream=watch")
	if isStream || !limit.Reset(c.bodyTimeout) {
		limit.Stop()
	}
	resp.Body = &limitedBody{resp.Body, func() { limit.Stop(); cancel(nil) }}
	isUnmodified := resp.StatusCode == http.StatusNotModified && r.Header.Get("If-None-Match") != ""
	if (resp.StatusCode < 200 || resp.StatusCode > 299) && !isUnmodified {
		defer resp.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return nil, errorOf(c.Name, resp.StatusCode, resp.Header, body)
	}
	return resp, nil
}

// transportError turns an error of the transport into an Error. It returns the cause unchanged
// when the caller has cancelled the call.
func (c *Service) transportError(cause, err error) error {
	if cause != nil && !errors.Is(cause, ErrNoAnswer) {
		return fmt.Errorf("calling %s: %w", c.Name, cause)
	}
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err // without the URL: the query of a presigned request is secret
	}
	if cause != nil {
		err = cause
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return NewNotSentError(c.Name, err)
	}
	return NewUnreachableError(c.Name, err)
}

// ErrNoAnswer is the reason when a service has not answered within the time limit.
var ErrNoAnswer = errors.New("no answer in time")

// limitedBody is the body of an answer. Its Close also ends the request's time limit and its context.
type limitedBody struct {
	io.ReadCloser
	releaseContext func()
}

func (b *limitedBody) Close() error {
	err := b.ReadCloser.Close()
	b.releaseContext()
	return err
}

// Repeatability determines whether a request may be sent again when it is not known whether
// the service has executed it.
type Repeatability uint8

const (
	NotRepeatable Repeatability = iota // a second execution could have another result than the first
	Repeatable                         // a second execution has the same result
)

// repeatability returns whether the request may be sent again.
func (r Request) repeatability() Repeatability {
	again := false
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		again = true
	case http.MethodPut, http.MethodDelete:
		again = r.Header.Get("If-Match") == "" // a second time would be refused
	case http.MethodPost:
		again = r.Header.Get("Idempotency-Key") != ""
	}
	if again {
		return Repeatable
	}
	return NotRepeatable
}

// retry calls f until it succeeds, its error is not retryable, or the budget is spent.
// After an answer with Retry-After it waits that long. After an unclear outcome it calls
// f again only when the request may be sent again.
func (c *Service) retry(ctx context.Context, of Repeatability, f func(left time.Duration) error) error {
	deadline := time.Now().Add(c.Budget)
	for attempt := 0; ; attempt++ {
		left := c.AnswerTimeout // the first attempt is always made
		if attempt > 0 {
			left = min(left, time.Until(deadline))
		}
		err := f(left)
		e, ok := errors.AsType[*Error](err)
		if !ok || !e.IsRetryable(of) {
			return err
		}
		wait := Backoff(attempt)
		if e.Code != CodeUnreachable && e.RetryAfter > 0 {
			wait += e.RetryAfter
		}
		if wait > c.MaxRetryAfter || time.Now().Add(wait).After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// IsRetryable reports whether a request that failed with e may be sent once more.
func (e *Error) IsRetryable(of Repeatability) bool {
	repeatable := of == Repeatable
	switch {
	case e.Unsent:
		return true
	case e.Code == CodeUnreachable:
		return repeatable
	case e.Status == http.StatusTooManyRequests:
		return true
	case e.Code == codeSignatureUsed:
		// net/http has sent the same signed bytes twice, on two connections; the next attempt is signed anew.
		return repeatable
	case e.Status == http.StatusServiceUnavailable:
		return repeatable || e.RetryAfter > 0
	case e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout:
		return repeatable
	}
	return false
}

// codeSignatureUsed is the Platform API's code for a request that it received before.
const codeSignatureUsed = "signature-used"

// Backoff returns the pause after an attempt, which grows from 50 ms to 2 s. Half of it is random, so
// that clients that failed at the same time do not retry at the same time.
func Backoff(attempt int) time.Duration {
	d := min(50*time.Millisecond<<min(attempt, 6), 2*time.Second)
	return d/2 + rand.N(d/2)
}

// ListOptions select a page of a list. For absent members the service has defaults.
type ListOptions struct {
	Page, Size              int
	Search, OrderBy, Fields string
}

func (o ListOptions) Values() url.Values {
	q := url.Values{}
	for name, n := range map[string]int{"page": o.Page, "size": o.Size} {
		if n > 0 {
			q.Set(name, strconv.Itoa(n))
		}
	}
	SetNonEmpty(q, "search", o.Search)
	SetNonEmpty(q, "orderBy", o.OrderBy)
	SetNonEmpty(q, "fields", o.Fields)
	return q
}

// SetNonEmpty sets a query parameter unless its value is empty.
func SetNonEmpty(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// IfMatchHeader returns the header of a write that only changes the version with this etag; nil for an empty etag.
func IfMatchHeader(etag string) http.Header {
	if etag == "" {
		return nil
	}
	return http.Header{"If-Match": {etag}}
}

// SearchEqual returns the search text, for ListOptions.Search, that selects documents whose field has the value.
func SearchEqual(field, value string) string {
	return field + "='" + strings.ReplaceAll(value, "'", "''") + "'"
}

// MergePatchHeader returns the header of a JSON merge patch; with an etag the patch only changes that version.
func MergePatchHeader(etag string) http.Header {
	h := http.Header{"Content-Type": {"application/merge-patch+json"}}
	if etag != "" {
		h.Set("If-Match", etag)
	}
	return h
}
