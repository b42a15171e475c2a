package policy

import (
	"cmp"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"atoll.dev/cluster"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Principal is the ARN of a caller: of a user, a role, the session of a role, or the root of an account.
type Principal string

// Attached is a policy and one target that it is attached to.
type Attached struct {
	PolicyID string
	Policy   *Policy
	// Principal, or Group with the id of a group, is the target. One of them is set.
	Principal Principal
	Group     string
}

// Index has the attached policies of one account by target. It does not change, and several goroutines
// may use it. It refers to policies, so that its size depends on the attachments alone.
type Index struct {
	byTarget map[target][]attachedPolicy
}

type attachedPolicy struct {
	id     string
	policy *Policy
}

// target is a principal or a group.
type target struct {
	kind Kind // Group, or "" for a principal
	id   string
}

// candidate is a statement that may decide.
type candidate struct {
	policyID string
	*statement
}

// id returns the statement's id for Cedar: "POLICY#2" is the second statement of POLICY.
func (c candidate) id() types.PolicyID {
	return types.PolicyID(c.policyID + "#" + strconv.Itoa(c.number))
}

// NewIndex returns the index of attached policies. An attachment that names a policy or a target
// twice is evaluated once for each.
func NewIndex(attached []Attached) *Index {
	ix := &Index{byTarget: map[target][]attachedPolicy{}}
	for _, a := range attached {
		at := target{id: string(a.Principal)}
		if a.Group != "" {
			at = target{Group, a.Group}
		}
		ix.byTarget[at] = append(ix.byTarget[at], attachedPolicy{a.PolicyID, a.Policy})
	}
	return ix
}

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
	for c := range ix.candidates(q) {
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
	for c := range ix.attached(q) {
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
	ask := request{q: &q, principal: uid("Principal", string(q.Principal)), resource: uid(q.Resource.Kind, q.Resource.ID),
		built: map[types.EntityUID]types.Entity{}}
	allowed, why := cedar.Authorize(policies{ix, q}, &ask, cedar.Request{
		Principal: ask.principal, Action: types.NewEntityUID(actionType, types.String(q.Action)),
		Resource: ask.resource, Context: q.Context.record(),
	})
	d := Decision{Allowed: allowed == cedar.Allow}
	for _, r := range why.Reasons {
		d.Policies = append(d.Policies, policyOf(r.PolicyID))
	}
	for _, e := range why.Errors {
		for c := range ix.candidates(q) {
			if c.id() == e.PolicyID && c.forbids {
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

// policyOf returns the id of the policy that a statement belongs to.
func policyOf(statement types.PolicyID) string {
	s := string(statement)
	return s[:max(0, strings.LastIndexByte(s, '#'))]
}

// policies is the candidates of a query as Cedar iterates them.
type policies struct {
	ix *Index
	q  Query
}

// All implements cedar.PolicyIterator.
func (p policies) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for c := range p.ix.candidates(p.q) {
			if !yield(c.id(), c.compiled) {
				return
			}
		}
	}
}

// matches reports whether the scope of a statement can match a query about a resource. A statement
// about the resources of a cluster matches while the cluster of the resource is not known.
func (s *statement) matches(q *Query, principal, resource types.EntityUID) bool {
	switch {
	case !s.principal.IsZero() && s.principal != principal, !s.resource.IsZero() && s.resource != resource:
		return false
	case s.parent.Type != clusterType || s.parent == resource:
		return true
	}
	return q.Resource.Cluster == "" || string(s.parent.ID) == q.Resource.Cluster
}

const clusterType = types.EntityType(namespace + Cluster)

// candidates iterates the attached statements whose scope can match.
func (ix *Index) candidates(q Query) iter.Seq[candidate] {
	principal, resource := uid("Principal", string(q.Principal)), uid(q.Resource.Kind, q.Resource.ID)
	return func(yield func(candidate) bool) {
		for c := range ix.attached(q) {
			if c.matches(&q, principal, resource) && !yield(c) {
				return
			}
		}
	}
}

// attached iterates the statements about the action that are attached to the principal, to its role
// and to its groups.
func (ix *Index) attached(q Query) iter.Seq[candidate] {
	number := numberOf(q.Action)
	return func(yield func(candidate) bool) {
		at := func(t target) bool {
			for _, attached := range ix.byTarget[t] {
				for i := range attached.policy.statements {
					s := &attached.policy.statements[i]
					if s.actions.contains(number) && !yield(candidate{attached.id, s}) {
						return false
					}
				}
			}
			return true
		}
		if !at(target{id: string(q.Principal)}) {
			return
		}
		if role := RoleOf(q.Principal); role != "" && !at(target{id: string(role)}) {
			return
		}
		for _, g := range q.Groups {
			if !at(target{Group, g}) {
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
}

// Get implements types.EntityGetter.
func (r *request) Get(id types.EntityUID) (types.Entity, bool) {
	if e, ok := r.built[id]; ok {
		return e, true
	}
	e, exists := r.entity(id)
	if exists {
		r.built[id] = e
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
