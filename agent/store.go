package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/internal/atomicfile"
)

// record is one entry of the store's log: a change of one work, or of the
// sequence's ceiling. Fields that are absent did not change.
type record struct {
	Header   *storeHeader `json:"header,omitempty"`
	ID       work.ID      `json:"id,omitempty"`
	Spec     *spec        `json:"spec,omitempty"`
	Progress *progress    `json:"progress,omitempty"`
	Status   *sentStatus  `json:"status,omitempty"`
	Acked    string       `json:"acked,omitempty"` // hash of the last status that the broker acknowledged
	Drop     bool         `json:"drop,omitempty"`
	Ceiling  int64        `json:"ceiling,omitempty"`
}

type storeHeader struct {
	Format   int           `json:"format"`
	Consumer work.Consumer `json:"consumer"`
}

// savedWork is everything that the store has about one work.
type savedWork struct {
	Spec     *spec
	Progress *progress
	Status   *sentStatus
	Acked    string
}

// store keeps the works on disk: one append-only file of checksummed lines,
// mode 0600 since specs hold Secrets.
//
// openStore truncates an incomplete last line, which a crash leaves: no record in it was
// acknowledged. It renames a file that is damaged elsewhere and starts with an empty
// store. An empty store deletes nothing; the agent requests all works again. Concurrent
// appends share one fsync.
//
// While the disk is full, the store acknowledges nothing and keeps appends in memory, one
// for each work: a later record of a work is merged into the queued one. The core goes on
// with everything that needs no disk (repairs of drift, statuses), and the store writes
// the queue when the disk has room.
type store struct {
	path     string
	consumer work.Consumer
	log      *slog.Logger

	mu            sync.Mutex
	queue         []*appendRequest           // not on disk yet, in the order of the calls
	openRequests  map[work.ID]*appendRequest // queued requests into which later records of the work are merged
	emptyRequests int                        // requests in queue without a record
	err           error                      // of the last write
	ready         chan struct{}              // holds a token when the queue has new requests
	refuse        func() error               // set by tests: the error of each write; nil: none

	// Owned by the writer, before it starts by openStore.
	f       *os.File
	size    int64
	works   map[work.ID]savedWork
	ceiling int64
	minSize int64 // no compaction below
}

type appendRequest struct {
	rec  record
	done []func() // called when rec is on disk; none: rec may wait for the next fsync
}

// maxEmptyRequests bounds the queued requests without a record while writes fail. Further ones are
// dropped with their callbacks, which acknowledge messages: the server sends the messages again.
const maxEmptyRequests = 10_000

const (
	storeFormat     = 1
	storeFile       = "works.log"
	compactMinBytes = 4 << 20
)

var errDamaged = errors.New("damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openStore reads or creates the store in dir.
func openStore(dir string, consumer work.Consumer, log *slog.Logger) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the agent's store: %w", err)
	}
	if err := atomicfile.SweepTemp(dir); err != nil {
		return nil, fmt.Errorf("opening the agent's store: %w", err)
	}
	s := &store{
		path: filepath.Join(dir, storeFile), consumer: consumer, log: log,
		openRequests: map[work.ID]*appendRequest{}, ready: make(chan struct{},
			1), works: map[work.ID]savedWork{}, minSize: compactMinBytes,
	}
	if err := s.load(); err != nil {
		if !errors.Is(err, errDamaged) {
			return nil, fmt.Errorf("opening the agent's store: %w", err)
		}
		aside := fmt.Sprintf("%s.damaged-%d", s.path, time.Now().UnixNano())
		log.Error("the store is damaged: it is set aside and everything is asked for again; nothing is deleted",
			"file", s.path, "aside", aside, "error", err)
		if err := os.Rename(s.path, aside); err != nil { // the rewrite below syncs the directory
			return nil, fmt.Errorf("setting the damaged store aside: %w", err)
		}
		s.works = map[work.ID]savedWork{} // the ceiling that was read stays valid
		if err := s.rewrite(); err != nil {
			return nil, fmt.Errorf("opening the agent's store: %w", err)
		}
	}
	return s, nil
}

// append hands rec to the writer. done, when not nil, is called once rec and
// everything that was appended before is on disk, from the writer's goroutine;
// it must not block. append never waits. Records of one work are written in the
// order of the calls.
func (s *store) append(rec record, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var waits []func()
	if done != nil {
		waits = append(waits, done)
	}
	before := s.openRequests[rec.ID]
	switch empty := rec == (record{}); {
	case empty && s.err != nil && s.emptyRequests >= maxEmptyRequests:
		return
	case rec.ID != "" && before != nil && !before.rec.Drop:
		before.rec = before.rec.mergedWith(rec)
		before.done = append(before.done, waits...)
	default:
		a := &appendRequest{rec, waits}
		s.queue = append(s.queue, a)
		if empty {
			s.emptyRequests++
		}
		if rec.ID != "" {
			s.openRequests[rec.ID] = a
		}
	}
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// mergedWith returns one record with the changes of r and of the later rec.
func (r record) mergedWith(rec record) record {
	if rec.Drop {
		return rec
	}
	if rec.Spec != nil {
		r.Spec = rec.Spec
	}
	if rec.Progress != nil {
		r.Progress = rec.Progress
	}
	if rec.Status != nil {
		r.Status = rec.Status
	}
	if rec.Acked != "" {
		r.Acked = rec.Acked
	}
	return r
}

// storeRetry is the pause between writes while they fail.
const storeRetry = time.Second

// run writes queued requests until ctx ends. Then it writes the requests that are in
// the queue at that moment, and returns.
func (s *store) run(ctx context.Context) {
	defer s.f.Close()
	retry := time.NewTicker(storeRetry)
	defer retry.Stop()
	for {
		ready := s.ready
		if s.failing() != nil {
			ready = nil // not at each append
			s.releaseCeilings()
		}
		select {
		case <-ready:
		case <-retry.C:
		case <-ctx.Done():
			s.commitAll()
			return
		}
		s.commitAll()
	}
}

// commitAll writes all queued requests, until a write fails.
func (s *store) commitAll() {
	for {
		batch := s.gather()
		if len(batch) == 0 || !s.commit(batch) {
			return
		}
	}
}

// gather returns the first queued requests, which share one fsync. Later records of
// their works get requests of their own.
func (s *store) gather() []*appendRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.queue[:min(len(s.queue), 1024)]
	for _, a := range batch {
		if s.openRequests[a.rec.ID] == a {
			delete(s.openRequests, a.rec.ID)
		}
	}
	return slices.Clone(batch)
}

