package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"atoll.dev/bench/report"
)

// watch patches clusters at a steady pace and measures how long it takes until a watch of all of
// them shows each change: from the request, and from its answer.
func (b *bench) watch(ctx context.Context) (figures map[string]any, err error) {
	ctx, cancel := context.WithTimeout(ctx, *duration+2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", b.target.url+base+"?watch=true&fields=id,spec.mark", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("watching: %s", resp.Status)
	}
	total := int(float64(*rate) * duration.Seconds())
	seen := make([]time.Time, total)
	ready, watched := make(chan struct{}), make(chan error, 1)
	go func() { watched <- follow(resp, seen, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-watched:
		return nil, err
	}

	server, postgres, err := b.target.cpu()
	if err != nil {
		return nil, err
	}
	sent, answered := make([]time.Time, total), make([]time.Time, total)
	failures := make(chan error, total)
	r := rand.New(rand.NewPCG(*seed, 0))
	var group sync.WaitGroup
	free := make(chan struct{}, *connections)
	begin := time.Now()
	// Each change is of another cluster than those just before it, so that no two of them can be seen as one.
	order := r.Perm(len(b.ids))
	for i := range total {
		body := fmt.Sprintf(`{"spec":{"mark":%d,"rest":%s}}`, i+1, spec(r, 1024))
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(*rate))
		if wait := time.Until(due); wait > 0 {
			<-time.After(wait)
		}
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			sent[i] = time.Now()
			_, err := b.call(ctx, "PATCH", base+"/"+b.ids[order[i%len(order)]], body, http.StatusOK)
			answered[i] = time.Now()
			if err != nil {
				failures <- err
			}
		})
	}
	group.Wait()
	elapsed := time.Since(begin)
	if len(failures) > 0 {
		return nil, fmt.Errorf("%d of %d writes failed: %w", len(failures), total, <-failures)
	}
	if err := <-watched; err != nil {
		return nil, err
	}
	s, p, err := b.target.cpu()
	if err != nil {
		return nil, err
	}
	fromRequest, fromAnswer := make([]time.Duration, total), make([]time.Duration, total)
	for i := range total {
		fromRequest[i], fromAnswer[i] = seen[i].Sub(sent[i]), max(0, seen[i].Sub(answered[i]))
	}
	figures = map[string]any{"writes": total, "reached_per_second": float64(total) / elapsed.Seconds(),
		"cpu_ms_per_write": float64((s - server + p - postgres).Microseconds()) / 1000 / float64(total)}
	report.Percentiles(figures, "from_request", fromRequest)
	report.Percentiles(figures, "from_answer", fromAnswer)
	return figures, nil
}

// follow reads a watch until each mark was seen. It calls ready when the list is complete.
func follow(resp *http.Response, seen []time.Time, ready func()) error {
	lines := bufio.NewReaderSize(resp.Body, 1<<20)
	missing, caught := len(seen), false
	for missing > 0 {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("watching, %d changes not seen: %w", missing, err)
		}
		at := time.Now()
		var e struct {
			Type   string
			Object struct{ Spec struct{ Mark int } }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("watching: %w: %.200s", err, line)
		}
		switch {
		case strings.EqualFold(e.Type, "bookmark") && !caught:
			caught = true
			ready()
		case e.Object.Spec.Mark > 0 && e.Object.Spec.Mark <= len(seen) && seen[e.Object.Spec.Mark-1].IsZero():
			seen[e.Object.Spec.Mark-1] = at
			missing--
		}
	}
	return nil
}
