package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/test/testsite"
)

// bucket is an object store in memory.
type bucket struct {
	t *testing.T

	mu      sync.Mutex
	objects map[string][]byte
	put     func() error // decides on the next Put: an error before it is stored; nil: always stored
	stored  func() error // its error is the answer to an object that was stored
	largest int
}

func newBucket(t *testing.T) *bucket { return &bucket{t: t, objects: map[string][]byte{}} }

// Put implements ObjectWriter. An object that is stored again with other bytes fails the test.
func (b *bucket) Put(_ context.Context, name string, content []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.put != nil {
		if err := b.put(); err != nil {
			return err
		}
	}
	if before, isStored := b.objects[name]; isStored && !bytes.Equal(before, content) {
		b.t.Errorf("object %s was changed", name)
	}
	b.objects[name] = bytes.Clone(content)
	b.largest = max(b.largest, len(content))
	if b.stored != nil {
		return b.stored()
	}
	return nil
}

func (b *bucket) Get(_ context.Context, name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	content, isStored := b.objects[name]
	if !isStored {
		return nil, errors.New("no such object")
	}
	return content, nil
}

func (b *bucket) ListAfter(_ context.Context, prefix, after string, limit int) ([]string, error) {
	var names []string
	for _, name := range b.names() {
		if strings.HasPrefix(name, prefix) && name > after {
			names = append(names, name)
		}
	}
	return names[:min(limit, len(names))], nil
}

func (b *bucket) names() (names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (b *bucket) verify(expect Anchor) (Exported, error) {
	return VerifyExport(b.t.Context(), expect, "p/", b)
}

func (b *bucket) exporter(c *Chain) *Exporter {
	x := &Exporter{Chain: c, Objects: b, Prefix: "p/", Target: "bucket", Period: 10 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler)}
	x.prepare()
	return x
}

// add appends n records whose keys begin with a name.
func add(t *testing.T, c *Chain, name string, n int) {
	t.Helper()
	var records []Record
	for i := range n {
		records = append(records, Record{Time: timeText(time.Date(2026, 2, 1, 0, 0, i, 0, time.UTC)), Service: "x",
			Key: fmt.Sprint(name, i), Outcome: Done, UserAgent: "<ü&>\u2028"})
	}
	if err := c.appendRecords(t.Context(), records); err != nil {
		t.Fatal(err)
	}
}

func headOf(t *testing.T, c *Chain) Anchor {
	t.Helper()
	page, err := c.List(t.Context(), Query{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	return page.Head
}

// exported waits until the export ends with the head of the chain.
func (b *bucket) exported(c *Chain) Exported {
	b.t.Helper()
	var v Exported
	testsite.Eventually(b.t, "the export has all records", func() (err error) {
		if v, err = b.verify(Anchor{}); err == nil && v.Head != headOf(b.t, c) {
			err = fmt.Errorf("it ends with record %d", v.Head.Seq)
		}
		return err
	})
	return v
}

// Replicas export while records are appended, the store refuses objects, answers of stored objects are lost, and one
// replica after the other is cut off: each record is in the export, and no object changes.
func TestEachRecordIsExportedI12(t *testing.T) {
	chain, _, _ := open(t, pgtest.DSN(t))
	b := newBucket(t)
	random := rand.New(rand.NewPCG(1, 2))
	refuse := func() error {
		if random.IntN(3) == 0 {
			return errors.New("the store is away")
		}
		return nil
	}
	b.put, b.stored = refuse, refuse
	ctx, stop := context.WithCancel(t.Context())
	var replicas sync.WaitGroup
	for range 2 {
		replicas.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				x := b.exporter(chain)
				short, end := context.WithTimeout(ctx, time.Duration(1+i%10)*20*time.Millisecond)
				_ = x.Run(short)
				end()
			}
		})
	}
	for i := range 60 {
		add(t, chain, fmt.Sprintf("%d-", i), 1+i)
	}
	v := b.exported(chain)
	stop()
	replicas.Wait()
	if v.Records != 60*61/2 || v.First != 1 || len(v.Forks) > 0 {
		t.Errorf("the export has %+v", v)
	}
	if _, err := b.verify(v.Head); err != nil {
		t.Error(err)
	}
}

