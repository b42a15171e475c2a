package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/bus"
)

// list reads all bundles, in pages and as one, on one connection.
func list(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(*consumers); err != nil {
		return nil, nil, err
	}
	// The lists are read when all works are delivered and acknowledged.
	sequence := time.Now().UnixMilli() << 22
	var next atomic.Int64
	for i := range *consumers {
		name := bed.Consumer(i)
		if _, err := b.Subscriber(ctx, name, func(c *bus.Client, e bus.Event) {
			if e.Type == work.SpecCreate || e.Type == work.SpecUpdate {
				_ = c.PublishAsync(ctx, bed.AgentTopic(name), statusOf(name, e, sequence+next.Add(1)), func(error) {})
			}
		}); err != nil {
			return nil, nil, err
		}
	}
	if err := bed.Many(*bundles, *concurrency, func(i int) error {
		return b.Publish(ctx, b.Spec(work.SpecCreate, consumerOf(i), bed.ID(i), *listSize))
	}); err != nil {
		return nil, nil, err
	}
	if err := awaitAcknowledged(ctx, b); err != nil {
		return nil, nil, err
	}
	figures = map[string]any{}
	const rounds = 7
	for _, form := range []struct {
		name, encoding string
		size           int
	}{{"pages", "identity", *page}, {"whole", "identity", 65500}, {"whole_gzip", "gzip", 65500}} {
		var runs []time.Duration
		bytes := int64(0)
		before, err := resetPeak()
		if err != nil {
			return nil, nil, err
		}
		for range rounds {
			start := time.Now()
			if bytes, err = readList(b, form.size, form.encoding); err != nil {
				return nil, nil, err
			}
			runs = append(runs, time.Since(start))
		}
		peak, err := memory("VmHWM")
		if err != nil {
			return nil, nil, err
		}
		slices.Sort(runs)
		figures[form.name+"_median_ms"], figures[form.name+"_min_ms"], figures[form.name+"_max_ms"] = ms(
			runs[rounds/2]), ms(runs[0]), ms(runs[rounds-1])
		figures[form.name+"_answer_bytes"], figures[form.name+"_memory_growth_mb"] = bytes, peak-before
	}
	return map[string]any{"bundles": *bundles, "manifest_bytes": *listSize, "page": *page, "runs": rounds}, figures, nil
}

// readList reads the whole list in pages of a size. It reads each body whole and decodes only the head,
// which has the size of the page; decoding the items is a cost of the client.
func readList(b *bed.Bed, size int, encoding string) (bytes int64, err error) {
	read := 0
	for number := 1; ; number++ {
		req, err := http.NewRequest("GET", fmt.Sprintf("%s/api/maestro/v1/resource-bundles?page=%d&size=%d", b.URL,
			number, size), nil)
		if err != nil {
			return 0, err
		}
		req.Header.Set("Accept-Encoding", encoding) // otherwise the client would decompress the body
		resp, err := b.HTTP.Do(req)
		if err != nil {
			return 0, err
		}
		head := make([]byte, 128)
		n, err := io.ReadFull(resp.Body, head)
		if err != nil && err != io.ErrUnexpectedEOF {
			return 0, err
		}
		unparsed, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("page %d: %s %w", number, resp.Status, err)
		}
		bytes += int64(n) + unparsed
		if encoding == "gzip" {
			return bytes, nil
		}
		var p, got, total int
		if _, err := fmt.Sscanf(string(head[:n]), `{"kind":"ResourceBundleList","page":%d,"size":%d,"total":%d`, &p,
			&got, &total); err != nil {
			return 0, fmt.Errorf("page %d: %.128s: %w", number, head, err)
		}
		if read += got; got < size || read == total {
			break
		}
	}
	if read != *bundles {
		return 0, fmt.Errorf("%d of %d bundles were listed", read, *bundles)
	}
	return bytes, nil
}

