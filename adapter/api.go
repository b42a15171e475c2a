package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// apiClient calls CLM for a task: with retries, a bearer token and default
// headers. It is shared by executions.
type apiClient struct {
	doer   Doer
	config APIConfig
	base   *url.URL
	now    func() time.Time
	// noRetries makes each call once.
	noRetries bool

	mu     sync.Mutex
	token  string
	readAt time.Time
}

// answer is the answer to a call.
type answer struct {
	url    string
	status int
	body   []byte
	date   time.Time // the Date header; zero without one
}

// apiRequest is a call with its templates rendered.
type apiRequest struct {
	call    *call
	url     *url.URL
	headers http.Header
	body    []byte
}

// APIError is a call that failed: without an answer, or with a status from 300 on.
type APIError struct {
	Method, URL string
	Status      int    // 0 when there was no answer
	Code        string // of problem+json, as HYPERFLEET-NTF-001
	Detail      string
	Attempts    int
	Err         error
}

func (e *APIError) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("%s %s: %v (%d attempts)", e.Method, e.URL, e.Err, e.Attempts)
	}
	s := fmt.Sprintf("%s %s: %d %s", e.Method, e.URL, e.Status, http.StatusText(e.Status))
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

func (e *APIError) Unwrap() error { return e.Err }

// isResourceMissing reports whether CLM knows the route, but not the resource. A route that it does not know is a
// mistake in the config.
func (e *APIError) isResourceMissing() bool {
	return e.Status == http.StatusNotFound && e.Code != "" && !strings.HasSuffix(e.Code, "NTF-000")
}

const maxAnswer = 16 << 20 // bytes

func newAPIClient(o Options) (*apiClient, error) {
	base, err := url.Parse(strings.TrimSuffix(o.Config.Clients.API.BaseURL, "/"))
	if err != nil {
		return nil, fmt.Errorf("clients.hyperfleet_api.base_url: %w", err)
	}
	return &apiClient{doer: o.API, config: o.Config.Clients.API, base: base, now: o.Now, noRetries: o.noRetries}, nil
}

// apiPath is the path of CLM's API.
func (a *apiClient) apiPath() string { return "/api/hyperfleet/" + a.config.Version }

// resolve makes a URL of a task absolute: a path below api/ is relative to the server, any other
// path to the API.
func (a *apiClient) resolve(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		return nil, err
	}
	if u.IsAbs() {
		return u, nil
	}
	if u.Host != "" || u.Opaque != "" {
		return nil, fmt.Errorf("%q is no path", text)
	}
	clean := strings.TrimPrefix(path.Clean("/"+u.Path), "/")
	if clean != "api" && !strings.HasPrefix(clean, "api/") {
		clean = strings.TrimPrefix(path.Join(a.apiPath(), clean), "/")
	}
	out := *a.base
	out.Path, out.RawPath = strings.TrimSuffix(a.base.Path, "/")+"/"+clean, ""
	out.RawQuery = u.RawQuery
	return &out, nil
}

// do renders and makes a call. The error is an *APIError unless the call could
// not be rendered.
func (a *apiClient) do(ctx context.Context, c *call, scope map[string]any) (*answer, error) {
	r, err := a.render(c, scope)
	if err != nil {
		return nil, err
	}
	return a.send(ctx, r)
}

// render renders a call's templates.
func (a *apiClient) render(c *call, scope map[string]any) (r apiRequest, err error) {
	address, err := c.url.render(scope)
	if err != nil {
		return r, fmt.Errorf("url: %w", err)
	}
	body, err := c.body.render(scope)
	if err != nil {
		return r, fmt.Errorf("body: %w", err)
	}
	headers := http.Header{}
	for _, h := range c.headers {
		value, err := h.value.render(scope)
		if err != nil {
			return r, fmt.Errorf("header %s: %w", h.name, err)
		}
		headers.Set(h.name, value)
	}
	u, err := a.resolve(address)
	if err != nil {
		return r, fmt.Errorf("url: %w", err)
	}
	return apiRequest{c, u, headers, []byte(body)}, nil
}

