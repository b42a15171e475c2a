package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Gates reads the gates of a rollout by HTTP. It is a HealthReader.
type Gates struct {
	Client *http.Client // nil: http.DefaultClient
}

const (
	gateLimit = 10 * time.Second // for one answer
	parallel  = 32               // targets that are read at once
	maxAnswer = 1 << 20
)

// Read reads all gates of the targets. The worst gate of a target decides: a failing one before an unreadable one.
func (g Gates) Read(ctx context.Context, r Rollout, fleet Fleet, targets []Target) Observation {
	sectors := map[string]string{}
	for _, region := range fleet.Regions {
		sectors[region.Name] = region.Sector
	}
	all := make([]Health, len(targets))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, t := range targets {
		group.Go(func() error {
			all[i] = g.readTarget(ctx, r, t, sectors[t.Region()])
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	seen := Observation{}
	for i, t := range targets {
		seen[t] = all[i]
	}
	return seen
}

// readTarget reads the gates of one target, one after another until one fails.
func (g Gates) readTarget(ctx context.Context, r Rollout, t Target, sector string) Health {
	worst := Health{Verdict: Passing}
	for _, gate := range r.Gates {
		verdict, reason := g.readGate(ctx, gate, r.Prometheus, t, sector)
		h := Health{verdict, fmt.Sprintf("gate %s: %s", gate.Name, reason)}
		if verdict == Failing {
			return h
		}
		if verdict == Unreadable && worst.Verdict == Passing {
			worst = h
		}
	}
	return worst
}

// readGate reads one gate of a target, and returns its verdict and the value or error that decided it.
func (g Gates) readGate(ctx context.Context, gate Gate, prometheus string, t Target, sector string) (Verdict, string) {
	ctx, cancel := context.WithTimeout(ctx, gateLimit)
	defer cancel()
	cluster := ".+"
	if t.Cluster() != "" {
		cluster = t.Cluster() + "-" + t.Region() // its ID
	}
	named := strings.NewReplacer("$region", t.Region(), "$sector", sector, "$cluster", cluster)
	switch {
	case gate.URL != "":
		return g.readStatus(ctx, named.Replace(gate.URL))
	case gate.Burn != nil:
		return g.readBurn(ctx, gate.Burn.withDefaults(), named, named.Replace(prometheus))
	}
	value, err := g.query(ctx, named.Replace(prometheus), named.Replace(gate.Query))
	switch {
	case err != nil:
		return Unreadable, err.Error()
	case gate.AtLeast != nil && value < *gate.AtLeast:
		return Failing, fmt.Sprintf("%g is less than %g", value, *gate.AtLeast)
	case gate.AtMost != nil && value > *gate.AtMost:
		return Failing, fmt.Sprintf("%g is more than %g", value, *gate.AtMost)
	case math.IsInf(value, 0): // a division by zero is beyond each limit, and proves nothing
		return Unreadable, fmt.Sprintf("the query has the infinite value %g", value)
	}
	return Passing, fmt.Sprintf("%g", value)
}

// readStatus reads a URL. The verdict is Passing for 200, Failing for another answer, and Unreadable when
// none comes.
func (g Gates) readStatus(ctx context.Context, address string) (Verdict, string) {
	code, _, err := g.get(ctx, address)
	switch {
	case err != nil:
		return Unreadable, err.Error()
	case code != http.StatusOK:
		return Failing, fmt.Sprintf("%s answers %d", address, code)
	}
	return Passing, "200"
}

// readBurn compares how fast the error budget is used up, over a short and a long window, with the limit.
func (g Gates) readBurn(ctx context.Context, b Burn, named *strings.Replacer, prometheus string) (Verdict, string) {
	limit := b.Factor * (1 - b.Objective)
	var values []float64
	for _, window := range []time.Duration{b.Short, b.Long} {
		query := strings.ReplaceAll(named.Replace(b.Query), "$window", fmt.Sprintf("%ds", int(window.Seconds())))
		value, err := g.query(ctx, prometheus, query)
		if err != nil {
			return Unreadable, err.Error()
		}
		values = append(values, value)
	}
	text := fmt.Sprintf("%g of requests fail over %s and %g over %s; the limit is %g", values[0], b.Short, values[1],
		b.Long, limit)
	if values[0] > limit && values[1] > limit {
		return Failing, text
	}
	return Passing, text
}

// promAnswer is the part of an answer of Prometheus that a gate reads.
type promAnswer struct {
	Status   string   `json:"status"`
	Error    string   `json:"error"`
	Warnings []string `json:"warnings"` // such as of a store that did not answer
	Data     struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

// query returns the one value of a query of Prometheus. No value, several values, NaN
// and warnings are errors.
func (g Gates) query(ctx context.Context, prometheus, query string) (float64, error) {
	address := strings.TrimSuffix(prometheus, "/") + "/api/v1/query?" + url.Values{"query": {query}}.Encode()
	code, body, err := g.get(ctx, address)
	if err != nil {
		return 0, err
	}
	var a promAnswer
	if err := json.Unmarshal(body, &a); err != nil || a.Status != "success" {
		return 0, fmt.Errorf("%s answers %d: %.200s", prometheus, code, strings.Join(strings.Fields(a.Error), " "))
	}
	if len(a.Warnings) > 0 {
		return 0, fmt.Errorf("the answer of %s is not complete: %.200s", prometheus, strings.Join(a.Warnings, "; "))
	}
	var sample [2]any // the time and the value
	switch a.Data.ResultType {
	case "scalar":
		err = json.Unmarshal(a.Data.Result, &sample)
	case "vector":
		var vector []struct {
			Value [2]any `json:"value"`
		}
		if err = json.Unmarshal(a.Data.Result, &vector); err == nil && len(vector) != 1 {
			return 0, fmt.Errorf("the query has %d values; it must have one", len(vector))
		}
		if err == nil {
			sample = vector[0].Value
		}
	default:
		return 0, fmt.Errorf("the query has a result of type %q; it must be a scalar or a vector", a.Data.ResultType)
	}
	if err != nil {
		return 0, fmt.Errorf("the answer of %s cannot be read: %w", prometheus, err)
	}
	text, _ := sample[1].(string)
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(value) {
		return 0, fmt.Errorf("the query has the value %q, which is no number", text)
	}
	return value, nil
}

// get returns the code and the beginning of the body of an answer. The error names the address and not the query.
func (g Gates) get(ctx context.Context, address string) (code int, body []byte, err error) {
	client := g.Client
	if client == nil {
		client = http.DefaultClient
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, nil, err
	}
	// A redirect is an answer, not a way: the page that it leads to, such as a login, proves nothing about the region.
	direct := *client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := direct.Do(req)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return 0, nil, fmt.Errorf("%s cannot be reached: %w", req.URL.Host, err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return res.StatusCode, body, err
}
