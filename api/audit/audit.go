// Package audit is the contract of audit records between the region's services: what a front says about a
// request to the services behind it, what these store with each change, and how the Platform API reads it.
//
// Package store/auditfeed serves and reads the feed; package access/audit gathers it. It imports nothing of ours.
package audit

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// Header carries a Request, as JSON without characters above ASCII, from a front to the services behind it. They
// accept it only together with a certificate of one of the region's services.
const Header = "X-Atoll-Audit"

// Path is the path of the feed of audit records, below the prefix of a service's API.
const Path = "/audit"

// Ways in which a sender proves who it is.
const (
	BySignature   = "sigv4"       // Request.ProofID is the access key id
	ByCertificate = "certificate" // the common name
	ByToken       = "token"       // the holder by its claims
	ByDatabase    = "database"    // a command on the region's database
	ByDirectory   = "directory"   // a command in the directory of the region's CA
	Unproven      = "none"
)

// Request is the part of an audit record that describes the request that made a change.
type Request struct {
	Proof     string   `json:"proof"`
	ProofID   string   `json:"proofId,omitempty"`
	Action    string   `json:"action,omitempty"` // as policies name it
	Method    string   `json:"method,omitempty"`
	Route     string   `json:"route,omitempty"` // the pattern, without names and ids
	Reason    string   `json:"reason,omitempty"`
	Policies  []string `json:"policies,omitempty"` // that permitted it
	Source    string   `json:"source,omitempty"`   // the address of the sender
	UserAgent string   `json:"userAgent,omitempty"`
	Operator  bool     `json:"operator,omitempty"` // the sender's account is privileged
}

// Bounds of the parts of a Request, in bytes.
const (
	maxText     = 256
	maxPolicies = 20
	// MaxRequest bounds the JSON of a Request.
	MaxRequest = 8 << 10
)

// Encode returns the request as JSON in ASCII, with long texts cut.
func (r Request) Encode() string {
	for _, text := range []*string{&r.Proof, &r.ProofID, &r.Action, &r.Method, &r.Route, &r.Reason, &r.Source,
		&r.UserAgent} {
		*text = Cut(*text)
	}
	if len(r.Policies) > maxPolicies {
		r.Policies = append(r.Policies[:maxPolicies:maxPolicies], "...")
	}
	for i, policy := range r.Policies {
		r.Policies[i] = Cut(policy)
	}
	text, err := json.Marshal(r)
	if err != nil {
		panic("audit: a Request is not JSON: " + err.Error()) // it has texts only
	}
	return string(text)
}

// Cut returns a text of at most 256 bytes in printable ASCII; other characters become "?".
func Cut(text string) string {
	if len(text) > maxText {
		text = text[:maxText-3] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e || r == utf8.RuneError {
			return '?'
		}
		return r
	}, text)
}

// ParseRequest reads the value of Header. ok is false when it is none.
func ParseRequest(text string) (r Request, ok bool) {
	if text == "" || len(text) > MaxRequest || json.Unmarshal([]byte(text), &r) != nil || r.Proof == "" {
		return Request{}, false
	}
	return r, true
}

// Change is an audit record as the service that committed the change offers it.
type Change struct {
	Key       string          `json:"key"` // unique among the records of the service
	Time      time.Time       `json:"time"`
	Change    string          `json:"change"` // create, update, delete, remove, or an operation
	Kind      string          `json:"kind"`
	ID        string          `json:"id"`
	Version   int64           `json:"version,omitempty"`
	Principal string          `json:"principal"`
	Account   string          `json:"account,omitempty"` // of the principal
	Owner     string          `json:"owner,omitempty"`   // the account that owns the resource
	RequestID string          `json:"requestId,omitempty"`
	Request   json.RawMessage `json:"request"` // a Request
	Before    string          `json:"before,omitempty"`
	After     string          `json:"after,omitempty"`
}

// Page is a part of the feed.
type Page struct {
	Items []Change `json:"items"`
	Next  string   `json:"next"` // the cursor after the items
}
