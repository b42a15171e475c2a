package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
)

// record is one entry of the store's log: what changed about one work, or the
// sequence's ceiling. Fields that are absent did not change.
type record struct {
	Header   *storeHeader `json:"header,omitempty"`
	ID       workID       `json:"id,omitempty"`
	Spec     *spec        `json:"spec,omitempty"`
	Progress *progress    `json:"progress,omitempty"`
	Status   *sentStatus  `json:"status,omitempty"`
	Acked    string       `json:"acked,omitempty"` // hash of the last status that the broker took
	Drop     bool         `json:"drop,omitempty"`
	Ceiling  int64        `json:"ceiling,omitempty"`
}

type storeHeader struct {
	Format   int    `json:"format"`
	Consumer string `json:"consumer"`
}

// saved is everything that the store knows about one work.
type saved struct {
	Spec     *spec
	Progress *progress
	Status   *sentStatus
	Acked    string
}

// store is the agent's memory: one append-only file of checksummed lines,
// mode 0600 since specs hold Secrets.
//
// A torn tail, which a crash leaves, is cut off: nothing in it was ever
// acknowledged. A file that is damaged elsewhere is set aside and the store
// starts empty, which deletes nothing and makes the agent ask for everything
// again. Appends that come together share one fsync. A full disk stops
// appends until there is room; nothing is acknowledged meanwhile.
type store struct {
	path     string
	consumer string
	log      *slog.Logger

	appends chan appendRequest

	mu  sync.Mutex
	err error // of the last write

	// Owned by the writer, before it starts by openStore.
	f       *os.File
	size    int64
	works   map[workID]saved
	ceiling int64
	minSize int64 // no compaction below
}

type appendRequest struct {
	rec  record
	done func() // nil: nobody waits, the next fsync will do
}

const (
	storeFormat     = 1
	storeFile       = "works.log"
	compactMinBytes = 4 << 20
)

var errDamaged = errors.New("damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openStore reads or creates the store in dir.
func openStore(dir, consumer string, log *slog.Logger) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the agent's store: %w", err)
	}
	s := &store{
		path: filepath.Join(dir, storeFile), consumer: consumer, log: log,
		appends: make(chan appendRequest, 4096), works: map[workID]saved{}, minSize: compactMinBytes,
	}
	if err := s.load(); err != nil {
		if !errors.Is(err, errDamaged) {
			return nil, fmt.Errorf("opening the agent's store: %w", err)
		}
		aside := fmt.Sprintf("%s.damaged-%d", s.path, time.Now().UnixNano())
		log.Error("the store is damaged: it is set aside and everything is asked for again; nothing is deleted",
			"file", s.path, "aside", aside, "error", err)
		if err := os.Rename(s.path, aside); err != nil {
			return nil, fmt.Errorf("setting the damaged store aside: %w", err)
		}
		s.works = map[workID]saved{} // the ceiling that was read still holds
		if err := s.rewrite(); err != nil {
			return nil, fmt.Errorf("opening the agent's store: %w", err)
		}
	}
	return s, nil
}

func (s *store) load() error {
	f, err := os.OpenFile(s.path, os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return s.rewrite()
	}
	if err != nil {
		return err
	}
	good, err := s.read(f)
	if err != nil {
		f.Close()
		return err
	}
	if err := f.Truncate(good); err != nil {
		f.Close()
		return err
	}
	if _, err := f.Seek(good, io.SeekStart); err != nil {
		f.Close()
		return err
	}
	if good == 0 { // crashed before the header was written
		f.Close()
		return s.rewrite()
	}
	s.f, s.size = f, good
	return nil
}

// read applies the log and returns where its good part ends.
func (s *store) read(f *os.File) (good int64, err error) {
	r := bufio.NewReaderSize(f, 1<<20)
	bad := false
	for first := true; ; {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return good, nil // what is left has no line end: torn
		}
		if err != nil {
			return 0, err
		}
		rec, ok := parseLine(line)
		switch {
		case !ok:
			bad = true
			continue
		case bad: // good lines follow a bad one: this is no torn tail
			s.ceiling = max(s.ceiling, rec.Ceiling)
			if err := s.salvage(r); err != nil {
				return 0, err
			}
			return 0, fmt.Errorf("a line after byte %d: %w", good, errDamaged)
		case first && (rec.Header == nil || rec.Header.Format != storeFormat || rec.Header.Consumer != s.consumer):
			return 0, fmt.Errorf("not a store of consumer %s in format %d: %w", s.consumer, storeFormat, errDamaged)
		}
		first = false
		s.merge(rec)
		good += int64(len(line))
	}
}

