package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// withFeedback adds feedback of the ConfigMaps' key "note", which others set.
func withFeedback(b work.Bundle) work.Bundle {
	b.ManifestConfigs = append(b.ManifestConfigs, workv1.ManifestConfigOption{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*", Name: "*"},
		FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
			{Name: "note", Path: ".data.note"}}}},
		UpdateStrategy: &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply,
			ServerSideApply: &workv1.ServerSideApplyConfig{Force: true}},
	})
	return b
}

// awaitRepair has a user change an object, and waits until the agent
// has repaired its own field.
func (w *world) awaitRepair(t *testing.T, note string) {
	t.Helper()
	w.asUser(t, "a", `{"data":{"k":"user","note":"`+note+`"}}`)
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool {
		return dataOf(u, "k") == "1" &&
			dataOf(u, "note") == note
	})
}

func (w *world) awaitLogNote(t *testing.T, note string) {
	t.Helper()
	w.server.await("the status to have "+note, func() bool {
		b := w.server.bundles["one"]
		return b != nil && b.status != nil && feedbackOf(b.status.ResourceStatus[0])["note"] == note
	})
}

// While the disk is full the agent repairs drift and sends statuses; new works wait unacknowledged.
// The agent ends with its context, and continues when the disk has room again.
func TestAFullDiskDelaysOnlyNewWorks(t *testing.T) {
	t.Parallel()
	c, ns := sharedCluster(t)
	w := newSite(t, c, ns, work.Consumer(ns))
	var full atomic.Bool
	refuse := func(a *Agent) {
		a.store.refuse = func() error {
			if full.Load() {
				return syscall.ENOSPC
			}
			return nil
		}
	}
	w.agent = startAgent(t, agentOptions(t, c, w.broker, w.consumer, w.dir), refuse)
	w.server.apply("one", withFeedback(manifests(configMap(ns, "a", "k", "1"))))
	w.server.awaitApplied("one")
	full.Store(true)
	w.server.apply("two", manifests(configMap(ns, "b", "k", "1")))
	w.awaitRepair(t, "first")
	w.awaitLogNote(t, "first")
	for i := range 20_000 { // more than any queue would hold
		w.agent.store.append(record{ID: "one", Acked: fmt.Sprint(i)}, nil)
	}
	w.awaitRepair(t, "second")
	w.awaitLogNote(t, "second")
	if err := w.agent.ReadyStore(t.Context()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("ReadyStore returned %v", err)
	}
	w.agent.store.mu.Lock()
	if n := len(w.agent.store.queue); n > 100 {
		t.Errorf("%d records wait for the disk", n)
	}
	w.agent.store.mu.Unlock()
	stopped := make(chan struct{})
	go func() { w.agent.stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("the agent does not end")
	}
	w.agent = startAgent(t, agentOptions(t, c, w.broker, w.consumer, w.dir), refuse)
	w.awaitRepair(t, "third")
	full.Store(false)
	w.server.awaitApplied("two")
	w.awaitLogNote(t, "third")
}

