// Command store measures the store: single-document writes per second, and the time from a commit to a follower.
//
// It starts a PostgreSQL server of its own with default durability, or uses the one of -dsn, and prints JSON lines.
package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	_ "net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"atoll.dev/bench/report"
	"atoll.dev/internal/postgres"
	"atoll.dev/store"
)

var (
	dsn      = flag.String("dsn", "", "an empty database to use instead of a server of its own")
	writers  = flag.Int("writers", 16, "concurrent writers")
	size     = flag.Int("size", 1024, "bytes of a document's spec")
	docs     = flag.Int("documents", 20000, "documents in the database")
	duration = flag.Duration("duration", 10*time.Second, "of each measurement")
	rate     = flag.Int("rate", 500, "writes per second while the latency is measured")
	seed     = flag.Uint64("seed", 1, "of the random choices")
	pprof    = flag.String("pprof", "", "serve profiles on this address")
	only     = flag.String("only", "", "run the measurements whose names contain this")
	history  = flag.Bool("history", true, "keep history, as audited kinds do")
)

func main() {
	flag.Parse()
	if *pprof != "" {
		go http.ListenAndServe(*pprof, nil)
	}
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	if *dsn == "" {
		stop, err := server(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	b := &bench{}
	if err := b.fill(ctx); err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		one  func(ctx context.Context, s *store.Store, r *rand.Rand, writer int) error
	}{
		{"store/create", b.create},
		{"store/update", b.update},
		{"store/update_from", b.updateFrom},
	} {
		if !strings.Contains(m.name, *only) {
			continue
		}
		if err := b.throughput(ctx, m.name, m.one); err != nil {
			return err
		}
	}
	for _, follower := range []follower{writersStore, otherStore} {
		if !strings.Contains("store/latency", *only) {
			break
		}
		if err := b.latency(ctx, follower); err != nil {
			return err
		}
	}
	return nil
}

// server starts a PostgreSQL server in a temporary directory.
func server(ctx context.Context) (stop func(), err error) {
	dir, err := os.MkdirTemp("", "atoll-bench-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	c := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s")}
	if err := c.Init(ctx); err != nil {
		return nil, err
	}
	p, err := c.Start(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	if err := c.EnsureDatabase(ctx, "bench", "bench"); err != nil {
		return nil, err
	}
	*dsn = c.DSN("bench", "bench")
	dataDir = c.DataDir
	return func() {
		p.Stop()
		os.RemoveAll(dir)
	}, nil
}

var dataDir string // of a server of its own

// cpu is the processor time that this process and the server's have used.
func cpu() (d time.Duration) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		dir := filepath.Dir(f)
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if filepath.Base(dir) != strconv.Itoa(os.Getpid()) && (dataDir == "" || cwd != dataDir) {
			continue
		}
		data, _ := os.ReadFile(f)
		_, afterName, _ := strings.Cut(string(data), ") ")
		if fields := strings.Fields(afterName); len(fields) > 12 {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			d += time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
		}
	}
	return d
}

type bench struct {
	known sync.Map // id to the document as last written
	next  atomic.Int64
}

func open(ctx context.Context) (*store.Store, error) {
	return store.Open(ctx, store.Options{DSN: *dsn, Kinds: []store.KindSpec{{Kind: "Bundle", History: *history,
		Render: wire}}})
}

func wire(d store.Document) ([]byte, error) {
	return fmt.Appendf(nil, `{"id":%q,"version":%d,"generation":%d,"spec":%s,"status":%s}`, d.ID, d.Version,
		d.Generation, d.Spec, d.Status), nil
}

// body is a spec of -size bytes which differs each time.
func body(r *rand.Rand) json.RawMessage {
	text := fmt.Appendf(make([]byte, 0, *size+64), `{"at": %d, "n": %d, "labels": {"a": "b"}, "text": "`,
		time.Now().UnixNano(), r.Int64())
	for len(text) < *size-2 {
		text = append(text, hex.EncodeToString(binary.BigEndian.AppendUint64(nil, r.Uint64()))...)
	}
	return append(text, `"}`...)
}

func id(n int64) string { return fmt.Sprintf("0190b4a0-0000-7000-8000-%012d", n) }

