package pki

import (
	"crypto/x509"
	"encoding/json"
	"time"

	"atoll.dev/api/audit"
)

// Command is who runs a command in the CA's directory, and why, for the audit record.
type Command struct {
	By     string // the user, as cli:alice
	Reason string // may be empty
}

// Kinds of what a command concerns, in audit records.
const (
	authorityKind = "CertificateAuthority" // the root or an issuing CA; its id is the serial number
	identityKind  = "Identity"             // of an agent or a service; its id is the name
)

// commandOn returns the command of a user on a CA. The reason of its record is the name of the CA.
func commandOn(by string, of *x509.Certificate) Command {
	return Command{By: by, Reason: of.Subject.CommonName}
}

// idOf returns the serial number of a certificate, in hexadecimal digits.
func idOf(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

// recordCommand writes the audit record of a command. The caller holds the lock, and calls it before it changes
// anything: a kill between the two repeats the record, and loses none.
func (ca *CA) recordCommand(c Command, action, kind, id string) error {
	return ca.appendAudit(audit.Change{Time: time.Now().UTC(), Change: "update", Kind: kind, ID: id,
		Principal: "system:cli", Request: json.RawMessage(audit.Request{Proof: audit.ByDirectory, ProofID: c.By,
			Operator: true, Action: action, Reason: c.Reason}.Encode())})
}
