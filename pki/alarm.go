package pki

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"atoll.dev/api/audit"
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
