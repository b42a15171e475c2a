package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"atoll.dev/bench/bed"
)

// measureIdle measures memory and processor time while nothing is changed. Agents send heartbeats and digests.
func (f *fleet) measureIdle(ctx context.Context) error {
	if err := bed.Pause(ctx, *settlePause); err != nil {
		return err
	}
	parts := map[string]bed.Process{"server": f.bed.Server, "postgres": f.bed.Database, "broker": f.bed.Broker}
	before := map[string]time.Duration{}
	for name, p := range parts {
		var err error
		if before[name], err = bed.ProcessorTime(p.Pid()); err != nil {
			return err
		}
	}
	begun := time.Now()
	if err := bed.Pause(ctx, *atRest); err != nil {
		return err
	}
	figures := map[string]any{"seconds": seconds(begun)}
	for name, p := range parts {
		used, err := bed.ProcessorTime(p.Pid())
		if err != nil {
			return err
		}
		figures[name+"_cores"] = round((used - before[name]).Seconds() / time.Since(begun).Seconds())
	}
	if err := f.addMemory(figures); err != nil {
		return err
	}
	return f.report("rest", figures)
}

// addMemory adds the memory of server and broker to figures.
func (f *fleet) addMemory(figures map[string]any) error {
	for name, p := range map[string]bed.Process{"server": f.bed.Server, "broker": f.bed.Broker} {
		now, most, err := bed.Memory(p.Pid())
		if err != nil {
			return err
		}
		figures[name+"_resident_mib"], figures[name+"_resident_max_mib"] = now, most
	}
	return nil
}

// kill kills a process while works are being changed, changes statuses while the process is away, starts it again, and
// measures the time until all agree.
func (f *fleet) kill(ctx context.Context, name string, p bed.Process) error {
	f.phases++
	half := make(chan struct{})
	var accepted atomic.Int64
	ordered := make(chan error, 1)
	first := f.ofEach(0)
	go func() {
		ordered <- f.changeMany(ctx, first, func() {
			if accepted.Add(1) == int64(f.clusters+1)/2 {
				close(half)
			}
		})
	}()
	<-half
	p.Kill()
	statuses := min(*changed, f.worksOfEach-1)
	affected := first
	var indexes []int
	for k := 1; k <= statuses; k++ {
		indexes = append(indexes, k)
		affected = append(affected, f.ofEach(k)...)
	}
	for _, a := range f.agents {
		a.changeStatuses(indexes, fmt.Sprint("phase ", f.phases))
	}
	if err := bed.Pause(ctx, *outage); err != nil {
		return err
	}
	begun := time.Now()
	if err := p.Start(); err != nil {
		return err
	}
	figures := map[string]any{"serving_after_s": seconds(begun), "outage_s": outage.Seconds(),
		"statuses_changed": f.clusters * statuses}
	if err := bed.AwaitFor(ctx, *limit, 20*time.Millisecond, f.allConnected); err != nil {
		return err
	}
	figures["connected_after_s"] = seconds(begun)
	if err := <-ordered; err != nil {
		return err
	}
	figures["accepted_after_s"] = seconds(begun)
	if err := f.awaitAgreement(ctx, begun, begun, affected, figures); err != nil {
		return err
	}
	took, err := f.changeAndAwait(ctx, f.ofEach(f.worksOfEach-1))
	if err != nil {
		return fmt.Errorf("a change in each cluster afterwards: %w", err)
	}
	figures["change_in_each_s"] = round(took.Seconds())
	if err := f.addMemory(figures); err != nil {
		return err
	}
	return f.report(name+"-killed", figures)
}

// changeAndAwait changes works through the API, and returns the time until all are delivered and acknowledged.
func (f *fleet) changeAndAwait(ctx context.Context, works []int) (time.Duration, error) {
	begun := time.Now()
	if err := f.changeMany(ctx, works, func() {}); err != nil {
		return 0, err
	}
	err := bed.AwaitFor(ctx, *limit, 20*time.Millisecond, func() error { return f.compareWorks(ctx, works) })
	return time.Since(begun), err
}
