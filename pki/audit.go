package pki

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
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
	// before the next one. So a line has the same number for ever. See auditCursor.
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
	// When a kill has cut the last line, the record begins a new line, so that the cut line does not damage it.
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

// An auditCursor is a place in the audit file: after a line. Its upper bits are the number of the line, its lower 32
// bits the checksum. The checksum shows that a file is another one: a restored CA has fewer lines, and may have as
// many again, with other records, before the reader asks. 0 is the beginning.
//
// A cursor below 1<<32 comes from an earlier Atoll, and has only the number of a line. An earlier Atoll reads a
// greater cursor as a number above its last line, and answers 410.
type auditCursor int64

// number returns the number of the cursor's line, 0 for the beginning.
func (c auditCursor) number() int {
	if c.hasSum() {
		return int(c >> 32)
	}
	return int(c)
}

// hasSum reports whether the cursor has the checksum of its line.
func (c auditCursor) hasSum() bool { return c >= 1<<32 }

// isCursorOf reports whether c is the cursor of a line. A cursor without a checksum is compared by its number alone.
func (c auditCursor) isCursorOf(line auditLine) bool {
	return c == line.cursor() || !c.hasSum() && c.number() == line.number
}

// An auditLine is a complete line of the audit file.
type auditLine struct {
	number int    // from 1 on; removed lines count
	sum    uint32 // the checksum of the line
	end    int64  // the offset after it
	text   []byte // valid until the next line is read; nil for a line above maxAuditLine
}

// cursor returns the cursor after the line.
func (l auditLine) cursor() auditCursor { return auditCursor(l.number)<<32 | auditCursor(l.sum) }

// record returns the record in the line, or nil for a damaged line.
func (l auditLine) record() *audit.Change {
	var c audit.Change
	if l.text == nil || json.Unmarshal(l.text, &c) != nil {
		return nil
	}
	return &c
}

// scanAudit calls visit for each line of an audit file until visit returns false. removed is the number of the lines
// that were removed before the first one. A last line without a line end does not count yet: a process still writes
// it, or was killed. It counts when another line follows.
func scanAudit(f io.Reader, visit func(auditLine) bool) (removed int, err error) {
	lines := bufio.NewReaderSize(f, maxAuditLine)
	line := auditLine{}
	for {
		isFirst := line.end == 0
		text, err := lines.ReadSlice('\n')
		line.sum, line.end, line.text = crc32.ChecksumIEEE(text), line.end+int64(len(text)), text
		for errors.Is(err, bufio.ErrBufferFull) {
			text, err = lines.ReadSlice('\n')
			line.sum, line.end, line.text = crc32.Update(line.sum, crc32.IEEETable, text), line.end+int64(len(text)), nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return removed, nil
		case err != nil:
			return removed, err
		}
		if isFirst && line.text != nil {
			if n, err := strconv.Atoi(string(text[:len(text)-1])); err == nil {
				removed, line.number = n, n
				continue
			}
		}
		line.number++
		if !visit(line) {
			return removed, nil
		}
	}
}

// errOtherAudit means that the audit file does not have the line of a cursor: the CA was restored, or is another one.
var errOtherAudit = errors.New("the audit does not have the record before the cursor")

// readAudit returns at most auditLimit records of the lines after a cursor, and the cursor after them. Its error is
// errOtherAudit when the file has another line at the cursor's number, or has fewer lines. A cursor whose line
// trimAudit has removed cannot be compared, and is accepted.
func (ca *CA) readAudit(after auditCursor) (items []audit.Change, next auditCursor, err error) {
	f, err := os.Open(ca.auditPath())
	switch {
	case errors.Is(err, fs.ErrNotExist) && after == 0:
		return nil, 0, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, errOtherAudit
	case err != nil:
		return nil, 0, err
	}
	defer f.Close()
	next = after
	hasLine := after == 0
	removed, err := scanAudit(f, func(line auditLine) bool {
		switch {
		case line.number < after.number():
			return true
		case line.number == after.number():
			hasLine = after.isCursorOf(line)
			return hasLine
		case len(items) == auditLimit:
			return false
		}
		if c := line.record(); c != nil {
			items = append(items, *c)
		}
		next = line.cursor()
		return true
	})
	if err == nil && !hasLine && after.number() > removed {
		err = errOtherAudit
	}
	return items, next, err
}

// statAudit returns the file info of the audit file, or nil when nobody can read it. isUnchanged compares two of them.
func (ca *CA) statAudit() os.FileInfo {
	info, err := os.Stat(ca.auditPath())
	if err != nil {
		return nil
	}
	return info
}

// isUnchanged reports whether nobody has written or replaced a file between two calls of statAudit. now may be nil.
func isUnchanged(before, now os.FileInfo) bool {
	return now != nil && os.SameFile(before, now) && before.Size() == now.Size() && before.ModTime().Equal(now.ModTime())
}

// trimAudit removes the first lines of the audit file, up to the first record that is younger than auditRetention, and
// only lines before that of the cursor gathered. It removes damaged lines among them, too. It removes nothing when the
// file does not have the line of gathered, and keeps that line, so that readAudit can compare it with a cursor.
func (ca *CA) trimAudit(gathered auditCursor, now time.Time) error {
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
	foundRecent, hasLine := false, false
	_, err = scanAudit(f, func(line auditLine) bool {
		if line.number >= gathered.number() {
			hasLine = gathered.isCursorOf(line)
			return false
		}
		if !foundRecent {
			c := line.record()
			foundRecent = c != nil && now.Before(c.Time.Add(auditRetention))
		}
		if !foundRecent {
			last = line
		}
		return true
	})
	if err != nil || last.number == 0 || !hasLine {
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

// serveAudit answers the Platform API with the audit records after a cursor. When there are none, it waits for as
// many seconds as the parameter wait has (none: 0), at most crlWait, and then answers with an empty page. It answers
// at once when the server begins to stop. The reader has stored the records up to its cursor, so [Server.Run] may
// remove them after auditRetention.
func (s *Server) serveAudit(w http.ResponseWriter, r *http.Request) error {
	name, err := s.ca.renewableName(r.TLS.PeerCertificates)
	if err != nil {
		return refuse(err)
	}
	if name != auditReader || time.Now().After(r.TLS.PeerCertificates[0].NotAfter) {
		return rest.Errorf(http.StatusForbidden, "forbidden", "only a valid certificate of %s reads the audit", auditReader)
	}
	q := r.URL.Query()
	after, wait := int64(0), int64(0)
	for text, number := range map[string]*int64{"after": &after, "wait": &wait} {
		if value := q.Get(text); value != "" {
			if *number, err = strconv.ParseInt(value, 10, 64); err != nil || *number < 0 {
				return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "%s must be a number of 0 or more", text)
			}
		}
	}
	enough := time.After(min(time.Duration(wait)*time.Second, crlWait))
	look := time.NewTicker(auditLook)
	defer look.Stop()
	var items []audit.Change
	var next auditCursor
	var seen os.FileInfo // the file that was read last
	for last := wait == 0; ; {
		if now := s.ca.statAudit(); seen == nil || !isUnchanged(seen, now) {
			items, next, err = s.ca.readAudit(auditCursor(after))
			if errors.Is(err, errOtherAudit) {
				return rest.Errorf(http.StatusGone, "gone", "%v: read it from the beginning", err)
			}
			if err != nil {
				return err
			}
			seen = now
		}
		s.gathered.Store(after)
		if len(items) > 0 || last {
			return rest.WriteJSON(w, http.StatusOK, audit.Page{Items: slices.Clip(items),
				Next: strconv.FormatInt(int64(next), 10)})
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
