package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cost is the number, memory and processor time of processes.
type cost struct {
	processes int
	rss, pss  int64         // bytes
	cpu       time.Duration // since they began
}

func (c cost) plus(d cost) cost {
	return cost{c.processes + d.processes, c.rss + d.rss, c.pss + d.pss, c.cpu + d.cpu}
}

const mib = 1 << 20

// planeOf finds the processes of a cluster's control plane: their arguments
// name its namespace.
func planeOf(id string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte("clusters-"+id)) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// costOf returns the cost of a cluster's control plane, the zero cost for one without processes.
func costOf(id string) (cost, error) {
	pids, err := planeOf(id)
	var all cost
	for _, pid := range pids {
		one, perr := costOfProcess(pid)
		if errors.Is(perr, fs.ErrNotExist) {
			continue // it has ended
		}
		if perr != nil {
			return all, perr
		}
		all = all.plus(one)
	}
	return all, err
}

func costOfProcess(pid int) (cost, error) {
	c := cost{processes: 1}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(string(rollup)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "Rss:":
			c.rss = kib << 10
		case "Pss:":
			c.pss = kib << 10
		}
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return c, err
	}
	// The name, in parentheses, may have spaces; utime and stime are the 12th
	// and 13th field after it, in hundredths of a second.
	_, afterName, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(afterName)
	if len(f) < 13 {
		return c, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	for _, ticks := range f[11:13] {
		n, _ := strconv.ParseInt(ticks, 10, 64)
		c.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	return c, nil
}

// availableMemory returns the bytes of memory that the machine can still give to processes.
func availableMemory() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// leftovers lists the processes, the directories below the home and the namespaces of its management clusters that
// still exist of deleted clusters.
func (b *bench) leftovers(ctx context.Context, all []*hosted) ([]string, error) {
	var left []string
	for _, h := range all {
		pids, err := planeOf(h.id)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			left = append(left, fmt.Sprintf("process %d", pid))
		}
		if b.o.Home == "" {
			continue
		}
		for _, depth := range []string{"*", "*/*", "*/*/*", "*/*/*/*"} {
			found, err := filepath.Glob(filepath.Join(b.o.Home, depth, "clusters-"+h.id))
			if err != nil {
				return nil, err
			}
			left = append(left, found...)
		}
	}
	if len(left) > 0 || b.o.Home == "" {
		return left, nil
	}
	namespaces, err := b.namespaces(ctx)
	for _, h := range all {
		if strings.Contains(namespaces, "clusters-"+h.id) {
			left = append(left, "namespace clusters-"+h.id)
		}
	}
	return left, err
}

// namespaces lists those of the home's management clusters.
func (b *bench) namespaces(ctx context.Context) (string, error) {
	dirs, err := os.ReadDir(filepath.Join(b.o.Home, "management"))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, d := range dirs {
		config, err := exec.CommandContext(ctx, b.o.Atoll, "mc", "kubeconfig", d.Name(), "--home", b.o.Home).Output()
		if err != nil {
			return "", fmt.Errorf("%s mc kubeconfig %s: %w", b.o.Atoll, d.Name(), err)
		}
		file, err := os.CreateTemp("", "bench-hosted-*")
		if err != nil {
			return "", err
		}
		defer os.Remove(file.Name())
		_, err = file.Write(config)
		if err = errors.Join(err, file.Close()); err != nil {
			return "", err
		}
		out, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(b.o.Atoll), "kubectl"), "--kubeconfig",
			file.Name(), "get", "namespaces", "-o", "name").Output()
		if err != nil {
			return "", fmt.Errorf("kubectl get namespaces on %s: %w", d.Name(), err)
		}
		all.Write(out)
	}
	return all.String(), nil
}
