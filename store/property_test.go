package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"

	"pgregory.net/rapid"
)

// TestI1I4AFollowerConvergesToTheTable runs random interleavings of transactions that stay open, commit and roll
// back, of single writes, compactions, interruptions, and a follower that is stepped by hand, in small chunks between
// which others commit. After each whole run the follower has exactly what is committed; nothing goes back, nothing
// comes twice.
func TestI1I4AFollowerConvergesToTheTable(t *testing.T) {
	var afterChunk func()
	s, err := OpenPatiently(t.Context(), Options{
		DSN: pgtest.DSN(t), Kinds: []KindSpec{{Kind: "A", History: true}, {Kind: "B"}}, ChunkSize: 2,
		Hooks: Hooks{AfterChunk: func() { afterChunk() }},
		// A transaction stays open while others run, on a busy machine for longer than a service may keep one open.
		AcquireTimeout: time.Minute, StatementTimeout: time.Minute, LockTimeout: time.Minute,
		IdleInTxTimeout: 10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	rapid.Check(t, func(t *rapid.T) {
		afterChunk = func() {}
		m := newModel(t, s)
		defer m.close()
		t.Repeat(map[string]func(*rapid.T){
			"begin":     m.begin,
			"write":     m.write,
			"commit":    func(t *rapid.T) { m.commitOne(t) },
			"rollback":  func(t *rapid.T) { m.rollBackOne(t) },
			"compact":   m.compact,
			"interrupt": func(*rapid.T) { m.f.rewind() },
			"follow": func(t *rapid.T) {
				m.follow(t)
				m.check(t)
			},
			"follow while others commit": func(t *rapid.T) {
				n := rapid.IntRange(1, 3).Draw(t, "chunk")
				afterChunk = func() {
					if n--; n == 0 {
						m.commitOne(t)
						m.write(t)
					}
				}
				m.follow(t)
				afterChunk = func() {}
				m.follow(t)
				m.check(t)
			},
		})
	})
}

// model is the expected result.
type model struct {
	s         *Store
	prefix    string // of the ids of this round
	committed map[docKey]Document
	open      []*openTx
	f         *follower

	has    map[docKey]Document // the follower's
	seen   map[docKey]int64
	listed map[docKey]bool
}

type openTx struct {
	do     chan func(*Tx) error
	result chan error
	done   chan error
	writes map[docKey]Document
}

func newModel(t *rapid.T, s *Store) *model {
	m := &model{s: s, prefix: fmt.Sprintf("%x-", rand.Uint64()), committed: map[docKey]Document{},
		has: map[docKey]Document{}, seen: map[docKey]int64{}}
	page, err := s.List(context.Background(), Query{Kind: "A"})
	if err != nil {
		t.Fatal(err)
	}
	m.f, err = s.newFollower(FollowOptions{From: page.Cursor}, func(_ context.Context, b Batch) error {
		m.apply(t, b)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *model) begin(t *rapid.T) {
	if len(m.open) == 3 {
		t.Skip("enough are open")
	}
	o := &openTx{do: make(chan func(*Tx) error), result: make(chan error), done: make(chan error, 1),
		writes: map[docKey]Document{}}
	go func() {
		o.done <- m.s.Tx(context.Background(), func(tx *Tx) error {
			for f := range o.do {
				err := f(tx)
				o.result <- err
				if errors.Is(err, errEnd) {
					return err
				}
			}
			return nil
		})
	}()
	m.open = append(m.open, o)
}

var errEnd = errors.New("roll back")

// write changes one document, in an open transaction or by itself. Documents that another open transaction has written
// are left alone: it would wait.
func (m *model) write(t *rapid.T) {
	key := docKey{rapid.SampledFrom([]Kind{"A", "B"}).Draw(t, "kind"), m.prefix + rapid.SampledFrom(
		[]string{"1", "2", "3", "4", "5"}).Draw(t, "id")}
	var o *openTx
	if i := rapid.IntRange(-1, len(m.open)-1).Draw(t, "transaction"); i >= 0 {
		o = m.open[i]
	}
	for _, other := range m.open {
		if _, ok := other.writes[key]; ok && other != o {
			return
		}
	}
	cur, exists := m.committed[key]
	if o != nil {
		if d, ok := o.writes[key]; ok {
			cur, exists = d, true
		}
	}
	var next Document
	ctx := context.Background()
	body := json.RawMessage(fmt.Sprintf(`{"n": %d}`, rand.Int64()))
	type ops interface {
		Create(context.Context, Document) (Document, error)
		Update(context.Context, Kind, string, int64, func(*Document) error) (Document, bool, error)
		Remove(context.Context, Kind, string, int64) error
	}
	write := func(w ops) (err error) {
		switch {
		case !exists || cur.Removed:
			next, err = w.Create(ctx, Document{Kind: key.kind, ID: key.id, Spec: body})
		case rapid.IntRange(0, 3).Draw(t, "remove") == 0:
			next, err = cur, w.Remove(ctx, key.kind, key.id, cur.Version)
			next.Version, next.Removed = cur.Version+1, true
		default:
			next, _, err = w.Update(ctx, key.kind, key.id, cur.Version, func(d *Document) error {
				d.Status = body
				return nil
			})
		}
		return err
	}
	if o == nil {
		if err := write(m.s); err != nil {
			t.Fatal(err)
		}
		m.committed[key] = next
		return
	}
	if err := o.run(func(tx *Tx) error { return write(tx) }); err != nil {
		t.Fatal(err)
	}
	o.writes[key] = next
}

// run runs f in the transaction. When the transaction has already ended, run returns its error.
func (o *openTx) run(f func(*Tx) error) error {
	select {
	case o.do <- f:
		return <-o.result
	case err := <-o.done:
		o.done <- err
		return fmt.Errorf("the transaction ended early: %w", err)
	}
}

// rollBack ends the transaction.
func (o *openTx) rollBack() error {
	if err := o.run(func(*Tx) error { return errEnd }); !errors.Is(err, errEnd) {
		return err
	}
	<-o.done
	return nil
}

// takeOpen removes a random transaction from the open ones; nil: none is open.
func (m *model) takeOpen(t *rapid.T) *openTx {
	if len(m.open) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(t, "transaction")
	o := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	return o
}

// commitOne commits a random open transaction.
func (m *model) commitOne(t *rapid.T) {
	o := m.takeOpen(t)
	if o == nil {
		return
	}
	close(o.do)
	if err := <-o.done; err != nil {
		t.Fatal(err)
	}
	maps.Copy(m.committed, o.writes)
}

// rollBackOne rolls a random open transaction back.
func (m *model) rollBackOne(t *rapid.T) {
	if o := m.takeOpen(t); o != nil {
		if err := o.rollBack(); err != nil {
			t.Fatal(err)
		}
	}
}

// close ends the open transactions. After a failure they may have ended already.
func (m *model) close() {
	for _, o := range m.open {
		_ = o.rollBack() // a transaction that ended early has failed the test before
	}
}

func (m *model) compact(t *rapid.T) {
	for _, o := range m.open {
		for key := range o.writes {
			if m.committed[key].Removed {
				return // its transaction goes on from a tombstone
			}
		}
	}
	if _, err := m.s.Compact(context.Background(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for key, d := range m.committed {
		if d.Removed {
			delete(m.committed, key)
			// Created again, it starts with version 1. A follower that has not seen the removal gets a relist.
			if m.has[key].Version == 0 {
				delete(m.seen, key)
			}
		}
	}
}

// follow does one run, as Follow does.
func (m *model) follow(t *rapid.T) {
	err := m.f.run(context.Background())
	for errors.Is(err, ErrGone) || errors.Is(err, errReconnected) {
		if errors.Is(err, ErrGone) {
			m.f.restart()
		} else {
			m.f.rewind()
		}
		err = m.f.run(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m *model) apply(t *rapid.T, b Batch) {
	if b.Relist && b.First {
		m.listed, m.seen = map[docKey]bool{}, map[docKey]int64{}
	}
	for _, d := range b.Documents {
		key := docKey{d.Kind, d.ID}
		if d.Version <= m.seen[key] {
			t.Fatalf("%v: version %d came after %d", key, d.Version, m.seen[key])
		}
		m.seen[key] = d.Version
		if d.Removed {
			delete(m.has, key)
		} else {
			m.has[key] = d
		}
		if b.Relist {
			m.listed[key] = true
		}
	}
	if b.Relist && b.Last {
		maps.DeleteFunc(m.has, func(key docKey, _ Document) bool { return !m.listed[key] })
	}
}

func (m *model) check(t *rapid.T) {
	want, got := map[docKey]int64{}, map[docKey]int64{}
	for key, d := range m.committed {
		if !d.Removed {
			want[key] = d.Version
		}
	}
	for key, d := range m.has {
		if len(key.id) > len(m.prefix) && key.id[:len(m.prefix)] == m.prefix {
			got[key] = d.Version
		}
	}
	if !maps.Equal(want, got) {
		t.Fatalf("the follower has %v, committed is %v", got, want)
	}
}
