package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/digest"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/quick"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/peers"
	"atoll.dev/store"
)

// states is what the agent reports that it holds.
func (a *scriptedAgent) states() []work.WorkState {
	a.mu.Lock()
	defer a.mu.Unlock()
	states := []work.WorkState{}
	for id, w := range a.works {
		states = append(states, work.WorkState{ID: id, Version: w.generation, Status: digest.ShortStatus(w.hash),
			Life: w.life})
	}
	return states
}

// sayDigest is how an agent of ours begins to compare.
func (a *scriptedAgent) sayDigest(ctx context.Context) {
	states := a.states()
	data, _ := json.Marshal(work.Digest{Works: len(states), Root: digest.Root(digest.ItemsOf(states))})
	a.send(ctx, a.message(work.AgentDigest, data))
}

// compareDigest is how it goes on.
func (a *scriptedAgent) compareDigest(ctx context.Context, m bus.Event) {
	var answer work.DigestAnswer
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		a.t.Error(err)
		return
	}
	if answer.Ask {
		a.sayDigest(ctx)
		return
	}
	if len(answer.Buckets) == 0 {
		return
	}
	states := a.states()
	buckets, err := digest.Differing(digest.Buckets(digest.ItemsOf(states), answer.Bits), answer.Buckets, answer.Bits)
	if err != nil {
		a.t.Error(err)
		return
	}
	for _, piece := range digest.SplitWorks(states, answer.Bits, buckets) {
		data, _ := json.Marshal(piece)
		a.send(ctx, a.message(work.AgentWorks, data))
	}
}

// meter passes TCP connections on and counts what goes over them.
type meter struct {
	addr  string
	bytes atomic.Int64
	stop  func()
}

func (s *site) meter() *meter {
	s.T.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.T.Fatal(err)
	}
	m := &meter{addr: l.Addr().String()}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	group.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { m.pass(ctx, in, s.broker.Address) })
		}
	})
	m.stop = sync.OnceFunc(func() { l.Close(); cancel(); group.Wait() })
	s.T.Cleanup(m.stop)
	return m
}

func (m *meter) pass(ctx context.Context, in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() { in.Close(); out.Close() })
	defer stop()
	var group sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		group.Go(func() {
			defer in.Close()
			defer out.Close()
			_, _ = io.Copy(counting{way[1], m}, way[0])
		})
	}
	group.Wait()
}

type counting struct {
	io.Writer
	m *meter
}

func (c counting) Write(p []byte) (int, error) {
	c.m.bytes.Add(int64(len(p)))
	return c.Writer.Write(p)
}

