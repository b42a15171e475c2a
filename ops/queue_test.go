package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// TestAScopeWithManyOperationsDelaysNoOther accepts 1,000 operations of one scope, of which none ends by
// itself, and then one of another scope. The process works on a share of the first scope only, and ends the
// other operation. When operations end, later ones begin.
func TestAScopeWithManyOperationsDelaysNoOther(t *testing.T) {
	const share = 8
	var mu sync.Mutex
	var released bool
	held, most, ended := map[string]bool{}, 0, 0
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), Holder: "p", AtOnce: 2 * share,
		ShareOfScope: share, PlaceFor: time.Hour,
		RecordEnd: func(context.Context, *store.Tx, State) error { return nil },
		Worker: workerFunc(func(_ context.Context, s State) Outcome {
			mu.Lock()
			defer mu.Unlock()
			if s.Scope == "small" {
				return Outcome{Event: Event{Kind: Succeed}}
			}
			held[s.ID] = true
			most = max(most, len(held))
			if released {
				delete(held, s.ID)
				ended++
				return Outcome{Event: Event{Kind: Succeed}}
			}
			return Outcome{Event: Event{Kind: Progress, Phase: "Waits"}, Again: time.Hour}
		})})
	begin := func(scope string, n int) {
		err := e.o.Store.Tx(t.Context(), func(tx *store.Tx) error {
			for i := range n {
				o := order(fmt.Sprint(scope, "-", i), fmt.Sprint("r", i))
				o.Scope = scope
				if _, err := e.Begin(t.Context(), tx, o); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	begin("large", 1000)
	run(t, e)
	testsite.Eventually(t, "the process works on the share of the large scope", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(held) < share {
			return fmt.Errorf("on %d operations", len(held))
		}
		return nil
	})
	begin("small", 1)
	awaitEnd(t, e, "small-0")
	mu.Lock()
	released = true
	if most != share {
		t.Errorf("the process worked on %d operations of the large scope at once", most)
	}
	waiting := len(held)
	mu.Unlock()
	for i := range 1000 {
		e.Wake("large", fmt.Sprint("r", i))
	}
	testsite.Eventually(t, "later operations end", func() error {
		mu.Lock()
		defer mu.Unlock()
		if ended < 5*waiting {
			return fmt.Errorf("%d have ended", ended)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if most > share {
		t.Errorf("the process worked on %d operations of the large scope at once", most)
	}
}

// TestOperationsThatOnlyWaitKeepNoPlaces fills all places with operations that wait for something that never comes, of
// as many scopes as that needs, and accepts one more of the first scope and one of a new scope. Both end. The
// operations of a scope that has more of them than places get a place again and again, and the limits hold.
func TestOperationsThatOnlyWaitKeepNoPlaces(t *testing.T) {
	const share, scopes = 4, 3
	var mu sync.Mutex
	calls := map[string]int{}
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), Holder: "p", AtOnce: share * scopes,
		ShareOfScope: share, PlaceFor: time.Nanosecond,
		RecordEnd: func(context.Context, *store.Tx, State) error { return nil },
		Worker: workerFunc(func(_ context.Context, s State) Outcome {
			mu.Lock()
			defer mu.Unlock()
			calls[s.ID]++
			if strings.HasPrefix(s.ID, "ends") {
				return Outcome{Event: Event{Kind: Succeed}}
			}
			return Outcome{Event: Event{Kind: Progress, Phase: "Waits"}, Again: time.Hour}
		})})
	accept := func(id, scope string) {
		t.Helper()
		o := order(id, id)
		o.Scope = scope
		if err := e.o.Store.Tx(t.Context(), func(tx *store.Tx) error {
			_, err := e.Begin(t.Context(), tx, o)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	run(t, e)
	var waits []string
	for i := range share * scopes {
		waits = append(waits, fmt.Sprint("waits-", i))
		accept(waits[i], fmt.Sprint("scope-", i%scopes))
	}
	// each reports the least number of calls of some operations, while tasks are displaced all the time.
	each := func(least int, ids ...string) {
		t.Helper()
		testsite.Eventually(t, fmt.Sprint(least, " calls for each of ", ids), func() error {
			e.displaceTasks()
			if err := e.enqueueDue(t.Context()); err != nil {
				return err
			}
			e.mu.Lock()
			for scope, n := range e.queue.running {
				if n > share || e.queue.total > share*scopes {
					t.Errorf("%d tasks of %s, %d in all", n, scope, e.queue.total)
				}
			}
			e.mu.Unlock()
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				if calls[id] < least {
					return fmt.Errorf("%d calls for %s", calls[id], id)
				}
			}
			return nil
		})
	}
	each(1, waits...)
	accept("ends-1", "scope-0")
	accept("ends-2", "scope-new")
	each(1, "ends-1", "ends-2")
	awaitEnd(t, e, "ends-1")
	awaitEnd(t, e, "ends-2")
	var inTurn []string // three times as many operations of one scope as it has places take turns
	for i := range share {
		inTurn = append(inTurn, fmt.Sprint("waits-", scopes*i+1))
	}
	for i := range 2 * share {
		inTurn = append(inTurn, fmt.Sprint("later-", i))
		accept(fmt.Sprint("later-", i), "scope-1")
	}
	each(3, inTurn...)
}

// TestATaskGivesItsPlaceToNoScopeWithMore gives the queue tasks that have paused for long.
func TestATaskGivesItsPlaceToNoScopeWithMore(t *testing.T) {
	for name, c := range map[string]struct {
		running map[string]int // tasks by scope, all paused for long
		waiting map[string]int
		want    map[string]int // displaced tasks by scope
	}{
		"nobody waits": {map[string]int{"a": 4, "b": 4}, nil, map[string]int{}},
		"another scope needs places": {map[string]int{"a": 4, "b": 4}, map[string]int{"c": 2},
			map[string]int{"a": 2}},
		"the own scope has its share": {map[string]int{"a": 4}, map[string]int{"a": 9}, map[string]int{"a": 4}},
		"a scope with more waits": {map[string]int{"a": 1, "b": 3, "c": 4}, map[string]int{"b": 9},
			map[string]int{"b": 3, "c": 1}},
		"each scope has one place": {map[string]int{"a": 1, "b": 1}, map[string]int{"c": 1},
			map[string]int{"a": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(8, 4)
			var tasks []*task
			for _, scope := range slices.Sorted(maps.Keys(c.running)) {
				for range c.running[scope] {
					tasks = append(tasks, &task{resource: resourceKey{scope: scope}})
				}
				q.running[scope] = c.running[scope]
				q.total += c.running[scope]
			}
			for scope, n := range c.waiting {
				for i := range n {
					q.add(waitingOperation{id: fmt.Sprint(scope, i), scope: scope})
				}
			}
			got := map[string]int{}
			for _, t := range q.displace(tasks) {
				got[t.resource.scope]++
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("displaced are %v, not %v", got, c.want)
			}
		})
	}
}

// TestAnUnreadableOperationDelaysNoOther stores an operation that cannot be decoded, and one whose process
// has died.
func TestAnUnreadableOperationDelaysNoOther(t *testing.T) {
	var log strings.Builder
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), RecordEnd: recordEnd, Holder: "p",
		Worker: workerFunc(succeed), Log: slog.New(slog.NewTextHandler(&log, nil))})
	err := e.o.Store.Tx(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Create(t.Context(), store.Document{Kind: Kind, ID: "a-broken", Scope: scope, Name: "broken",
			Spec: json.RawMessage(`{"id":1}`), Status: json.RawMessage(`{"status":1}`)})
		return err
	})
	if err == nil {
		err = accept(t.Context(), e, "thing", order("op", "thing"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.enqueueUnfinished(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.group.Wait()
	if s, err := e.Get(t.Context(), "op"); err != nil || s.Status != Succeeded {
		t.Errorf("the operation is %s, %v", s.Status, err)
	}
	if n := strings.Count(log.String(), "cannot be read"); n != 1 {
		t.Errorf("the log names the unreadable operation %d times: %s", n, log.String())
	}
}

var oneRow = regexp.MustCompile(`actual rows=1[ .]`)

// TestEndedOperationsCostNothingUntilTheyAreOld reads the plans of both lists of Run in a database with
// 20,000 ended operations, and removes the old ones.
func TestEndedOperationsCostNothingUntilTheyAreOld(t *testing.T) {
	dsn := pgtest.DSN(t)
	now := time.Now()
	e := NewEngine(Options{Store: open(t, dsn, store.Hooks{}), RecordEnd: recordEnd, Holder: "p",
		Worker: workerFunc(succeed), Now: func() time.Time { return now }})
	for _, name := range []string{"old", "active"} {
		if err := accept(t.Context(), e, name, order("op-"+name, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Cancel(t.Context(), "op-old", &Error{Code: "Canceled"}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(8 * 24 * time.Hour)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{
		`insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at,
			deleted_at, token) select 'Operation', 'e' || i, 's', 'r' || i, 1, 1, '{}', '{"status":"Succeeded"}', '', now(),
			now(), now() + interval '7 days', 1 from generate_series(1, 20000) i`,
		`analyze`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for what, q := range map[string]store.Query{"unfinished": unfinishedQuery,
		"ended": endedBefore(now.Add(-e.o.Retention))} {
		order := "d.id"
		if len(q.OrderBy) > 0 {
			order = q.OrderBy[0].Expr + ", d.id"
		}
		rows, err := conn.Query(t.Context(), `explain (analyze, costs off, timing off) select d.* from document d where
			d.kind in ('Operation') and d.removed_at is null and (`+q.Where.SQL+`) order by `+order+` limit 101`,
			q.Where.Args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if plan := strings.Join(lines, "\n"); err != nil || strings.Contains(plan, "Rows Removed") ||
			strings.Contains(plan, "Seq Scan") || !oneRow.MatchString(plan) {
			t.Errorf("the list of %s operations reads others: %v\n%s", what, err, plan)
		}
	}
	if err := e.removeExpired(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]error{"op-old": store.ErrNotFound, "op-active": nil, "e1": nil} {
		if _, err := e.o.Store.Get(t.Context(), Kind, id); !errors.Is(err, want) {
			t.Errorf("after the removal of old operations, %s: %v", id, err)
		}
	}
}

// TestAProcessReadsOnlyTheOperationsThatAreDue gives an engine operations of another process as the feed does, and
// checks which ones it reads when time passes.
func TestAProcessReadsOnlyTheOperationsThatAreDue(t *testing.T) {
	s, now := open(t, pgtest.DSN(t), store.Hooks{}), time.Now()
	clock := func() time.Time { return now }
	other := NewEngine(Options{Store: s, RecordEnd: recordEnd, Holder: "other", Now: clock})
	e := NewEngine(Options{Store: s, RecordEnd: recordEnd, Holder: "p", Worker: workerFunc(succeed), Now: clock})
	commit := func(id string, event Event) {
		t.Helper()
		after, err := other.commit(t.Context(), id, event)
		if err != nil {
			t.Fatal(err)
		}
		if event.Kind != Renew { // the feed has no renewals
			e.enqueueIfDue(t.Context(), after)
		}
	}
	for _, id := range []string{"alive", "dead", "ends"} {
		if err := accept(t.Context(), other, id, order(id, id)); err != nil {
			t.Fatal(err)
		}
		commit(id, Event{Kind: Acquire, Holder: "other", For: 10 * time.Second})
	}
	is := func(want ...string) {
		t.Helper()
		got := e.takeDue()
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Fatalf("the process reads %v, not %v", got, want)
		}
		for _, id := range got {
			e.nextRead[id] = now
		}
	}
	is()
	now = now.Add(9 * time.Second)
	commit("alive", Event{Kind: Renew, Fence: 1, For: 10 * time.Second})
	commit("ends", Event{Kind: Succeed, Fence: 1})
	is()
	now = now.Add(2 * time.Second)
	is("alive", "dead")
	if err := e.enqueueDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.group.Wait()
	if dead, err := e.Get(t.Context(), "dead"); err != nil || dead.Status != Succeeded {
		t.Errorf("the operation of the dead process is %s, %v", dead.Status, err)
	}
	is("dead") // once more, because a task may leave an operation unfinished
	if err := e.enqueueDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	is()
	now = now.Add(10 * time.Second)
	is("alive") // its other process has renewed it until now
}
