package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/bench/report"
	"atoll.dev/cluster"
)

func (b *bench) report(name string, params, figures map[string]any) error {
	params["seed"] = b.o.Seed
	return report.Line(os.Stdout, "hosted-"+name, params, figures)
}

// create makes clusters one after another, each alone in the region.
func (b *bench) create(ctx context.Context) error {
	var posted, ready, credential, answered []time.Duration
	stages := map[string][]time.Duration{}
	for range b.o.Clusters {
		h, err := b.makeCluster(ctx, 0)
		if err != nil {
			return err
		}
		posted, ready = append(posted, h.posted), append(ready, h.ready)
		credential, answered = append(credential, h.credential-h.ready), append(answered, h.answered)
		events, err := b.api.ClusterEvents(ctx, cluster.ID(h.id))
		if err != nil {
			return err
		}
		for _, e := range events {
			if s := string(e.Stage); s != "" {
				stages[s] = append(stages[s], time.Duration(e.SinceMs)*time.Millisecond)
			}
		}
		if _, err := b.remove(ctx, h); err != nil {
			return err
		}
	}
	figures := map[string]any{}
	report.Percentiles(figures, "post_to_namespaces", answered)
	report.Percentiles(figures, "post", posted)
	report.Percentiles(figures, "post_to_ready", ready)
	report.Percentiles(figures, "credential", credential)
	for s, d := range stages {
		slices.Sort(d)
		figures["stage_"+s+"_p50_ms"] = d[len(d)/2].Milliseconds()
	}
	return b.report("create", map[string]any{"clusters": b.o.Clusters}, figures)
}

// credentials asks for one after another in a cluster that is awake.
func (b *bench) credentials(ctx context.Context) error {
	h, err := b.makeCluster(ctx, 0)
	if err != nil {
		return err
	}
	var made, used, revoked []time.Duration
	for range b.o.Samples {
		begun := time.Now()
		if err := b.connect(ctx, h); err != nil {
			return err
		}
		made = append(made, time.Since(begun))
		if err := h.get(ctx, "/api/v1/namespaces"); err != nil {
			return err
		}
		used = append(used, time.Since(begun))
		begun = time.Now()
		if err := b.api.RevokeCredential(ctx, cluster.ID(h.id), cluster.CredentialID(h.credID)); err != nil {
			return err
		}
		if err := h.refused(ctx); err != nil {
			return err
		}
		revoked = append(revoked, time.Since(begun))
	}
	figures := map[string]any{}
	report.Percentiles(figures, "post_to_kubeconfig", made)
	report.Percentiles(figures, "post_to_namespaces", used)
	report.Percentiles(figures, "revoke_to_refused", revoked)
	if err := b.report("credentials", map[string]any{"samples": b.o.Samples}, figures); err != nil {
		return err
	}
	_, err = b.remove(ctx, h)
	return err
}