// send makes a call, and repeats it when that may help. The error is an
// *APIError; the answer is nil when there was none.
func (a *apiClient) send(ctx context.Context, r apiRequest) (*answer, error) {
	c, u := r.call, r.url
	if a.doer == nil {
		return nil, &APIError{Method: c.method, URL: u.String(), Err: errors.New("the adapter has no client of CLM")}
	}
	attempts, timeout := c.attempts, c.timeout
	setDefault(&attempts, max(a.config.RetryAttempts, 1))
	setDefault(&timeout, a.config.Timeout)
	for n := 1; ; n++ {
		out, wait, err := a.attempt(ctx, r, timeout)
		if err == nil && out.status < 300 {
			return out, nil
		}
		failure := &APIError{Method: c.method, URL: u.String(), Attempts: n, Err: err}
		if out != nil {
			failure.Status = out.status
			failure.Code, failure.Detail = decodeProblem(out.body)
		}
		if a.noRetries || n >= attempts || ctx.Err() != nil || !mayRetry(c.method, failure) {
			return out, failure
		}
		select {
		case <-ctx.Done():
			return out, failure
		case <-time.After(max(wait, a.retryPause(c, n))):
		}
	}
}

// mayRetry reports whether to retry a failed call: not when the answer would be the same, and a POST
// not when the server may have executed the first attempt.
func mayRetry(method string, e *APIError) bool {
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		return true
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return method != http.MethodPost
	case 0:
		op, _ := errors.AsType[*net.OpError](e.Err)
		return method != http.MethodPost || op != nil && op.Op == "dial"
	}
	return false
}

// retryPause returns how long to wait after the nth attempt.
func (a *apiClient) retryPause(c *call, n int) time.Duration {
	backoff := c.backoff
	setDefaultText(&backoff, a.config.RetryBackoff)
	d := a.config.BaseDelay
	switch backoff {
	case "linear":
		d *= time.Duration(n)
	case "constant":
	default:
		d <<= min(n-1, 20)
	}
	d = min(d, a.config.MaxDelay)
	if d <= 0 {
		return 0
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1)) // jitter, so that callers do not retry together
}

// attempt makes one attempt. It also returns the pause that the server asks for.
func (a *apiClient) attempt(ctx context.Context, r apiRequest, timeout time.Duration) (*answer, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.call.method, r.url.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, 0, err
	}
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.url.Host == a.base.Host { // token and default headers go to CLM only
		for name, value := range a.config.DefaultHeaders {
			req.Header.Set(name, value)
		}
		if token, err := a.readToken(); err != nil {
			return nil, 0, err
		} else if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if isStatusReport(r.call.method, r.url.Path) {
			// Task files write times to the second; of two reports in one second the later one
			// counts.
			req.Header.Set("X-Atoll-Equal-Time", "replace")
		}
	}
	for name, values := range r.headers {
		req.Header[name] = values
	}
	resp, err := a.doer.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, 0, fmt.Errorf("reading the answer: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, 0, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	wait := min(time.Duration(max(seconds, 0))*time.Second, a.config.MaxDelay)
	date, _ := http.ParseTime(resp.Header.Get("Date"))
	return &answer{r.url.String(), resp.StatusCode, data, date}, wait, nil
}

// readToken returns the token of the file and reads the file again when the token is older than its
// TTL. A file that cannot be read leaves the last token in use.
func (a *apiClient) readToken() (string, error) {
	if a.config.Auth == nil {
		return "", nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if a.token != "" && now.Sub(a.readAt) < a.config.Auth.TokenCacheTTL {
		return a.token, nil
	}
	data, err := os.ReadFile(a.config.Auth.TokenPath)
	text := strings.TrimSpace(string(data))
	switch {
	case err == nil && text != "":
		a.token, a.readAt = text, now
	case a.token != "":
	case err != nil:
		return "", fmt.Errorf("reading the token: %w", err)
	default:
		return "", errors.New("reading the token: the file is empty")
	}
	return a.token, nil
}

// decodeProblem reads code and detail of problem+json.
func decodeProblem(body []byte) (code, detail string) {
	m, err := decodeObject(body)
	if err != nil {
		return "", ""
	}
	code, _ = m["code"].(string)
	detail, _ = m["detail"].(string)
	return code, detail
}

// decodeObject reads a JSON object; whole numbers are int64.
func decodeObject(body []byte) (map[string]any, error) {
	var v any
	if err := utiljson.Unmarshal(body, &v); err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the answer is a %s and no object", kindOf(v))
	}
	return m, nil
}