// searchLabels searches bundles of one source by labels, as grpcsource does. It publishes one bundle
// and copies its row in the database.
func searchLabels(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	if err := b.Register(1); err != nil {
		return nil, nil, err
	}
	if err := b.Publish(ctx, b.Spec(work.SpecCreate, "mc0", bed.ID(0), *size)); err != nil {
		return nil, nil, err
	}
	const alike = 10 // bundles that share a label
	conn, err := pgx.Connect(ctx, b.DSN)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close(ctx)
	for from := 0; from < *searchable; from += 10_000 { // with a status, so the server delivers none
		if _, err := conn.Exec(
			ctx,
			`insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
			select kind, 'copy-' || n, 'mc' || n % 100, name, version, generation, jsonb_set(spec, '{metadata,labels}', jsonb_build_object('app', 'bench', 'cluster', 'c' || n / $3::int)),
				jsonb_build_object('resourceversion', generation, 'data', '{}'::jsonb), wire, created_at + n * interval '1 ms', updated_at, n from document, generate_series($1::int, $2::int) n where kind = 'Bundle' and id = $4`,
			from,
			min(from+10_000, *searchable)-1,
			alike,
			bed.ID(0),
		); err != nil {
			return nil, nil, err
		}
	}
	if err := awaitAcknowledged(ctx, b); err != nil {
		return nil, nil, err
	}
	figures = map[string]any{}
	const searches = 1000
	for _, form := range []struct{ name, text string }{
		{"contains", `source='bench' and payload->'metadata'->'labels'@>'{"cluster":"%s"}'`},
		{"in", `payload->'metadata'->'labels'->>'cluster'in('%s','none')`},
		{"whole_query", `source='bench' and consumer_name='mc7' and payload->'metadata'->'labels'@>'{"cluster":"%s"}'`},
	} {
		var took []time.Duration
		warm := time.Now().Add(2 * time.Second) // until PostgreSQL has written the filling to disk
		for len(took) < searches {
			text := fmt.Sprintf(form.text, fmt.Sprint("c", b.IntN(*searchable/alike)))
			start := time.Now()
			resp, err := b.HTTP.Get(b.URL + "/api/maestro/v1/resource-bundles?size=400&search=" + url.QueryEscape(text))
			if err != nil {
				return nil, nil, err
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if start.After(warm) {
				took = append(took, time.Since(start))
			}
			wanted := fmt.Sprintf(`"size":%d,`, alike)
			if form.name == "whole_query" {
				wanted = `"size":`
			}
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body[:min(len(body), 80)]),
				wanted) {
				return nil, nil, fmt.Errorf("%s: %s %.200s %w", text, resp.Status, body, err)
			}
		}
		report.Percentiles(figures, form.name, took)
	}
	return map[string]any{"bundles": *searchable, "bundles_of_a_label": alike, "searches": searches}, figures, nil
}

// awaitAcknowledged waits until a watch shows a change that was made last and until all works are acknowledged,
// and then vacuums the documents, as the database does later by itself.
func awaitAcknowledged(ctx context.Context, b *bed.Bed) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", b.URL+"/api/maestro/v1/resource-bundles?watch=true&id="+bed.ID(
		0), nil)
	if err != nil {
		return err
	}
	resp, err := b.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := b.Publish(ctx, b.Spec(work.SpecUpdate, "mc0", bed.ID(0), *size)); err != nil {
		return err
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("watching: %w", err)
		}
		if strings.HasPrefix(line, `{"type":"MODIFIED"`) {
			break
		}
	}
	conn, err := pgx.Connect(ctx, b.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := bed.Await(ctx, 10*time.Millisecond, func() error {
		var pending int
		err := conn.QueryRow(ctx, "select count(*) from ledger where wanted > acknowledged").Scan(&pending)
		if err == nil && pending > 1 { // the one of the search has no agent
			err = fmt.Errorf("%d works are not acknowledged", pending)
		}
		return err
	}); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "vacuum analyze document")
	return err
}

// resetPeak sets the recorded peak memory of the process to the present memory, and returns that in
// MB. It includes server and client.
func resetPeak() (float64, error) {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return 0, err
	}
	return memory("VmRSS")
}

// memory returns a value of /proc/self/status in MB.
func memory(name string) (float64, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(data)) {
		var kb float64
		if _, err := fmt.Sscanf(l, name+": %f kB", &kb); err == nil {
			return float64(int(kb/1024*10)) / 10, nil
		}
	}
	return 0, fmt.Errorf("no %s in /proc/self/status", name)
}
