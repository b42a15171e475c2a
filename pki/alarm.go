package pki

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"atoll.dev/api/audit"
	"atoll.dev/internal/rest"
)

const (
	auditFile = "audit.jsonl"
	// auditReader is the service that gathers the region's audit records.
	auditReader = Name(servicePrefix + "platform")
	auditLimit  = 500 // records of one answer
	auditLook   = time.Second
)

// A supersededError is the [ErrSuperseded] of a request that made the CA revoke a line.
type supersededError struct {
	name    Name
	revoked int // keys of the line
}

func (e *supersededError) Error() string {
	return fmt.Sprintf("%s: this %s: all %d keys of its line are revoked", e.name, ErrSuperseded, e.revoked)
}

func (e *supersededError) Is(target error) bool { return target == ErrSuperseded }

// revokeCopiedLine revokes the line of a superseded key that was used again, and writes an audit
// record. Two processes have the key, and the CA cannot know which of them copied it; so both
// must join again. It returns a *supersededError, or the error that kept it from revoking. The
// caller holds the lock.
func (ca *CA) revokeCopiedLine(lines lineRecord, as applicant, key string) error {
	line := lines.lineOf(key)
	// The record comes first: a kill between the two repeats the record, and loses none.
	if err := ca.appendAudit(audit.Change{
		Time: time.Now().UTC(), Change: "revoke", Kind: "Certificate", ID: as.by.SerialNumber.Text(16),
		Principal: string(as.name), Request: json.RawMessage(audit.Request{Proof: audit.ByCertificate,
			ProofID: string(as.name), Action: "UseSupersededCertificate", Source: as.source,
			Reason: "a certificate was used after its renewal: its line is revoked"}.Encode()),
	}); err != nil {
		return err
	}
	if err := ca.revokeKeys(as.name, line); err != nil {
		return err
	}
	return &supersededError{as.name, len(line)}
}

// revokeIfAbandoned revokes the line of an applicant's certificate, and returns a *supersededError, when the
// certificate was abandoned: revoked unused, because another key was confirmed in its place. A process that shows an
// abandoned certificate got it by the key with which both were requested. So two processes have that key, and the
// confirmed one may be the thief. In all other cases, also when nothing of the line is in use, it returns refused, the
// error of the applicant's authentication, or the error of a record that cannot be read. The caller holds the lock.
func (ca *CA) revokeIfAbandoned(as applicant, refused error) error {
	if !errors.Is(refused, ErrRevoked) || as.by == nil {
		return refused
	}
	key, err := keyHash(as.by.PublicKey)
	if err != nil {
		return err
	}
	lines, err := readRecord[lineRecord](ca.dir, linesDir, as.name)
	if err != nil {
		return err
	}
	if have := lines.find(key); have == nil || !have.Abandoned {
		return refused
	}
	issued, err := readRecord[issuedRecord](ca.dir, issuedDir, as.name)
	if err != nil {
		return err
	}
	revoked, err := readRecord[revokedRecord](ca.dir, revokedDir, as.name)
	if err != nil {
		return err
	}
	line := lines.lineOf(key)
	isInUse := slices.ContainsFunc(issued.Certificates, func(c issuedCert) bool {
		return slices.Contains(line, c.Key) && !slices.ContainsFunc(revoked.Certificates,
			func(r revokedCert) bool { return r.Serial == c.Serial })
	})
	if revoked.Barred || !isInUse {
		return refused
	}
	return ca.revokeCopiedLine(lines, as, key)
}

// appendAudit appends a record to the CA's audit file. The caller holds the lock.
func (ca *CA) appendAudit(c audit.Change) error {
	c.Key = rand.Text()
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(ca.dir, auditFile), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
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

// readAudit returns the audit records after the first lines of the file, and the number of
// lines before and with them. A last line without its end is still being written, or a kill has cut it: it
// counts when a record follows, and has none then.
func (ca *CA) readAudit(after int) (items []audit.Change, next int, err error) {
	data, err := os.ReadFile(filepath.Join(ca.dir, auditFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data[:bytes.LastIndexByte(data, '\n')+1]))
	lines.Buffer(nil, audit.MaxRequest+64<<10)
	for lines.Scan() && len(items) < auditLimit {
		if next++; next <= after {
			continue
		}
		var c audit.Change
		if json.Unmarshal(lines.Bytes(), &c) == nil {
			items = append(items, c)
		}
	}
	return items, next, lines.Err()
}

// serveAudit answers the Platform API with the audit records after a cursor. It waits for a
// record, as package store/auditfeed does.
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
	for last := wait == 0; ; {
		items, next, err := s.ca.readAudit(after)
		switch {
		case err != nil:
			return err
		case next < after: // a restored CA
			return rest.Errorf(http.StatusGone, "gone", "the audit has %d records: read it from the beginning", next)
		case next > after || last:
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
