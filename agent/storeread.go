package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// load reads the file, or creates it. It truncates an incomplete last line.
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

// read applies the log and returns the offset at which its valid part ends.
func (s *store) read(f *os.File) (good int64, err error) {
	r := bufio.NewReaderSize(f, 1<<20)
	bad := false
	for first := true; ; {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return good, nil // the rest has no line end: an incomplete write
		}
		if err != nil {
			return 0, err
		}
		rec, ok := parseLine(line)
		switch {
		case !ok:
			bad = true
			continue
		case bad: // valid lines follow an invalid one: the file is damaged
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

// salvage reads the ceilings of sequence ids from the rest of a damaged file.
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

// parseLine parses a line: 8 hex digits of CRC-32C, a space, JSON, a line end.
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

// formatLine writes a record as a line.
func formatLine(out io.Writer, rec record) error {
	body, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%08x %s\n", crc32.Checksum(body, castagnoli), body)
	return err
}

// merge applies a record to the works in memory.
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
