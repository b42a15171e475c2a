package policy

import (
	"cmp"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"atoll.dev/cluster"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Principal is the ARN of a caller: of a user, a role, the session of a role, or the root of an account.
type Principal string

// Resource is the resource of an action.
type Resource struct {
	Kind    Kind
	ID      string
	Account cluster.Account   // that it belongs to; "" for a resource of the region
	Cluster string            // id of the cluster that a node pool or a credential belongs to; "" when not known
	Tags    map[string]string // of the cluster
}

// Context has the attributes of a request besides its action and resource.
type Context struct {
	SourceIP  netip.Addr
	Time      time.Time
	Region    string
	UserAgent string
	MFA       *bool // nil: not known
}

// Query is one question: may the principal take the action on the resource?
type Query struct {
	Principal Principal
	Account   cluster.Account
	Groups    []string // ids of the groups that the principal, or its role, is a member of
	Action    string
	Resource  Resource
	Context   Context
}

// Decision is the answer to a Query.
type Decision struct {
	Allowed bool
	// Policies are the ids of the policies that decided: all policies that forbid the action; without
	// one, all policies that permit it; none when no policy matched.
	Policies []string
}

// ErrIncomplete means that a Query lacks something that policies may depend on.
var ErrIncomplete = errors.New("the request lacks a source address, a time or a known action")

// ReadsResource reports whether the answer to a query can depend on the cluster or on the tags of the
// resource. A caller who does not know these reads the resource first.
func (ix *Index) ReadsResource(q Query) bool {
	q.Resource.Cluster = "" // not known yet
	for c := range ix.candidates(&q, tagsUnknown) {
		if c.readsResource || c.parent.Type == clusterType && q.Resource.Kind != Cluster {
			return true
		}
	}
	return false
}

// PermitsAll reports whether the answer is yes for every resource: a statement permits the action
// without any condition, and none can forbid it. The resource of the query does not count.
func (ix *Index) PermitsAll(q Query) bool {
	permitted := false
	for c := range ix.allStatements(&q) {
		if c.forbids {
			return false
		}
		scope := c.source
		_, anyPrincipal := scope.Principal.(ast.ScopeTypeAll)
		_, anyResource := scope.Resource.(ast.ScopeTypeAll)
		permitted = permitted || anyPrincipal && anyResource && len(scope.Conditions) == 0
	}
	return permitted
}

// Decide answers a query. A statement that cannot be evaluated permits nothing; when it forbids, the
// answer is no.
func (ix *Index) Decide(q Query) (Decision, error) {
	if _, known := byName[q.Action]; !known || !q.Context.SourceIP.IsValid() || q.Context.Time.IsZero() {
		return Decision{}, ErrIncomplete
	}
	allowed, why := ix.authorize(&q)
	d := Decision{Allowed: allowed == cedar.Allow}
	for _, r := range why.Reasons {
		d.Policies = append(d.Policies, policyOf(r.PolicyID))
	}
	for _, e := range why.Errors {
		for c := range ix.candidates(&q, tagsKnown) {
			if c.id == e.PolicyID && c.forbids {
				if d.Allowed {
					d = Decision{}
				}
				d.Policies = append(d.Policies, policyOf(e.PolicyID))
			}
		}
	}
	slices.Sort(d.Policies)
	d.Policies = slices.Compact(d.Policies)
	return d, nil
}

// authorize lets Cedar decide by the candidates of a query. All other statements are false for it, without an error.
func (ix *Index) authorize(q *Query) (cedar.Decision, cedar.Diagnostic) {
	ask := newRequest(q)
	return cedar.Authorize(policies{ix, q}, ask, ask.forCedar())
}

// policyOf returns the id of the policy that a statement belongs to.
func policyOf(statement types.PolicyID) string {
	s := string(statement)
	return s[:max(0, strings.LastIndexByte(s, '#'))]
}

// policies is the candidates of a query as Cedar iterates them.
type policies struct {
	ix *Index
	q  *Query
}

// All implements cedar.PolicyIterator.
func (p policies) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for c := range p.ix.candidates(p.q, tagsKnown) {
			if !yield(c.id, c.compiled) {
				return
			}
		}
	}
}

// RoleOf returns the ARN of the role of an assumed role's session; "" for other principals. As in AWS,
// a session names its role without the path.
func RoleOf(principal Principal) Principal {
	parts := strings.SplitN(string(principal), ":", 6)
	if len(parts) != 6 || parts[2] != "sts" {
		return ""
	}
	path := strings.Split(parts[5], "/")
	if len(path) != 3 || path[0] != "assumed-role" {
		return ""
	}
	return Principal("arn:" + parts[1] + ":iam::" + parts[4] + ":role/" + path[1])
}

