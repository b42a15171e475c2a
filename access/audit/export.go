package audit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"atoll.dev/internal/pause"
)

// ObjectWriter stores the objects of an export.
type ObjectWriter interface {
	// Put stores an object, or replaces it. nil means that the store has promised to keep it. It ends within a time limit
	// of its own.
	Put(ctx context.Context, name string, content []byte) error
}

const (
	// DefaultExportPeriod is the time between two rounds of an Exporter, and so about how long a record waits.
	DefaultExportPeriod = time.Minute
	exportLease         = 20 * time.Second // of a target; each object renews it
	exportPage          = 500              // records of one read
	maxExportRecords    = 5000             // of one object
	maxExportBytes      = 4 << 20          // of one object, and one page more
)

// Exporter copies the chain to an object store as JSON lines, in objects that are never changed. It has no queue of its
// own: it reads the records from the chain, and holds one object in memory. While the store is away, only the copy gets
// older. Each record is exported at least once: the position moves when the object is stored, so that a
// kill between the two repeats the object's records in the next one. See objectName.
type Exporter struct {
	Chain   *Chain
	Objects ObjectWriter
	Prefix  string                // of the objects: ExportPrefix of the region
	Target  string                // names the store, such as its bucket; another target has another position
	Period  time.Duration         // default DefaultExportPeriod
	Log     *slog.Logger          // default slog.Default()
	Metrics prometheus.Registerer // may be nil

	owner           string
	records, failed prometheus.Counter

	mu     sync.Mutex
	behind lag
}

// Run exports until ctx ends, and returns the cause of that end. After an error it tries again. Several replicas may
// call Run: one at a time exports.
func (x *Exporter) Run(ctx context.Context) error {
	x.prepare()
	log := exportLog{log: x.Log, often: rate.Sometimes{Interval: time.Minute}}
	backoff := time.Duration(0)
	for {
		err := x.exportAll(ctx)
		if ctx.Err() != nil {
			x.leave()
			return context.Cause(ctx)
		}
		wait := x.Period
		if errors.Is(err, errNotOwner) {
			err = nil
			wait = min(wait, exportLease)
		}
		if err != nil {
			x.failed.Inc()
			backoff = min(max(2*backoff, 500*time.Millisecond), x.Period)
			wait = backoff
		} else {
			backoff = 0
		}
		log.report(ctx, err, x.lag(), x.Period)
		if !pause.For(ctx, wait) {
			x.leave()
			return context.Cause(ctx)
		}
	}
}

// prepare sets what the caller has not set, once.
func (x *Exporter) prepare() {
	if x.owner != "" {
		return
	}
	x.owner = rand.Text()
	if x.Period <= 0 {
		x.Period = DefaultExportPeriod
	}
	if x.Log == nil {
		x.Log = slog.Default()
	}
	x.registerMetrics()
}

// leave lets another replica go on at once, when this process ends.
func (x *Exporter) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = x.Chain.leaveExport(ctx, x.Target, x.owner) // the lease ends by itself
}

// exportAll exports all records that the chain has. If another replica exports, the error is errNotOwner.
func (x *Exporter) exportAll(ctx context.Context) error {
	for {
		position, err := x.Chain.ownExport(ctx, x.Target, x.owner, exportLease)
		if err == nil || errors.Is(err, errNotOwner) {
			x.see(position)
		}
		if err != nil {
			return err
		}
		from, problem := position.next()
		if problem != "" {
			x.Log.LogAttrs(ctx, slog.LevelError, "the export of audit records does not go on where it was",
				slog.String("target", x.Target), slog.String("problem", problem))
		}
		content, last, err := x.collect(ctx, from)
		if errors.Is(err, errDeletedByAge) {
			continue // since the position was read: the next look finds where the chain begins now
		}
		if err != nil || last == position.last {
			return err
		}
		if last == from { // the chain begins anew, without records
			return x.Chain.moveExport(ctx, x.Target, position.last, last)
		}
		if err := x.Objects.Put(ctx, x.Prefix+objectName(from.Seq+1, last), content); err != nil {
			return err
		}
		if err := x.Chain.moveExport(ctx, x.Target, position.last, last); err != nil {
			return err
		}
		x.records.Add(float64(last.Seq - from.Seq))
	}
}

// errDeletedByAge is the error of a read behind which the chain no longer goes on, because it was shortened by age.
var errDeletedByAge = errors.New("audit records were deleted by age")

// collect returns the records after from as JSON lines, as many as an object has, and the last of them. A record that
// does not follow the one before it is an error: somebody altered the chain. If records after from were deleted by age,
// it returns those before them, or errDeletedByAge.
func (x *Exporter) collect(ctx context.Context, from Anchor) (content []byte, last Anchor, err error) {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for last = from; last.Seq-from.Seq < maxExportRecords && lines.Len() < maxExportBytes; {
		entries, err := x.Chain.recordsAfter(ctx, last.Seq, exportPage)
		if errors.Is(err, errDeletedByAge) && last != from {
			break
		}
		if err != nil {
			return nil, from, fmt.Errorf("reading audit records: %w", err)
		}
		for _, e := range entries {
			if err := checkNext(last, e); err != nil {
				return nil, from, fmt.Errorf("%w; run: atoll audit verify", err)
			}
			if err := encoder.Encode(e); err != nil {
				return nil, from, fmt.Errorf("audit record %d: %w", e.Seq, err)
			}
			last = Anchor{Seq: e.Seq, Hash: e.Hash}
		}
		if len(entries) < exportPage {
			break
		}
	}
	return lines.Bytes(), last, nil
}