// fill stores n delivered bundles of a consumer, and gives its agent their works. It stores the first
// bundle as the server does, and copies its rows: to store each bundle takes two round trips.
func (i *instance) fill(agent *scriptedAgent, n int) {
	i.t.Helper()
	idOf := func(k int) string { return fmt.Sprintf("3f2a9c1e-0000-4000-8000-%012d", k) }
	spec, err := bundle.Marshal(bundle.Spec{EventID: "e", Source: testSource, SpecVersion: "1.0", Type: work.SpecCreate,
		Consumer: agent.consumer, Version: 1, Data: specData(configMap("x", 1))})
	if err != nil {
		i.t.Fatal(err)
	}
	status, err := bundle.Marshal(bundle.Status{Version: 1, Data: []byte(`{}`)})
	if err != nil {
		i.t.Fatal(err)
	}
	ctx := context.Background()
	err = i.server.store.Tx(ctx, func(tx *store.Tx) error {
		first, err := tx.Create(ctx, store.Document{Kind: bundle.Kind, ID: idOf(0), Scope: string(agent.consumer), Spec: spec,
			Status: status})
		if err != nil {
			return err
		}
		if err := ledger.RecordOrder(ctx, tx, first, bundle.Spec{Source: testSource}); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update ledger set acknowledged = wanted, status_hash = 'hash-' || id where id = $1`,
			first.ID); err != nil {
			return err
		}
		var copies []string
		for k := 1; k < n; k++ {
			copies = append(copies, idOf(k))
		}
		for ids := range slices.Chunk(copies, 1000) {
			for _, sql := range []string{
				`insert into document select r.* from document d, unnest($2::text[]) copy,
					jsonb_populate_record(d, jsonb_build_object('id', copy, 'spec', replace(d.spec::text, d.id, copy)::jsonb,
						'wire', replace(d.wire::text, encode(d.id::bytea, 'hex'), encode(copy::bytea, 'hex')),
						'head', replace(d.head::text, encode(d.id::bytea, 'hex'), encode(copy::bytea, 'hex')))) r
					where d.kind = 'Bundle' and d.id = $1`,
				`insert into ledger select r.* from ledger l, unnest($2::text[]) copy,
					jsonb_populate_record(l, jsonb_build_object('id', copy, 'status_hash', 'hash-' || copy)) r
					where l.id = $1`,
			} {
				tag, err := tx.Exec(ctx, sql, first.ID, ids)
				if err != nil {
					return err
				}
				if int(tag.RowsAffected()) != len(ids) {
					return fmt.Errorf("%d of %d copies were stored", tag.RowsAffected(), len(ids))
				}
			}
		}
		return nil
	})
	if err != nil {
		i.t.Fatal(err)
	}
	agent.fault(func() {
		for k := range n {
			id := idOf(k)
			agent.works[work.ID(id)] = &agentWork{generation: 1, data: specData(configMap("x", 1)), status: []byte(`{}`),
				hash: "hash-" + id, life: i.server.peers.Life()}
		}
	})
}

// TestAResyncOf10000WorksInSync measures a resync of equal sides on the wire, TLS and MQTT included,
// after the agent and after the server have restarted.
func TestAResyncOf10000WorksInSync(t *testing.T) {
	t.Parallel()
	quick.LeavesOut(t, "delivers 10,000 works")
	site := newSite(t)
	m := site.meter()
	through := func(o *Options) { o.Broker = m.addr }
	server := site.start(through)
	server.consumer("mc1")
	agent := site.agentAt("mc1", m.addr)
	agent.fault(func() { agent.digests = true })
	agent.stop()
	server.fill(agent, 10_000)
	agent.start()
	same := func(n int) func() error {
		return func() error {
			answers := 0
			for _, e := range agent.received(work.ServerDigest) {
				var a work.DigestAnswer
				if json.Unmarshal(e.Data, &a) == nil && a.Same {
					answers++
				}
			}
			if answers < n {
				return fmt.Errorf("%d answers", answers)
			}
			return nil
		}
	}
	eventually(t, "both hold the same", same(1))
	// A server that starts asks the agent to compare. After DeadAfter it finds that the server before it is gone, and
	// asks once more. Each time one request and one answer reach the agent.
	cost := func(what string, comparisons int, f func()) {
		t.Helper()
		for range 3 { // on a busy machine a server may miss a beat and be taken for gone: that only adds to the cost
			agent.fault(func() { agent.events, agent.sent = nil, nil })
			before := m.bytes.Load()
			f()
			eventually(t, what+": both hold the same", same(1))
			agent.quiet(t, peers.DeadAfter+time.Second)
			bytes := m.bytes.Load() - before
			agent.mu.Lock()
			down, up := len(agent.events), len(agent.sent)
			agent.mu.Unlock()
			t.Logf("%s: %d bytes, %d messages to the agent, %d from it", what, bytes, down, up)
			if bytes <= 16<<10 && max(down, up) <= 2*comparisons {
				return
			}
		}
		t.Errorf("%s costs more than %d comparisons each time", what, comparisons)
	}
	cost("the agent restarts", 1, func() { agent.stop(); agent.start() })
	cost("the server restarts", 2, func() { server.end(); server = site.start(through) })
	agent.fault(func() { agent.digests = false })
	agent.stop()
}

// TestI6WhatAnAgentReportedWithoutABrokerIsAskedFor of one that compares by
// lists, when it comes back and the server was there all the time.
func TestI6WhatAnAgentReportedWithoutABrokerIsAskedFor(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	m.source().create("mc1", "w1", 1)
	m.awaitAllObserved(1)
	agent.stop()
	agent.report("w1", "Changed") // no server receives it
	agent.start()
	eventually(t, "the status has arrived", func() error {
		if b := m.bundle("w1"); !strings.Contains(fmt.Sprintf("%s", b.Status.Conditions), "Changed") {
			return fmt.Errorf("%s", b.Status.Conditions)
		}
		return nil
	})
}

// TestI8WrongDigestsOnlyCostTraffic: whatever an agent claims to hold, nothing
// is deleted that is not under deletion, and the truth converges afterwards.
func TestI8WrongDigestsOnlyCostTraffic(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	agent.fault(func() { agent.digests = true })
	src := m.source()
	for n := range 50 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	m.awaitAllObserved(50)
	agent.mu.Lock()
	delete(agent.works, "w3")          // lost
	agent.works["w4"].generation = 0   // older
	agent.works["w5"].hash = "another" // another status
	agent.works["stranger"] = &agentWork{generation: 7, data: specData(configMap("s", 1)), status: []byte(`{}`),
		hash: "x"}
	agent.mu.Unlock()
	for _, lie := range []struct {
		kind string
		data any
	}{
		{work.AgentDigest, work.Digest{Works: -1, Root: "?"}},
		{work.AgentDigest, work.Digest{Works: 1 << 30, Root: ""}},
		{work.AgentDigest, work.Digest{Works: 0, Root: "?"}},
		{work.AgentDigest, "no digest"},
		{work.AgentWorks, work.BucketWorks{Bits: 40, Buckets: []int{1}}},
		{work.AgentWorks, work.BucketWorks{Bits: 3, Buckets: []int{-1, 9, 1 << 40}}},
		{work.AgentWorks, work.BucketWorks{Bits: 3, Buckets: []int{1, 1, 1}}},
		{work.AgentWorks, work.BucketWorks{Bits: 0, Buckets: []int{0}, Works: []work.WorkState{{ID: "w1", Version: -7},
			{ID: "w2", Version: 5, Deleting: true}, {ID: "", Version: 1}}}},
		{work.AgentWorks, work.BucketWorks{Bits: 4, Buckets: nil, Works: []work.WorkState{
			{ID: "w9", Version: 1, Status: "other"}}}},
	} {
		data, err := json.Marshal(lie.data)
		if err != nil {
			t.Fatal(err)
		}
		agent.send(t.Context(), agent.message(lie.kind, data))
	}
	agent.sayDigest(t.Context())
	eventually(t, "the agent holds everything as it was", func() error {
		agent.sayDigest(t.Context())
		generation, _ := agent.holds("w4")
		if n := agent.count(); n != 51 || generation == 0 {
			return fmt.Errorf("%d works, w4 has generation %d", n, generation)
		}
		same := agent.received(work.ServerDigest)
		if len(same) == 0 {
			return errors.New("the server has not answered yet")
		}
		var a work.DigestAnswer
		if err := json.Unmarshal(same[len(same)-1].Data, &a); err != nil || !a.Same {
			return fmt.Errorf("the last answer: %s %v", same[len(same)-1].Data[:min(100, len(same[len(same)-1].Data))],
				err)
		}
		return nil
	})
	for _, kind := range []string{work.SpecDelete, work.SpecResyncResponse} {
		for _, e := range agent.received(kind) {
			if e.Extensions[work.ExtDeletionTimestamp] != "" {
				t.Errorf("a deletion: %+v", e.Extensions)
			}
		}
	}
}

// TestI8AnEqualGenerationOfAnotherLifeIsNone: the database was lost and the
// source has ordered something else since, until its generation was again the
// one that the agent has. It is not what the agent has.
func TestI8AnEqualGenerationOfAnotherLifeIsNone(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	agent.fault(func() { agent.digests = true })
	src := m.source()
	src.create("mc1", "w1", "first")
	src.update("mc1", "w1", "old")
	m.awaitAllObserved(1)
	m.end()
	agent.stop()

	site.dsn = pgtest.DSN(t)
	m = site.start(quickRetries)
	m.consumer("mc1")
	src = m.source()
	src.create("mc1", "w1", "first")
	src.update("mc1", "w1", "new")
	agent.start()
	agent.awaitValue("w1", "new")
	m.awaitAllObserved(1)
}

// quiet waits until nothing has come or gone for a while.
func (a *scriptedAgent) quiet(t *testing.T, silence time.Duration) {
	t.Helper()
	last, since := -1, time.Now()
	eventually(t, "it is quiet", func() error {
		a.mu.Lock()
		now := len(a.events) + len(a.sent)
		a.mu.Unlock()
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < silence {
			return fmt.Errorf("%d messages so far", now)
		}
		return nil
	})
}
