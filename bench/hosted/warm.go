package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/bench/report"
)

// ownNetwork is the spec of a cluster that gets no warm plane: it differs from what the region chooses in its network
// of Services only.
func ownNetwork() *platform.ClusterSpec {
	return &platform.ClusterSpec{HostedCluster: &platform.HostedClusterSpec{Networking: &platform.Networking{
		ServiceNetwork: []platform.Network{{Cidr: "172.29.0.0/16"}}}}}
}

// warm makes pairs of clusters, one with a warm plane and one whose plane is started for it, each alone in the region,
// in turn first. Before each cluster it waits until as many planes are warm as before the first.
func (b *bench) warm(ctx context.Context) error {
	if b.o.Home == "" {
		return errors.New("name the region's home with -home")
	}
	full, err := b.awaitWarm(ctx, 1)
	if err != nil {
		return err
	}
	var answered, posted, ready [2][]time.Duration
	for pair := range b.o.Clusters {
		for turn := range 2 {
			kind := (pair + turn) % 2 // 0: warm, 1: started
			if _, err := b.awaitWarm(ctx, full); err != nil {
				return err
			}
			var spec *platform.ClusterSpec
			if kind == 1 {
				spec = ownNetwork()
			}
			h, err := b.makeClusterOf(ctx, spec, 0)
			if err != nil {
				return err
			}
			if slots, _ := filepath.Glob(filepath.Join(b.hostingDirs(), "state", "clusters-"+h.id, "*", "slot")); len(
				slots) != 1-kind {
				return fmt.Errorf("cluster %s has %d slots of warm planes, want %d", h.name, len(slots), 1-kind)
			}
			answered[kind], posted[kind] = append(answered[kind], h.answered), append(posted[kind], h.posted)
			ready[kind] = append(ready[kind], h.ready)
			if _, err := b.remove(ctx, h); err != nil {
				return err
			}
		}
	}
	figures := map[string]any{}
	for kind, name := range []string{"warm", "started"} {
		report.Percentiles(figures, name+"_post_to_namespaces", answered[kind])
		report.Percentiles(figures, name+"_post", posted[kind])
		report.Percentiles(figures, name+"_post_to_ready", ready[kind])
	}
	return b.report("warm", map[string]any{"pairs": b.o.Clusters, "warm_planes": full}, figures)
}

func (b *bench) hostingDirs() string { return filepath.Join(b.o.Home, "management", "*", "hosting") }

// awaitWarm waits until the region has at least so many warm planes that are ready, and until their number has not
// changed for some seconds: another start would disturb the measurement. It returns the number.
func (b *bench) awaitWarm(ctx context.Context, least int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const quiet = 4 * time.Second
	for last, since := []string(nil), time.Now(); ; {
		now := b.readyWarm()
		if !slices.Equal(now, last) {
			last, since = now, time.Now()
		}
		if len(now) >= least && time.Since(since) > quiet {
			return len(now), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("the region has %d warm planes, want %d: atoll up --warm-planes", len(now), least)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readyWarm lists the slots of the planes that wait for a cluster and are ready.
func (b *bench) readyWarm() (slots []string) {
	waiting, _ := filepath.Glob(filepath.Join(b.hostingDirs(), "state", "_warm", "*"))
	for _, state := range waiting {
		slot, hosting := filepath.Base(state), filepath.Join(state, "..", "..", "..")
		if _, err := os.Stat(filepath.Join(hosting, "planes", "_warm", slot, "ready")); err == nil {
			slots = append(slots, slot)
		}
	}
	return slots
}
