package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"atoll.dev/bench/bed"
	"atoll.dev/local"
)

// parts are the processes whose time counts: the services by their commands, and PostgreSQL.
var parts = [...]string{"platform", "clm", "postgres"}

// region is the running region at a home.
type region struct {
	home  local.Home
	state local.State
	pids  [len(parts)][]int
}

func openRegion(dir string) (r *region, err error) {
	r = &region{}
	if dir == "" {
		if dir, err = local.DefaultHome(); err != nil {
			return nil, err
		}
	}
	if r.home, err = local.OpenHome(dir); err != nil {
		return nil, err
	}
	if r.state, err = r.home.State(); err != nil {
		return nil, err
	}
	for i, command := range parts[:2] {
		if r.pids[i], err = processesOf(command, r.home.Dir); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(filepath.Join(r.state.Postgres.Dir, "data", "postmaster.pid"))
	if err != nil {
		return nil, fmt.Errorf("finding PostgreSQL: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return nil, fmt.Errorf("finding PostgreSQL: %w", err)
	}
	r.pids[2] = []int{pid}
	return r, nil
}

// processesOf returns the processes `atoll COMMAND` whose arguments name the home.
func processesOf(command, home string) (pids []int, err error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range all {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		args := bytes.Split(line, []byte{0})
		if err != nil || len(args) < 2 || string(args[1]) != command || !bytes.Contains(line, []byte(home)) {
			continue // or it has just ended
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no process `atoll %s` names the home %s", command, home)
	}
	return pids, nil
}

// used returns the processor time that each part has used.
func (r *region) used() (sums [len(parts)]time.Duration, err error) {
	for i, pids := range r.pids {
		for _, pid := range pids {
			one, err := bed.ProcessorTime(pid)
			if err != nil {
				return sums, fmt.Errorf("the processor time of %s: %w", parts[i], err)
			}
			sums[i] += one
		}
	}
	return sums, nil
}

// measurement is the processor time of requests, without the time that the region uses at rest.
type measurement struct {
	requests int
	elapsed  time.Duration
	used     [len(parts)]time.Duration
}

func (m measurement) plus(o measurement) measurement {
	m.requests, m.elapsed = m.requests+o.requests, m.elapsed+o.elapsed
	for i := range m.used {
		m.used[i] += o.used[i]
	}
	return m
}

func (m measurement) total() (sum time.Duration) {
	for _, d := range m.used {
		sum += d
	}
	return sum
}

// perRequest returns a part of the time for each request, in milliseconds.
func (m measurement) perRequest(d time.Duration) float64 {
	return d.Seconds() * 1000 / float64(m.requests)
}

// measure sends requests, for a quarter of the time first to get warm, and then lets the region rest for as long as it
// has measured.
func (c *caller) measure(ctx context.Context, r *region) (m measurement, err error) {
	if _, err := c.load(ctx, *duration/4); err != nil {
		return m, err
	}
	before, err := r.used()
	if err != nil {
		return m, err
	}
	begun := time.Now()
	if m.requests, err = c.load(ctx, *duration); err != nil {
		return m, err
	}
	m.elapsed = time.Since(begun)
	after, err := r.used()
	if err != nil {
		return m, err
	}
	select {
	case <-ctx.Done():
		return m, ctx.Err()
	case <-time.After(m.elapsed):
	}
	rested, err := r.used()
	for i := range m.used {
		m.used[i] = (after[i] - before[i]) - (rested[i] - after[i])
	}
	return m, err
}
