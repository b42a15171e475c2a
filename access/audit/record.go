// Package audit keeps the audit of a region: a record of each change and of each refused request.
//
// Each service stores an audit record in the transaction of a change. A Gatherer reads the records of the platform from
// its database and those of the lifecycle manager and of Maestro from their APIs, and appends them to the Chain in the
// platform database. Denials appends the records of refused requests. The hash of a record covers the record and the
// hash of the record before it; so Verify finds a record that somebody removed, altered or moved.
//
// Package cli/services starts the Gatherer and Denials; front/rosa serves the Chain.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"atoll.dev/api/audit"
	"atoll.dev/cluster"
)

// Outcomes of requests.
const (
	Done   = "done"   // the change was committed
	Denied = "denied" // the request was refused
)

// actionTrim is the action of the record that names the anchor of a chain whose oldest records were deleted.
const actionTrim = "TrimAudit"

// Record is the content of one audit record. Its JSON is the text that the hash covers.
type Record struct {
	Time      string   `json:"time"`    // RFC 3339 in UTC, always with six digits of a second, so that texts sort by time
	Service   string   `json:"service"` // the service that committed the change: clm, maestro, platform
	Key       string   `json:"key"`     // unique in the service
	Outcome   string   `json:"outcome"`
	Principal string   `json:"principal,omitempty"`
	Account   string   `json:"accountId,omitempty"` // of the principal
	Owner     string   `json:"ownerId,omitempty"`   // the account that owns the resource
	Operator  bool     `json:"operator,omitempty"`  // the account of the principal is privileged
	Proof     string   `json:"proof,omitempty"`
	ProofID   string   `json:"proofId,omitempty"`
	Action    string   `json:"action,omitempty"`
	Method    string   `json:"method,omitempty"`
	Route     string   `json:"route,omitempty"`
	Resource  Resource `json:"resource"`
	Change    string   `json:"change,omitempty"` // create, update, delete, remove, or an operation
	Version   int64    `json:"version,omitempty"`
	Before    string   `json:"before,omitempty"` // SHA-256 of the content before the change
	After     string   `json:"after,omitempty"`
	Reason    string   `json:"reason,omitempty"`   // why the policy permitted it: policy, administrator, privileged
	Policies  []string `json:"policies,omitempty"` // the policies that decided
	Code      string   `json:"code,omitempty"`     // of a denial
	Status    int      `json:"status,omitempty"`   // of the answer to a denial
	Count     int      `json:"count,omitempty"`    // the number of refused requests that this record stands for; 0: one
	RequestID string   `json:"requestId,omitempty"`
	Source    string   `json:"sourceAddress,omitempty"`
	UserAgent string   `json:"userAgent,omitempty"`
	Anchor    *Anchor  `json:"anchor,omitempty"` // of actionTrim: the last deleted record
}

// Resource names the resource of a request.
type Resource struct {
	Kind string `json:"kind,omitempty"`
	ID   string `json:"id,omitempty"`
}

// Anchor names a record by its place in the chain and its hash.
type Anchor struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// Entry is a record in the chain.
type Entry struct {
	Seq      int64           `json:"seq"`
	Previous string          `json:"previousHash"` // in hex
	Hash     string          `json:"hash"`
	Record   json.RawMessage `json:"record"` // the text that the hash covers
}

// noHash is the hash before the first record.
var noHash = hex.EncodeToString(make([]byte, sha256.Size))

// hashOf returns the hash of a record: SHA-256 over the hash before it, its place and its text, in lines.
func hashOf(previous string, seq int64, record []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", previous, strconv.FormatInt(seq, 10))
	h.Write(record)
	return hex.EncodeToString(h.Sum(nil))
}

// timeText returns the form of Record.Time.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// recordOf returns the record of a change that a service has committed.
func recordOf(service string, c audit.Change) Record {
	var request audit.Request
	_ = json.Unmarshal(c.Request, &request) // a change without a request has the zero Request
	return Record{Time: timeText(c.Time), Service: service, Key: c.Key, Outcome: Done, Principal: audit.Cut(c.Principal),
		Account: audit.Cut(c.Account), Owner: audit.Cut(c.Owner), Operator: request.Operator, Proof: request.Proof,
		ProofID: request.ProofID, Action: request.Action, Method: request.Method, Route: request.Route,
		Resource: Resource{Kind: audit.Cut(c.Kind), ID: audit.Cut(c.ID)}, Change: audit.Cut(c.Change), Version: c.Version,
		Before: c.Before, After: c.After, Reason: request.Reason, Policies: request.Policies,
		RequestID: audit.Cut(c.RequestID), Source: request.Source, UserAgent: request.UserAgent}
}

// ShownTo returns the entry as the principals of an account may read it. An entry of the account's own principals is
// unchanged. An entry of an operator's change keeps the change and its time; ShownTo removes the operator's identity,
// his address and the policies that permitted the change. Such an entry does not match its hash.
func (e Entry) ShownTo(account cluster.Account) (Entry, error) {
	var r Record
	if err := json.Unmarshal(e.Record, &r); err != nil {
		return Entry{}, fmt.Errorf("reading audit record %d: %w", e.Seq, err)
	}
	if cluster.Account(r.Account) == account {
		return e, nil
	}
	r.Principal, r.Account, r.ProofID, r.Source, r.UserAgent, r.Reason, r.Policies = "operator", "", "", "", "", "", nil
	var err error
	e.Record, err = json.Marshal(r)
	return e, err
}
