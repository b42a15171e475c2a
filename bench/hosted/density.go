package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
)

// density makes many clusters with two nodes each, keeps them for a while, and
// reports what they cost and whether all were available all the time: by the
// region's API, and by requests to their own API.
func (b *bench) density(ctx context.Context) error {
	free := availableMemory()
	begun := time.Now()
	all, err := b.makeMany(ctx, b.o.Density, b.o.Abreast, 2)
	if err != nil {
		return err
	}
	made := time.Since(begun)
	fmt.Fprintf(os.Stderr, "%d clusters after %s; kept for %s\n", len(all), made.Round(time.Second), b.o.Keep)
	first, err := b.costs(all)
	if err != nil {
		return err
	}
	began, last, peak, fewest, refused := time.Now(), first, first.pss, len(all), 0
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for time.Since(began) < b.o.Keep {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		up, err := b.availableNow(ctx)
		if err != nil {
			return err
		}
		fewest = min(fewest, up)
		refused += askAll(ctx, all)
		if last, err = b.costs(all); err != nil {
			return err
		}
		peak = max(peak, last.pss)
	}
	kept := time.Since(began)
	figures := map[string]any{
		"all_ready_ms": made.Milliseconds(), "kept_s": kept.Seconds(),
		"fewest_available": fewest, "requests_failed": refused,
		"processes": last.processes, "rss_mib": last.rss / mib, "pss_mib": last.pss / mib, "pss_peak_mib": peak / mib,
		"pss_mib_each": last.pss / mib / int64(len(all)), "rss_mib_each": last.rss / mib / int64(len(all)),
		"cpu_cores":                    (last.cpu - first.cpu).Seconds() / kept.Seconds(),
		"machine_available_before_mib": free / mib, "machine_available_mib": availableMemory() / mib,
	}
	if err := b.report("density", map[string]any{"clusters": len(all), "nodes": 2, "abreast": b.o.Abreast},
		figures); err != nil {
		return err
	}
	_, err = b.remove(ctx, all...)
	return err
}

func (b *bench) costs(all []*hosted) (sum cost, err error) {
	for _, h := range all {
		c, err := costOf(h.id)
		if err != nil {
			return sum, err
		}
		sum = sum.plus(c)
	}
	return sum, nil
}

// availableNow counts the run's clusters that the region calls Ready.
func (b *bench) availableNow(ctx context.Context) (up int, err error) {
	list, err := b.api.Clusters(ctx, client.ClusterQuery{Phase: platform.ClusterPhaseReady})
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range list {
		if b.made[k.ID] {
			up++
		}
	}
	return up, nil
}

// askAll sends a request to each cluster and counts those that do not answer.
func askAll(ctx context.Context, all []*hosted) (failed int) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	errs := make([]error, len(all))
	var asked sync.WaitGroup
	for i, h := range all {
		asked.Go(func() { errs[i] = h.get(ctx, "/readyz") })
	}
	asked.Wait()
	for _, err := range errs {
		if err != nil {
			failed++
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return failed
}