// maxUserAgent is how many bytes of a User-Agent conditions read: a pattern takes time for each.
const maxUserAgent = 512

// record returns the context as Cedar reads it.
func (c Context) record() types.Record {
	address := c.SourceIP.Unmap()
	m := types.RecordMap{
		"sourceIp": types.IPAddr(netip.PrefixFrom(address.WithZone(""), address.BitLen())),
		"time":     types.NewDatetime(c.Time), "region": types.String(c.Region),
		"userAgent": types.String(c.UserAgent[:min(len(c.UserAgent), maxUserAgent)]),
	}
	if c.MFA != nil {
		m["mfa"] = types.Boolean(*c.MFA)
	}
	return types.NewRecord(m)
}

// request has the entities of a query. One goroutine uses it, for one decision.
type request struct {
	q                   *Query
	principal, resource types.EntityUID
	built               map[types.EntityUID]types.Entity // each condition of each statement gets its entities again
	last                types.Entity                     // that Get returned; most conditions read one entity
}

func newRequest(q *Query) *request {
	return &request{q: q, principal: uid("Principal", string(q.Principal)), resource: uid(q.Resource.Kind, q.Resource.ID),
		built: map[types.EntityUID]types.Entity{}}
}

// forCedar returns the request as Cedar reads it.
func (r *request) forCedar() cedar.Request {
	return cedar.Request{Principal: r.principal, Action: types.NewEntityUID(actionType, types.String(r.q.Action)),
		Resource: r.resource, Context: r.q.Context.record()}
}

// Get implements types.EntityGetter.
func (r *request) Get(id types.EntityUID) (types.Entity, bool) {
	if r.last.UID == id && !id.IsZero() {
		return r.last, true
	}
	e, exists := r.built[id]
	if !exists {
		if e, exists = r.entity(id); exists {
			r.built[id] = e
		}
	}
	if exists {
		r.last = e
	}
	return e, exists
}

// entity builds an entity of the query; exists is false for one that the query does not name.
func (r *request) entity(id types.EntityUID) (e types.Entity, exists bool) {
	e = types.Entity{UID: id}
	account := uid(Account, string(r.q.Account))
	switch {
	case id.Type == actionType:
		action, known := actionEntities[id]
		return action, known
	case id == r.principal || Principal(id.ID) == RoleOf(r.q.Principal) && id.Type == r.principal.Type:
		parents := []types.EntityUID{account}
		if role := RoleOf(Principal(id.ID)); role != "" {
			parents = append(parents, uid("Principal", string(role)))
		}
		for _, g := range r.q.Groups {
			parents = append(parents, uid(Group, g))
		}
		e.Parents = types.NewEntityUIDSet(parents...)
		e.Attributes = types.NewRecord(types.RecordMap{
			"arn": id.ID, "accountId": types.String(r.q.Account),
		})
	case id == r.resource:
		e.Parents, e.Tags = types.NewEntityUIDSet(r.parents()...), r.tags()
	case r.q.Resource.Cluster != "" && id == uid(Cluster, r.q.Resource.Cluster):
		e.Parents, e.Tags = types.NewEntityUIDSet(uid(Account, string(r.q.Resource.Account))), r.tags()
	case id.Type == namespace+types.EntityType(Group) && slices.Contains(r.q.Groups, string(id.ID)):
		e.Parents = types.NewEntityUIDSet(account)
	default:
		return e, false
	}
	return e, true
}

// parents returns the entities that the resource is in.
func (r *request) parents() (parents []types.EntityUID) {
	of := r.q.Resource
	switch {
	case of.Kind == Account || of.Kind == Region:
		return nil
	case of.Account != "":
		parents = append(parents, uid(Account, string(of.Account)))
	default:
		parents = append(parents, uid(Region, cmp.Or(r.q.Context.Region, "-")))
	}
	if of.Cluster != "" {
		parents = append(parents, uid(Cluster, of.Cluster))
	}
	return parents
}

func (r *request) tags() types.Record {
	m := make(types.RecordMap, len(r.q.Resource.Tags))
	for k, v := range r.q.Resource.Tags {
		m[types.String(k)] = types.String(v)
	}
	return types.NewRecord(m)
}
