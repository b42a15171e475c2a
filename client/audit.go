package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"
)

const pathAudit = "/api/v0/audit"

// AuditQuery selects audit records. Empty members select all.
type AuditQuery struct {
	Scope                           AuditScope
	Account                         AccountID // with AuditOfRegion
	From, To                        time.Time
	Principal, Action, Outcome      string
	ResourceKind, Resource, Request string
	Before                          int64  // only records with a smaller seq; 0: all
	After                           *int64 // only records with a larger seq, the oldest first; nil: the latest first
	Limit                           int    // default 50, at most 500
}

// AuditScope is whose audit records a query selects.
type AuditScope int

const (
	AuditOfAccount AuditScope = iota // of the caller's account
	AuditOfRegion                    // of all accounts, for operators
)

// AuditEntry is an audit record in the chain of the region. Hash is the SHA-256, in hex, of the lines PreviousHash and
// Seq and of the bytes of Record.
type AuditEntry struct {
	Seq          int64           `json:"seq"`
	PreviousHash string          `json:"previousHash"`
	Hash         string          `json:"hash"`
	Record       json.RawMessage `json:"record"` // a platform.AuditRecord
}

// AuditAnchor names one record of the chain: its sequence number and its hash.
type AuditAnchor struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// AuditPage is one page of audit records. With AuditOfRegion only, Head names the last record of the chain, and Anchor
// the record before the first one that the region keeps.
type AuditPage struct {
	Items  []AuditEntry `json:"items"`
	Head   AuditAnchor  `json:"head"`
	Anchor AuditAnchor  `json:"anchor"`
}

// Audit returns one page of audit records.
func (p *Client) Audit(ctx context.Context, q AuditQuery) (AuditPage, error) {
	values := url.Values{}
	set := func(name, value string) {
		if value != "" {
			values.Set(name, value)
		}
	}
	if q.Scope == AuditOfRegion {
		set("all", "true")
	}
	set("account", string(q.Account))
	set("principal", q.Principal)
	set("action", q.Action)
	set("outcome", q.Outcome)
	set("kind", q.ResourceKind)
	set("resource", q.Resource)
	set("request", q.Request)
	for name, t := range map[string]time.Time{"from": q.From, "to": q.To} {
		if !t.IsZero() {
			set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	if q.Before > 0 {
		set("before", strconv.FormatInt(q.Before, 10))
	}
	if q.After != nil {
		set("after", strconv.FormatInt(*q.After, 10))
	}
	if q.Limit > 0 {
		set("limit", strconv.Itoa(q.Limit))
	}
	var page AuditPage
	err := p.get(ctx, pathAudit, values, &page)
	return page, err
}