// salvage keeps the sequence growing across a damaged file.
func (s *store) salvage(r *bufio.Reader) error {
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if rec, ok := parseLine(line); ok {
			s.ceiling = max(s.ceiling, rec.Ceiling)
		}
	}
}

// A line is 8 hex digits of CRC-32C, a space, JSON, a line end.
func parseLine(line []byte) (record, bool) {
	var rec record
	if len(line) < 11 || line[8] != ' ' || line[len(line)-1] != '\n' {
		return rec, false
	}
	body := line[9 : len(line)-1]
	if fmt.Sprintf("%08x", crc32.Checksum(body, castagnoli)) != string(line[:8]) {
		return rec, false
	}
	return rec, json.Unmarshal(body, &rec) == nil
}

func formatLine(out io.Writer, rec record) error {
	body, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%08x %s\n", crc32.Checksum(body, castagnoli), body)
	return err
}

func (s *store) merge(rec record) {
	s.ceiling = max(s.ceiling, rec.Ceiling)
	if rec.ID == "" {
		return
	}
	if rec.Drop {
		delete(s.works, rec.ID)
		return
	}
	w := s.works[rec.ID]
	if rec.Spec != nil {
		w.Spec = rec.Spec
	}
	if rec.Progress != nil {
		w.Progress = rec.Progress
	}
	if rec.Status != nil {
		w.Status = rec.Status
	}
	if rec.Acked != "" {
		w.Acked = rec.Acked
	}
	if w.Spec != nil {
		s.works[rec.ID] = w
	}
}

// append hands rec to the writer. done, when not nil, is called once rec is
// on disk, from the writer's goroutine; it must not block. Appends are
// written in the order of the calls.
func (s *store) append(rec record, done func()) { s.appends <- appendRequest{rec, done} }

// run writes until ctx ends and what was appended before is on disk, or
// cannot be written.
func (s *store) run(ctx context.Context) {
	defer s.f.Close()
	for {
		select {
		case first := <-s.appends:
			s.commit(ctx, s.gather(first))
		case <-ctx.Done():
			for {
				select {
				case first := <-s.appends:
					s.commit(ctx, s.gather(first))
				default:
					return
				}
			}
		}
	}
}

// gather takes what else is waiting, so that it shares the fsync.
func (s *store) gather(first appendRequest) []appendRequest {
	batch := []appendRequest{first}
	for len(batch) < 1024 {
		select {
		case next := <-s.appends:
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

func (s *store) commit(ctx context.Context, batch []appendRequest) {
	for _, a := range batch {
		s.merge(a.rec)
	}
	for {
		err := s.write(batch)
		s.setErr(err)
		if err == nil {
			break
		}
		s.log.Error("the store cannot be written; nothing is acknowledged until it can", "file", s.path, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
	for _, a := range batch {
		if a.done != nil {
			a.done()
		}
	}
	if s.size > s.minSize {
		if err := s.rewrite(); err != nil {
			s.setErr(err)
			s.log.Error("compacting the store", "file", s.path, "error", err)
		}
		s.minSize = max(compactMinBytes, 3*s.size)
	}
}

func (s *store) write(batch []appendRequest) error {
	var buf bytes.Buffer
	wait := false
	for _, a := range batch {
		if a.rec == (record{}) { // only waits for what is before it
			continue
		}
		if err := formatLine(&buf, a.rec); err != nil {
			return err
		}
		wait = wait || a.done != nil
	}
	if buf.Len() == 0 {
		return nil
	}
	if _, err := s.f.WriteAt(buf.Bytes(), s.size); err != nil {
		return errors.Join(err, s.f.Truncate(s.size)) // no half lines between whole ones
	}
	if wait {
		if err := fdatasync(s.f); err != nil {
			return err
		}
	}
	s.size += int64(buf.Len())
	return nil
}

// rewrite replaces the file by one that says the same in the fewest lines.
func (s *store) rewrite() error {
	recs := []record{{Header: &storeHeader{Format: storeFormat, Consumer: s.consumer}, Ceiling: s.ceiling}}
	ids := make([]workID, 0, len(s.works))
	for id := range s.works {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		w := s.works[id]
		recs = append(recs, record{ID: id, Spec: w.Spec, Progress: w.Progress, Status: w.Status, Acked: w.Acked})
	}
	temp := s.path + ".new"
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, 64<<10)
	for _, rec := range recs {
		if err = formatLine(out, rec); err != nil {
			break
		}
	}
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	var size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekCurrent)
	}
	if err == nil {
		err = os.Rename(temp, s.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(s.path))
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(temp))
	}
	if s.f != nil {
		s.f.Close()
	}
	s.f, s.size = f, size
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (s *store) setErr(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// failing returns the error of the last write, nil when it succeeded.
func (s *store) failing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