// A kill between the object and the position makes the next object repeat its records. A reader drops them.
func TestAKillAfterAnObjectRepeatsItsRecords(t *testing.T) {
	chain, _, conn := open(t, pgtest.DSN(t))
	b := newBucket(t)
	add(t, chain, "a", 10)
	ctx, kill := context.WithCancel(t.Context())
	b.stored = func() error { kill(); return context.Canceled }
	if err := b.exporter(chain).exportAll(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.stored = nil
	if _, err := conn.Exec(t.Context(), `update audit_export set owned_until = '-infinity'`); err != nil { // 20 s later
		t.Fatal(err)
	}
	add(t, chain, "b", 5)
	if err := b.exporter(chain).exportAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, err := b.verify(headOf(t, chain))
	if err != nil || v.Objects != 2 || v.Records != 15 || v.Repeated != 10 || len(v.Forks) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// While one process owns the export, another one stores nothing.
func TestOneReplicaExports(t *testing.T) {
	chain, _, conn := open(t, pgtest.DSN(t))
	b := newBucket(t)
	first, second := b.exporter(chain), b.exporter(chain)
	if err := first.exportAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	add(t, chain, "a", 3)
	err := second.exportAll(t.Context())
	if !errors.Is(err, errNotOwner) || len(b.names()) > 0 || second.lag().records != 3 {
		t.Errorf("the second replica: %v, objects %v, behind %+v", err, b.names(), second.lag())
	}
	first.leave()
	if err := second.exportAll(t.Context()); err != nil || len(b.names()) != 1 || second.lag().records != 0 {
		t.Errorf("after the first left: %v, objects %v", err, b.names())
	}
	set := `update audit_export set owned_until = now() + interval '1 hour'` // the clock was set back
	if _, err := conn.Exec(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if err := first.exportAll(t.Context()); err != nil {
		t.Errorf("after the clock was set back: %v", err)
	}
}

// An object has a bounded size, so that an export of a long chain takes bounded memory.
func TestALongChainIsExportedInBoundedObjects(t *testing.T) {
	chain, _, _ := open(t, pgtest.DSN(t))
	b := newBucket(t)
	for i := range 3 {
		add(t, chain, fmt.Sprintf("%d-", i), maxExportRecords/2)
	}
	x := b.exporter(chain)
	if err := x.exportAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, err := b.verify(headOf(t, chain))
	if err != nil || v.Objects != 2 || v.Records != 3*maxExportRecords/2 || b.largest > maxExportBytes+exportPage*8<<10 {
		t.Errorf("%+v, %v, the largest object has %d bytes", v, err, b.largest)
	}
}

// A chain that was set back goes on from where its objects end: both ends are in the export. So does one that somebody
// made anew. A verification shows it.
func TestAChainThatWasSetBackIsAFork(t *testing.T) {
	chain, _, conn := open(t, pgtest.DSN(t))
	b := newBucket(t)
	export := func() {
		t.Helper()
		x := b.exporter(chain)
		if err := x.exportAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.leave()
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	add(t, chain, "a", 10)
	export()
	exec(`create table p as select * from audit_export; create table h as select * from audit_head`)
	add(t, chain, "b", 10)
	export()
	lost := headOf(t, chain)
	exec(`delete from audit_record where seq > 10; delete from audit_head; insert into audit_head select * from h;
		delete from audit_export; insert into audit_export select * from p`) // as a restore does
	add(t, chain, "c", 7)
	export()
	v, err := b.verify(lost)
	if err != nil || v.Records != 27 || !slices.Equal(v.Forks, []int64{11}) {
		t.Errorf("after a restore: %+v, %v", v, err)
	}
	if _, err := b.verify(headOf(t, chain)); err != nil {
		t.Error(err)
	}
	exec(`update audit_head set seq = 0, hash = anchor_hash; delete from audit_record`)
	add(t, chain, "d", 30)
	export()
	v, err = b.verify(headOf(t, chain))
	if err != nil || !slices.Equal(v.Forks, []int64{1, 11}) || v.Records != 57 || v.Head != headOf(t, chain) {
		t.Errorf("after the chain was made anew: %+v, %v", v, err)
	}
}

// A verification of an export names the first record that is missing or altered.
func TestVerifyFindsARemovedOrAlteredObject(t *testing.T) {
	chain, _, _ := open(t, pgtest.DSN(t))
	b := newBucket(t)
	x := b.exporter(chain)
	for i := range 4 {
		add(t, chain, fmt.Sprintf("%d-", i), 10)
		if err := x.exportAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	names, whole := b.names(), b.objects
	for _, c := range []struct {
		what   string
		change func(map[string][]byte)
		broken int64
	}{
		{"nothing", func(map[string][]byte) {}, 0},
		{"a removed object", func(o map[string][]byte) { delete(o, names[1]) }, 11},
		{"the last object removed", func(o map[string][]byte) { delete(o, names[3]) }, 40},
		{"an altered record", func(o map[string][]byte) {
			o[names[2]] = bytes.Replace(o[names[2]], []byte(`"done"`), []byte(`"none"`), 1)
		}, 21},
		{"a removed record", func(o map[string][]byte) {
			_, o[names[2]], _ = bytes.Cut(o[names[2]], []byte("\n"))
		}, 20},
		{"a removed record at the end", func(o map[string][]byte) {
			o[names[2]] = o[names[2]][:bytes.LastIndexByte(bytes.TrimSpace(o[names[2]]), '\n')+1]
		}, 29},
		{"half a line", func(o map[string][]byte) { o[names[2]] = o[names[2]][:len(o[names[2]])-9] }, 30},
		{"an object under another name", func(o map[string][]byte) { o[names[3]] = o[names[2]] }, 30},
		{"something else", func(o map[string][]byte) { o["p/x"] = nil }, 41},
	} {
		b.objects = map[string][]byte{}
		for name, content := range whole {
			b.objects[name] = bytes.Clone(content)
		}
		c.change(b.objects)
		_, err := b.verify(headOf(t, chain))
		broken, _ := errors.AsType[*BrokenError](err)
		if (err != nil) != (c.broken != 0) || broken != nil && broken.Seq != c.broken {
			t.Errorf("after %s: %v, want record %d", c.what, err, c.broken)
		}
	}
}

// Records that were deleted by age before the store came back are missing in the export, and the verification says so.
func TestRecordsThatWereDeletedBeforeTheirExportAreMissing(t *testing.T) {
	chain, _ := filled(t)
	b := newBucket(t)
	x := b.exporter(chain)
	if _, err := chain.trim(t.Context(), time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	if err := x.exportAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, err := b.verify(headOf(t, chain)); err != nil || v.First != 3 {
		t.Errorf("an export that begins later: %+v, %v", v, err)
	}
	add(t, chain, "new", 3)
	if _, err := chain.trim(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := x.exportAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := b.verify(Anchor{})
	if broken, ok := errors.AsType[*BrokenError](err); !ok || !strings.Contains(broken.Reason, "deleted by age") {
		t.Errorf("an export with a gap: %v", err)
	}
}

// A deletion by age between the look at the position and the read of records breaks no chain: the export goes on with
// the first record that is left, in the same round.
func TestADeletionByAgeDuringAnExportIsNoBrokenChain(t *testing.T) {
	c, _, _ := open(t, pgtest.DSN(t))
	add(t, c, "old", 10)
	b := newBucket(t)
	x := b.exporter(c)
	position, err := c.ownExport(t.Context(), x.Target, x.owner, exportLease)
	if err != nil {
		t.Fatal(err)
	}
	from, problem := position.next()
	if from.Seq != 0 || problem != "" {
		t.Fatalf("from %d, problem %q", from.Seq, problem)
	}
	if n, err := c.trim(t.Context(), time.Date(2026, 2, 1, 0, 0, 5, 0, time.UTC)); err != nil || n != 5 {
		t.Fatalf("%d records deleted, %v", n, err)
	}
	if _, _, err := x.collect(t.Context(), from); !errors.Is(err, errDeletedByAge) {
		t.Errorf("after a deletion of the next records: %v", err)
	}
	if err := x.exportAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := b.verify(headOf(t, c)); err != nil || got.Head != headOf(t, c) {
		t.Errorf("exported %+v, %v", got, err)
	}
}