// commit writes a batch. It reports whether the batch is on disk; otherwise the batch
// stays queued.
func (s *store) commit(batch []*appendRequest) bool {
	err := s.write(batch)
	was := s.setErr(err)
	if err != nil {
		if was == nil {
			s.log.Error("the store cannot be written; nothing is acknowledged until it can", "file", s.path, "error",
				err)
		}
		s.reopenForMerge(batch)
		return false
	}
	if was != nil {
		s.log.Info("the store can be written again", "file", s.path)
	}
	s.mu.Lock()
	s.queue = slices.Delete(s.queue, 0, len(batch))
	s.mu.Unlock()
	for _, a := range batch {
		s.merge(a.rec)
		for _, done := range a.done {
			done()
		}
		if a.rec == (record{}) {
			s.mu.Lock()
			s.emptyRequests--
			s.mu.Unlock()
		}
	}
	if s.size > s.minSize {
		if err := s.rewrite(); err != nil {
			s.log.Error("compacting the store", "file", s.path, "error", err) // the records are on disk nevertheless
		}
		s.minSize = max(compactMinBytes, 3*s.size)
	}
	return true
}

// reopenForMerge lets later records be merged into requests that could not be written.
func (s *store) reopenForMerge(batch []*appendRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range batch {
		if a.rec.ID != "" && s.openRequests[a.rec.ID] == nil {
			s.openRequests[a.rec.ID] = a
		}
	}
}

// releaseCeilings calls the callbacks of reserved sequence ids although the write failed:
// without a reservation the agent could send no status after a minute. An id could be
// used twice only when the agent restarts before a write succeeds and the clock was set
// back.
func (s *store) releaseCeilings() {
	s.mu.Lock()
	var released []func()
	for _, a := range s.queue {
		if a.rec.ID == "" && a.rec.Ceiling > 0 {
			released = append(released, a.done...)
			a.done = nil
		}
	}
	s.mu.Unlock()
	for _, done := range released {
		done()
	}
}

func (s *store) write(batch []*appendRequest) error {
	if s.refuse != nil {
		if err := s.refuse(); err != nil {
			return err
		}
	}
	var buf bytes.Buffer
	wait := false
	for _, a := range batch {
		if a.rec == (record{}) { // has no record: waits for the requests before it
			continue
		}
		if err := formatLine(&buf, a.rec); err != nil {
			return err
		}
		wait = wait || len(a.done) > 0
	}
	if buf.Len() == 0 {
		return nil
	}
	if _, err := s.f.WriteAt(buf.Bytes(), s.size); err != nil {
		return errors.Join(err, s.f.Truncate(s.size)) // so that no incomplete line remains before later ones
	}
	if wait {
		if err := fdatasync(s.f); err != nil {
			return err
		}
	}
	s.size += int64(buf.Len())
	return nil
}

// rewrite replaces the file by one with the same content in the fewest lines.
func (s *store) rewrite() error {
	recs := []record{{Header: &storeHeader{Format: storeFormat, Consumer: s.consumer}, Ceiling: s.ceiling}}
	ids := make([]work.ID, 0, len(s.works))
	for id := range s.works {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		w := s.works[id]
		recs = append(recs, record{ID: id, Spec: w.Spec, Progress: w.Progress, Status: w.Status, Acked: w.Acked})
	}
	file, err := atomicfile.New(s.path, 0o600)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(file, 64<<10)
	for _, rec := range recs {
		if err = formatLine(out, rec); err != nil {
			break
		}
	}
	if err == nil {
		err = out.Flush()
	}
	var size int64
	if err == nil {
		size, err = file.Seek(0, io.SeekCurrent)
	}
	if err != nil {
		return errors.Join(err, file.Abort())
	}
	if err := file.Replace(); err != nil {
		return err
	}
	if s.f != nil {
		s.f.Close()
	}
	s.f, s.size = file.File, size
	return nil
}

// setErr keeps the error of a write and returns that of the one before.
func (s *store) setErr(err error) (was error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, s.err = s.err, err
	return was
}

// failing returns the error of the last write, nil when it succeeded.
func (s *store) failing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