// refused returns when the cluster's API refuses what it did before.
func (h *hosted) refused(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := h.get(ctx, "/api/v1/namespaces")
		if ctx.Err() != nil {
			return errors.New("a revoked credential still serves")
		}
		if err != nil {
			if strings.Contains(err.Error(), ": 403 ") {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// idle measures the control plane of one unused cluster with two nodes.
func (b *bench) idle(ctx context.Context) error {
	h, err := b.makeCluster(ctx, 2)
	if err != nil {
		return err
	}
	before, err := b.after(ctx, b.o.Settle, h.id)
	if err != nil {
		return err
	}
	const window = 30 * time.Second
	now, err := b.after(ctx, window, h.id)
	if err != nil {
		return err
	}
	if now.processes == 0 {
		return errors.New("it has no process")
	}
	err = b.report("idle", map[string]any{"nodes": 2, "settle_s": b.o.Settle.Seconds()}, map[string]any{
		"processes": now.processes, "rss_mib": now.rss / mib, "pss_mib": now.pss / mib,
		"cpu_percent_of_a_core": 100 * (now.cpu - before.cpu).Seconds() / window.Seconds(),
	})
	if err != nil {
		return err
	}
	_, err = b.remove(ctx, h)
	return err
}

// after waits for d, and returns the memory and processor time of a plane then.
func (b *bench) after(ctx context.Context, d time.Duration, id string) (cost, error) {
	select {
	case <-ctx.Done():
		return cost{}, ctx.Err()
	case <-time.After(d):
		return costOf(id)
	}
}

// hibernate measures how long a cluster takes to sleep, and a request to wake it.
func (b *bench) hibernate(ctx context.Context) error {
	h, err := b.makeCluster(ctx, 2)
	if err != nil {
		return err
	}
	var asleep, woken []time.Duration
	for range b.o.Wakes {
		begun := time.Now()
		shown := make(chan error, 1)
		go func() { shown <- b.setHibernated(ctx, h.id, "true", "Asleep") }()
		if err := h.awaitEnd(ctx); err != nil {
			return errors.Join(err, <-shown)
		}
		asleep = append(asleep, time.Since(begun))
		if err := <-shown; err != nil {
			return err
		}
		begun = time.Now()
		if err := h.get(ctx, "/api/v1/namespaces"); err != nil {
			return err
		}
		woken = append(woken, time.Since(begun))
		k, err := b.api.Cluster(ctx, cluster.ID(h.id))
		if err != nil {
			return err
		}
		if k.Spec.Hibernated == nil || !*k.Spec.Hibernated {
			return fmt.Errorf("cluster %s: a request changed its spec", h.name)
		}
		if err := b.setHibernated(ctx, h.id, "false", "Awake"); err != nil {
			return err
		}
	}
	figures := map[string]any{"processes_asleep": 0}
	report.Percentiles(figures, "order_to_asleep", asleep)
	report.Percentiles(figures, "request_to_answer", woken)
	if err := b.report("hibernate", map[string]any{"wakes": b.o.Wakes, "nodes": 2}, figures); err != nil {
		return err
	}
	_, err = b.remove(ctx, h)
	return err
}

// awaitEnd returns when a cluster that was ordered to sleep has no process.
func (h *hosted) awaitEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		pids, err := planeOf(h.id)
		if err != nil || len(pids) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cluster %s was ordered to sleep and has the processes %d", h.name, pids)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// setHibernated sets spec.hibernated and waits until the cluster has the power that
// follows.
func (b *bench) setHibernated(ctx context.Context, id, hibernated, power string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	k, err := b.api.UpdateCluster(ctx, cluster.ID(id), fmt.Appendf(nil, `{"spec":{"hibernated":%s}}`, hibernated), "")
	if err != nil {
		return err
	}
	err = b.await(ctx, id, func(now *platform.Cluster) bool {
		return now != nil && now.Status.ObservedGeneration >= k.Generation &&
			now.Status.Phase == platform.ClusterPhaseReady && now.Status.Power == power
	})
	if err != nil {
		return fmt.Errorf("cluster %s: until it is %s: %w", id, power, err)
	}
	return nil
}

// burst makes clusters at once, and deletes them at once.
func (b *bench) burst(ctx context.Context) error {
	begun := time.Now()
	all, err := b.makeMany(ctx, b.o.Burst, b.o.Burst, 0)
	if err != nil {
		return err
	}
	took := time.Since(begun)
	var ready, answered []time.Duration
	for _, h := range all {
		ready, answered = append(ready, h.ready), append(answered, h.answered)
	}
	figures := map[string]any{"all_answer_ms": took.Milliseconds()}
	report.Percentiles(figures, "post_to_ready", ready)
	report.Percentiles(figures, "post_to_namespaces", answered)
	if err := b.report("burst", map[string]any{"clusters": b.o.Burst}, figures); err != nil {
		return err
	}
	gone, err := b.remove(ctx, all...)
	if err != nil {
		return err
	}
	return b.report("delete", map[string]any{"clusters": b.o.Burst},
		map[string]any{"nothing_left_ms": gone.Milliseconds()})
}

// makeMany makes clusters, so many at once.
func (b *bench) makeMany(ctx context.Context, n, abreast, nodes int) ([]*hosted, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all := make([]*hosted, n)
	slots := make(chan struct{}, abreast)
	var work sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			defer func() { <-slots }()
			h, err := b.makeCluster(ctx, nodes)
			if err != nil {
				cancel(err)
			}
			all[i] = h
		})
	}
	work.Wait()
	return all, context.Cause(ctx)
}
