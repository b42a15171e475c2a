package pki

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"atoll.dev/api/audit"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/rest"
)

const (
	// auditFile has an audit record in each line. Its first line may be a number instead: how many lines were removed
	// before the next one. So a line has the same number for ever, and the cursor of a reader is the number of a line.
	auditFile = "audit.jsonl"
	// auditReader is the service that gathers the region's audit records.
	auditReader = Name(servicePrefix + "platform")
	auditLimit  = 500         // records of one answer
	auditLook   = time.Second // between two looks of serveAudit at the file
	// maxAuditLine bounds a line. No record is that long; a longer line is damaged.
	maxAuditLine = audit.MaxRequest + 64<<10
	// auditRetention is how long the file keeps gathered records: the reader needs them again when its database is
	// restored from a backup.
	auditRetention = 90 * 24 * time.Hour
)

func (ca *CA) auditPath() string { return filepath.Join(ca.dir, auditFile) }

// appendAudit appends a record to the CA's audit file. The caller holds the lock.
func (ca *CA) appendAudit(c audit.Change) error {
	c.Key = rand.Text()
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(ca.auditPath(), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("writing the audit of CA %s: %w", ca.dir, err)
	}
	defer f.Close()
	// A line that a kill has cut ends here, so that it damages no other.
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	_, err = f.Write(append(line, '\n'))
	if err = errors.Join(err, f.Sync()); err != nil {
		return fmt.Errorf("writing the audit of CA %s: %w", ca.dir, err)
	}
	return nil
}

// An auditLine is a complete line of the audit file.
type auditLine struct {
	number int           // from 1 on; removed lines count
	end    int64         // the offset after it
	record *audit.Change // nil in a damaged line
}

// scanAudit calls visit for each line of an audit file whose number is above after, until visit returns false. number
// is that of the line before the one at which visit returned false; when visit never did, that of the last line. A last
// line without a line end does not count yet: a process still writes it, or was killed. It counts when another line
// follows.
func scanAudit(f io.Reader, after int, visit func(auditLine) bool) (number int, err error) {
	lines := bufio.NewReaderSize(f, maxAuditLine)
	end := int64(0)
	for {
		isFirst := end == 0
		text, err := lines.ReadSlice('\n')
		end += int64(len(text))
		isTooLong := false
		for errors.Is(err, bufio.ErrBufferFull) {
			text, err = lines.ReadSlice('\n')
			end += int64(len(text))
			isTooLong = true
		}
		switch {
		case errors.Is(err, io.EOF):
			return number, nil
		case err != nil:
			return number, err
		}
		if isFirst && !isTooLong {
			if removed, err := strconv.Atoi(string(text[:len(text)-1])); err == nil {
				number = removed
				continue
			}
		}
		line := auditLine{number: number + 1, end: end}
		if line.number > after {
			var c audit.Change
			if !isTooLong && json.Unmarshal(text, &c) == nil {
				line.record = &c
			}
			if !visit(line) {
				return number, nil
			}
		}
		number = line.number
	}
}

// readAudit returns at most auditLimit records of the lines after the line with the number after. next is the number of
// the last line that it read. next is below after when the file does not have so many lines, as in a restored CA.
func (ca *CA) readAudit(after int) (items []audit.Change, next int, err error) {
	f, err := os.Open(ca.auditPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	next, err = scanAudit(f, after, func(line auditLine) bool {
		if len(items) == auditLimit {
			return false
		}
		if line.record != nil {
			items = append(items, *line.record)
		}
		return true
	})
	return items, next, err
}

// statAudit returns what identifies the content of the audit file, or nil when it cannot be read.
func (ca *CA) statAudit() os.FileInfo {
	info, err := os.Stat(ca.auditPath())
	if err != nil {
		return nil
	}
	return info
}

// isSameFile reports whether nobody has written or replaced a file between two calls of statAudit. now may be nil.
func isSameFile(before, now os.FileInfo) bool {
	return now != nil && os.SameFile(before, now) && before.Size() == now.Size() && before.ModTime().Equal(now.ModTime())
}

// trimAudit removes lines from the beginning of the audit file: those with a number up to gathered whose records are
// older than auditRetention.
func (ca *CA) trimAudit(gathered int, now time.Time) error {
	unlock, err := ca.lock()
	if err != nil {
		return err
	}
	defer unlock()
	f, err := os.Open(ca.auditPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var last auditLine // the last one to remove
	_, err = scanAudit(f, 0, func(line auditLine) bool {
		if line.number > gathered || line.record != nil && now.Before(line.record.Time.Add(auditRetention)) {
			return false
		}
		last = line
		return true
	})
	if err != nil || last.number == 0 {
		return err
	}
	shorter, err := atomicfile.New(ca.auditPath(), 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(shorter, last.number)
	if err == nil {
		_, err = f.Seek(last.end, io.SeekStart)
	}
	if err == nil {
		_, err = io.Copy(shorter, f)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("trimming the audit of CA %s: %w", ca.dir, err), shorter.Abort())
	}
	if err := shorter.Replace(); err != nil {
		return err
	}
	return shorter.Close()
}

// serveAudit answers the Platform API with the audit records after a cursor. When there is none yet, it waits for one,
// as package store/auditfeed does. The reader has committed the records up to its cursor, so [Server.Run] may remove
// them.
func (s *Server) serveAudit(w http.ResponseWriter, r *http.Request) error {
	name, err := s.ca.renewableName(r.TLS.PeerCertificates)
	if err != nil {
		return refuse(err)
	}
	if name != auditReader || time.Now().After(r.TLS.PeerCertificates[0].NotAfter) {
		return rest.Errorf(http.StatusForbidden, "forbidden", "only a valid certificate of %s reads the audit", auditReader)
	}
	q := r.URL.Query()
	after, wait := 0, 0
	for text, number := range map[string]*int{"after": &after, "wait": &wait} {
		if value := q.Get(text); value != "" {
			if *number, err = strconv.Atoi(value); err != nil || *number < 0 {
				return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "%s is no number", text)
			}
		}
	}
	enough := time.After(min(time.Duration(wait)*time.Second, crlWait))
	look := time.NewTicker(auditLook)
	defer look.Stop()
	var items []audit.Change
	var next int
	var seen os.FileInfo // the file that was read last
	for last := wait == 0; ; {
		if now := s.ca.statAudit(); seen == nil || !isSameFile(seen, now) {
			if items, next, err = s.ca.readAudit(after); err != nil {
				return err
			}
			seen = now
		}
		if next < after { // a restored CA
			return rest.Errorf(http.StatusGone, "gone", "the audit has %d records: read it from the beginning", next)
		}
		s.gathered.Store(int64(after))
		if len(items) > 0 || last {
			return rest.WriteJSON(w, http.StatusOK, audit.Page{Items: slices.Clip(items), Next: strconv.Itoa(next)})
		}
		select {
		case <-look.C:
		case <-enough:
			last = true
		case <-rest.Stopping(r.Context()).Done():
			last = true
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}