func (b *bench) fill(ctx context.Context) error {
	s, err := open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	r := rand.New(rand.NewPCG(*seed, 0))
	for n := 0; n < *docs; {
		err := s.Tx(ctx, func(tx *store.Tx) error {
			for range 500 {
				d, err := tx.Create(ctx, document(int64(n), r))
				if err != nil {
					return err
				}
				b.known.Store(d.ID, d)
				n++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.next.Store(int64(*docs))
	return nil
}

func document(n int64, r *rand.Rand) store.Document {
	return store.Document{Kind: "Bundle", ID: id(n), Scope: fmt.Sprintf("consumer-%d", n%50), Name: fmt.Sprintf(
		"work-%d", n), Spec: body(r)}
}

func (b *bench) create(ctx context.Context, s *store.Store, r *rand.Rand, writer int) error {
	_, err := s.Create(ctx, document(b.next.Add(1), r))
	return err
}

func (b *bench) update(ctx context.Context, s *store.Store, r *rand.Rand, writer int) error {
	_, _, err := s.Update(ctx, "Bundle", id(int64(r.IntN(*docs))), 0, func(d *store.Document) error {
		d.Spec = body(r)
		return nil
	})
	return err
}

// updateFrom updates what this process knows already, as a follower that answers to a change does.
func (b *bench) updateFrom(ctx context.Context, s *store.Store, r *rand.Rand, writer int) error {
	n := r.IntN(*docs / *writers)**writers + writer
	known, _ := b.known.Load(id(int64(n)))
	d, _, err := s.UpdateFrom(ctx, known.(store.Document), func(d *store.Document) error {
		d.Spec = body(r)
		return nil
	})
	if err == nil {
		b.known.Store(d.ID, d)
	}
	return err
}

func params() map[string]any {
	return map[string]any{"writers": *writers, "size": *size, "documents": *docs, "duration": duration.String(),
		"seed":    *seed,
		"history": *history, "durability": "fsync=on synchronous_commit=on"}
}

func (b *bench) throughput(ctx context.Context, name string, one func(context.Context, *store.Store, *rand.Rand,
	int) error) error {
	s, err := open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	timed, cancel := context.WithTimeout(ctx, *duration)
	defer cancel()
	took := make([][]time.Duration, *writers)
	errs := make(chan error, *writers)
	started, used := time.Now(), cpu()
	for w := range *writers {
		go func() {
			r := rand.New(rand.NewPCG(*seed, uint64(w)))
			for timed.Err() == nil {
				t := time.Now()
				if err := one(ctx, s, r, w); err != nil {
					errs <- err
					return
				}
				took[w] = append(took[w], time.Since(t))
			}
			errs <- nil
		}()
	}
	for range *writers {
		if err := <-errs; err != nil {
			return err
		}
	}
	elapsed := time.Since(started)
	used = cpu() - used
	var all []time.Duration
	for _, t := range took {
		all = append(all, t...)
	}
	figures := map[string]any{
		"writes_per_second": float64(len(all)) / elapsed.Seconds(),
		// Unlike the rate, this is comparable between runs on a busy machine.
		"cpu_us_per_write": float64(used.Microseconds()) / float64(len(all)),
	}
	report.Percentiles(figures, "write", all)
	return report.Line(os.Stdout, name, params(), figures)
}

// follower is the store from which latency follows the feed.
type follower string

// The followers.
const (
	writersStore follower = "same process"    // it wakes its followers itself
	otherStore   follower = "another process" // as there, only a notification of PostgreSQL wakes it
)

// latency measures the time from the acknowledgement of a write until a follower has it.
func (b *bench) latency(ctx context.Context, follower follower) error {
	s, err := open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	watcher := s
	if follower == otherStore {
		if watcher, err = open(ctx); err != nil {
			return err
		}
		defer watcher.Close()
	}
	page, err := watcher.List(ctx, store.Query{Kind: "Bundle", Limit: 1})
	if err != nil {
		return err
	}
	w := writes{seen: map[string]time.Time{}, acked: map[string]time.Time{}}
	fctx, stop := context.WithCancel(ctx)
	following := make(chan error, 1)
	go func() {
		following <- watcher.Follow(fctx, store.FollowOptions{From: page.Cursor}, w.noteSeen)
	}()
	w.write(ctx, s)
	for w.countUnseen() > 0 {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	<-following
	var took []time.Duration
	for k, at := range w.acked {
		took = append(took, max(0, w.seen[k].Sub(at)))
	}
	figures := map[string]any{"writes_per_second": float64(len(took)) / duration.Seconds()}
	report.Percentiles(figures, "commit_to_follower", took)
	p := params()
	p["rate"], p["follower"] = *rate, string(follower)
	return report.Line(os.Stdout, "store/latency", p, figures)
}

// writes are the times of the writes of latency, by writeKey.
type writes struct {
	mu          sync.Mutex
	seen, acked map[string]time.Time // by the follower, and to the writer
}

// writeKey names one version of a document.
func writeKey(d store.Document) string { return fmt.Sprint(d.ID, "/", d.Version) }

// noteSeen records what a follower has received.
func (w *writes) noteSeen(_ context.Context, batch store.Batch) error {
	at := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range batch.Documents {
		w.seen[writeKey(d)] = at
	}
	return nil
}

// write updates documents at a steady pace by several writers.
func (w *writes) write(ctx context.Context, s *store.Store) {
	jobs := make(chan int64, 10000)
	var group sync.WaitGroup
	for writer := range *writers {
		group.Go(func() {
			r := rand.New(rand.NewPCG(*seed, uint64(writer)))
			for n := range jobs {
				d, _, err := s.Update(ctx, "Bundle", id(n), 0, func(d *store.Document) error {
					d.Spec = body(r)
					return nil
				})
				at := time.Now()
				if err != nil {
					log.Print(err)
					continue
				}
				w.mu.Lock()
				w.acked[writeKey(d)] = at
				w.mu.Unlock()
			}
		})
	}
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	n := int64(0)
	for end := time.Now().Add(*duration); time.Now().Before(end); n++ {
		<-tick.C
		jobs <- n % int64(*docs) // each once, so that no state is merged away
	}
	tick.Stop()
	close(jobs)
	group.Wait()
}

// countUnseen returns how many acknowledged writes the follower has not received.
func (w *writes) countUnseen() (missing int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.acked {
		if _, ok := w.seen[k]; !ok {
			missing++
		}
	}
	return missing
}