// Sequence ids go on while the disk is full, and records of one work wait as
// one.
func TestRecordsWaitForTheDiskOncePerWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := openTestStore(t, dir)
		full := true
		s.refuse = func() error {
			if full {
				return syscall.ENOSPC
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.run(ctx)
		var reserved atomic.Bool
		var durable atomic.Int64
		s.append(record{ID: "w", Spec: &spec{ID: "w", Generation: 1}}, func() { durable.Add(1) })
		s.append(record{Ceiling: 7}, func() { reserved.Store(true) })
		for i := range 3 {
			<-time.After(storeRetry) // virtual time
			s.append(record{ID: "w", Spec: &spec{ID: "w", Generation: int64(i + 2)}}, func() { durable.Add(1) })
			s.append(record{ID: "gone", Spec: &spec{ID: "gone"}}, nil)
			s.append(record{ID: "gone", Drop: true}, nil)
			for range maxEmptyRequests {
				s.append(record{}, func() {})
			}
		}
		synctest.Wait()
		if !reserved.Load() || durable.Load() > 0 {
			t.Errorf("reserved %v, %d durable while the disk is full", reserved.Load(), durable.Load())
		}
		s.mu.Lock()
		if most := maxEmptyRequests + 10; len(s.queue) > most {
			t.Errorf("%d requests wait, want at most %d", len(s.queue), most)
		}
		full = false
		s.mu.Unlock()
		<-time.After(2 * storeRetry) // virtual time
		if durable.Load() != 4 || s.failing() != nil {
			t.Errorf("%d of 4 durable: %v", durable.Load(), s.failing())
		}
		cancel()
		synctest.Wait()
		again := openTestStore(t, dir)
		defer again.f.Close()
		if len(again.works) != 1 || again.works["w"].Spec.Generation != 4 || again.ceiling != 7 {
			t.Errorf("on disk: %+v, ceiling %d", again.works, again.ceiling)
		}
	})
}

// A broker above its quota drops events without acknowledgement; with a full window a publish
// waits. Neither delays the cluster, and the agent sends dropped events again.
func TestAnUnacknowledgedPublishDelaysNothingElse(t *testing.T) {
	t.Parallel()
	c, ns := sharedCluster(t)
	w := newSite(t, c, ns, work.Consumer(ns))
	broker := &moodyLink{}
	w.agent = startAgent(t, agentOptions(t, c, w.broker, w.consumer, w.dir), func(a *Agent) {
		broker.link = a.link
		a.link = broker
	})
	w.server.apply("one", withFeedback(manifests(configMap(ns, "a", "k", "1"))))
	w.server.awaitApplied("one")
	for i := range 100 { // statuses in plenty
		w.server.apply(work.ID(fmt.Sprint("more-", i)), manifests(configMap(ns, fmt.Sprint("more-", i), "k", "1")))
	}
	broker.drops.Store(true)
	w.awaitRepair(t, "dropped")
	broker.blocks.Store(true)
	w.awaitRepair(t, "blocked")
	broker.drops.Store(false)
	broker.blocks.Store(false)
	w.awaitLogNote(t, "blocked")
	for i := range 100 {
		w.server.awaitApplied(work.ID(fmt.Sprint("more-", i)))
	}
}

// moodyLink drops or delays publishes.
type moodyLink struct {
	link
	drops, blocks atomic.Bool
}

func (l *moodyLink) publish(ctx context.Context, e bus.Event, done func(error)) error {
	for l.blocks.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	if l.drops.Load() {
		time.AfterFunc(50*time.Millisecond, func() { done(bus.ErrDisconnected) })
		return nil
	}
	return l.link.publish(ctx, e, done)
}

// The sender publishes at its rate, in the order of the calls, and its callers do not wait.
func TestTheAgentPublishesAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var connected atomic.Bool
		connected.Store(true)
		s := newSender(10, 5, connected.Load)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.run(ctx)
		var mu sync.Mutex
		var all []int
		send := func(i int) {
			s.add(func(context.Context) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, i)
			})
		}
		sent := func() []int {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		for i := range 25 {
			send(i)
		}
		synctest.Wait()
		if len(sent()) != 5 {
			t.Errorf("%d at once, want the burst of 5", len(sent()))
		}
		<-time.After(time.Second + time.Millisecond) // virtual time
		synctest.Wait()
		if len(sent()) != 15 {
			t.Errorf("%d after a second, want 15", len(sent()))
		}
		<-time.After(time.Second) // virtual time
		synctest.Wait()
		if len(sent()) != 25 || !slices.IsSorted(sent()) {
			t.Errorf("sent %v", sent())
		}
		connected.Store(false) // what a broker never sees does not count
		for range 100 {
			send(0)
		}
		synctest.Wait()
		if len(sent()) != 125 {
			t.Errorf("%d without a connection, want all of them at once", len(sent())-25)
		}
		cancel()
		synctest.Wait()
	})
}
