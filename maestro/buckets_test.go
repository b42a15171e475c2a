package maestro

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/digest"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// TestTheDatabaseHasTheSameBuckets as package digest, for any id that an agent
// may list.
func TestTheDatabaseHasTheSameBuckets(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	for n := range 200 {
		for _, id := range []string{fmt.Sprintf("3f2a9c1e-0000-4000-8000-%012d", n), fmt.Sprintf(`\x%02x\%03o'é%d`, n,
			n, n)} {
			if got, want := m.text(`select `+ledger.BucketSQL+`::text from (select $1::text as id) w`, id),
				fmt.Sprint(digest.Bucket(id, digest.MaxBits)); got != want {
				t.Fatalf("%q is in bucket %s, package digest says %s", id, got, want)
			}
		}
	}
}

// TestAListOfBucketsReadsItsBuckets: an agent with many works lists them in many
// messages; each is compared with the works of its buckets, found by an index,
// and has the same result as a comparison with all.
func TestAListOfBucketsReadsItsBuckets(t *testing.T) {
	t.Parallel()
	const works = 5000
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := &scriptedAgent{t: t, site: site, consumer: "mc1", works: map[work.ID]*agentWork{}}
	m.fill(agent, works)
	m.exec(
		`insert into unknown_work (consumer, id, generation) select 'mc1', 'stranger-' || n, 1 from generate_series(1, 1000) n`)
	m.exec(`analyze ledger`)
	m.exec(`analyze unknown_work`)

	bits := digest.Bits(works)
	ids := func(scope *ledger.Scope) (ids []work.ID) {
		t.Helper()
		err := m.server.store.Tx(t.Context(), func(tx *store.Tx) error {
			ours, err := ledger.States(t.Context(), tx, "mc1", m.server.peers.Life(), scope)
			ids = nil
			for _, w := range ours {
				ids = append(ids, w.ID)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		return ids
	}
	all := ids(nil)
	for _, buckets := range [][]int{{}, {0}, {3, 4, 1<<bits - 1}} {
		scope := ledger.NewScope(bits, buckets)
		want := slices.DeleteFunc(slices.Clone(all), func(id work.ID) bool { return !scope.Has(id) })
		if got := ids(scope); !slices.Equal(got, want) {
			t.Errorf("buckets %v have %d works, of all %d are in them", buckets, len(got), len(want))
		}
	}
	var every []int
	for n := range 1 << bits {
		every = append(every, n)
	}
	if got := ids(ledger.NewScope(bits, every)); len(got) != works+1000 {
		t.Errorf("all buckets have %d works", len(got))
	}

	var plan []string
	err := m.server.store.Tx(t.Context(), func(tx *store.Tx) error {
		scope := ledger.NewScope(bits, []int{3, 4})
		rows, err := tx.Query(t.Context(), `explain select id from ledger where consumer = 'mc1' and gone_at is null`+
			scope.SQL(1), scope.Args()...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				return err
			}
			plan = append(plan, line)
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(plan, "\n"), "ledger_bucket") {
		t.Errorf("buckets are not found by their index:\n%s", strings.Join(plan, "\n"))
	}

	// What a whole comparison costs, one message for each 16 buckets.
	begun, messages := time.Now(), 0
	for at := 0; at < 1<<bits; at += 16 {
		list := work.BucketWorks{Bits: bits}
		for n := at; n < at+16; n++ {
			list.Buckets = append(list.Buckets, n)
		}
		data, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		message := bus.Event{Type: work.AgentWorks, Data: data}
		if err := m.server.comparer.Answer(t.Context(), "mc1", message, time.Now()); err != nil {
			t.Fatal(err)
		}
		messages++
	}
	size, _ := json.Marshal(all)
	t.Logf("%d works, %d KB of ids: %d messages took %s", len(all), len(size)>>10, messages, time.Since(begun))
}
