package process_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// Warm planes end while the machine has little memory or their management cluster little room, and come again. They
// outlive their runtime, the next one has the same, and one that wants others replaces them.
func TestThePoolFollowsTheMachineAndItsSettings(t *testing.T) {
	quick.Slow(t, "starts pools of warm planes of several sizes")
	quick.LeavesOut(t, "needs control planes")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := warmOptions(t.TempDir(), binary, 2)
	t.Cleanup(func() { killWarm(o) })
	var memory atomic.Int64
	memory.Store(8 << 30)
	o.Warm.Memory = func() (int64, error) { return memory.Load(), nil }
	var room atomic.Int64
	room.Store(2)
	o.Warm.Room = func() int { return int(room.Load()) }
	s := &site{t: t, o: o, changes: make(chan struct{}, 1)}
	s.open()
	awaitWarm(t, o, 2)
	memory.Store(1 << 30)
	awaitWarm(t, o, 0)
	for limit := time.Now().Add(time.Minute); len(warmDirs(o.Dir, "state")) > 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("with little memory, left are %v", warmDirs(o.Dir, "state"))
		}
	}
	memory.Store(8 << 30)
	awaitWarm(t, o, 2)
	room.Store(1)
	awaitWarm(t, o, 1)
	room.Store(0)
	awaitWarm(t, o, 0)
	room.Store(5)
	awaitWarm(t, o, 2)
	pids := func() (all []int) {
		for _, dir := range warmDirs(o.Dir, "planes") {
			pid, _ := plane.Running(dir)
			all = append(all, pid)
		}
		slices.Sort(all)
		return all
	}
	before := pids()
	s.close()
	s.o.Metrics = prometheus.NewRegistry()
	s.open()
	awaitWarm(t, s.o, 2)
	if now := pids(); !slices.Equal(now, before) {
		t.Errorf("the next runtime has the processes %v, not %v", now, before)
	}
	s.close()
	s.o.Metrics = prometheus.NewRegistry()
	s.o.Warm.Spec.ServiceCIDR = "172.20.0.0/16"
	s.open()
	for limit := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
		now := pids()
		isNew := !slices.ContainsFunc(now, func(pid int) bool { return pid == 0 || slices.Contains(before, pid) })
		if len(now) == 2 && isNew && countWarm(s.o) == 2 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("with another network, the processes are %v, before %v", now, before)
		}
	}
	if list := s.runtime.List(); len(list) > 0 {
		t.Errorf("the list is %v", list)
	}
	if o, err := s.runtime.Observe(controlplane.ID{Namespace: "n", Name: "hc"}); err != nil || o.Running {
		t.Errorf("another plane: %+v, %v", o, err)
	}
	s.close()
	endWarm(t, o)
}
