package rosa

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"atoll.dev/access"
	"atoll.dev/access/audit"
	request "atoll.dev/api/audit"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

const (
	codeNoAudit = "audit-unavailable"
	maxAudit    = 500 // records of a page
)

// auditedRequest returns the description of a request for audit records; "" for one that changes nothing.
func auditedRequest(r *http.Request, caller access.Identity, e endpoint) string {
	if e.method == http.MethodGet {
		return ""
	}
	grant, _ := access.GrantFrom(r.Context())
	proof, credential := caller.ProvedBy()
	return request.Request{Proof: proof, ProofID: credential, Action: string(e.action),
		Method: e.method, Route: apiPrefix + e.path, Reason: grant.Reason, Policies: grant.Policies,
		Source: access.SourceOf(r, caller), UserAgent: r.UserAgent(), Operator: caller.Privileged}.Encode()
}

// auditList is the answer to a request for audit records.
type auditList struct {
	Kind   string        `json:"kind"`
	Items  []audit.Entry `json:"items"`
	Head   *audit.Anchor `json:"head,omitempty"`
	Anchor *audit.Anchor `json:"anchor,omitempty"`
}

// listAudit shows the audit records of the caller's account or, with all, of the region. The Router has decided
// whether the caller may read these.
func (f *front) listAudit(w http.ResponseWriter, r *http.Request) error {
	if f.audit == nil {
		return rest.Errorf(http.StatusServiceUnavailable, codeNoAudit, "this region keeps no audit")
	}
	q, all, err := readAuditQuery(r.URL.Query())
	if err != nil {
		return err
	}
	caller, _ := access.FromContext(r.Context())
	if !all {
		q.Account = caller.Account
	}
	page, err := f.audit.List(r.Context(), q)
	if err != nil {
		e := rest.Errorf(http.StatusServiceUnavailable, codeNoAudit,
			"the database of the audit does not answer; try again").Because(err)
		e.RetryAfter = time.Second
		return e
	}
	list := auditList{Kind: "AuditList", Items: page.Entries}
	if all {
		list.Head, list.Anchor = &page.Head, &page.Anchor
		return rest.WriteJSON(w, http.StatusOK, list)
	}
	for i, entry := range list.Items {
		if list.Items[i], err = entry.ShownTo(caller.Account); err != nil {
			return err
		}
	}
	return rest.WriteJSON(w, http.StatusOK, list)
}

// readAuditQuery reads the parameters of a request for audit records. all is true for those of the region.
func readAuditQuery(values url.Values) (q audit.Query, all bool, err error) {
	refuse := func(name, rule string) (audit.Query, bool, error) {
		return q, false, rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "%s=%s %s", name,
			quote(values.Get(name)), rule)
	}
	for name, given := range values {
		if len(given) > 1 {
			return refuse(name, "is given more than once; give it once")
		}
	}
	if text := values.Get("all"); text != "" {
		if all, err = strconv.ParseBool(text); err != nil {
			return refuse("all", "is neither true nor false")
		}
	}
	q = audit.Query{Limit: 50, Principal: values.Get("principal"), Action: values.Get("action"),
		Outcome: values.Get("outcome"), ResourceKind: values.Get("kind"), ResourceID: values.Get("resource"),
		RequestID: values.Get("request"), Account: cluster.Account(values.Get("account")), Ascending: values.Has("after")}
	if q.Outcome != "" && q.Outcome != audit.Done && q.Outcome != audit.Denied {
		return refuse("outcome", "is neither done nor denied")
	}
	if !all && q.Account != "" {
		return refuse("account", "needs all=true, which is for operators")
	}
	if values.Has("limit") {
		if q.Limit, err = strconv.Atoi(values.Get("limit")); err != nil || q.Limit < 1 || q.Limit > maxAudit {
			return refuse("limit", "is not from 1 to "+strconv.Itoa(maxAudit))
		}
	}
	for name, into := range map[string]*int64{"before": &q.Before, "after": &q.After} {
		if !values.Has(name) {
			continue
		}
		if *into, err = strconv.ParseInt(values.Get(name), 10, 64); err != nil || *into < 0 {
			return refuse(name, "is not the seq of a record")
		}
	}
	for name, into := range map[string]*time.Time{"from": &q.From, "to": &q.To} {
		if !values.Has(name) {
			continue
		}
		if *into, err = time.Parse(time.RFC3339, values.Get(name)); err != nil {
			return refuse(name, "is not a time like 2026-11-23T10:00:00Z")
		}
	}
	return q, all, nil
}
