package policy

import (
	"iter"
	"strconv"

	"github.com/cedar-policy/cedar-go/types"
)

// Attached is a policy and one target that it is attached to.
type Attached struct {
	PolicyID string
	Policy   *Policy
	// Principal, or Group with the id of a group, is the target. One of them is set.
	Principal Principal
	Group     string
}

// Index has the statements of the attached policies of one account, by target, and by the resource or the tag
// without which a statement is false. A decision evaluates only the statements that the index finds. An Index is
// immutable, and several goroutines may use it. It has pointers to the statements of policies, and no copies.
type Index struct {
	byTarget map[target]*targetStatements
}

// target is a principal or a group.
type target struct {
	kind Kind // Group, or "" for a principal
	id   string
}

// targetStatements are the statements that are attached to one target. Each statement is in one of the three members.
type targetStatements struct {
	byResource map[types.EntityUID][]candidate // scopes that match one resource
	byTag      map[tag][]candidate             // conditions that are false for a resource without the tag
	others     []candidate                     // all that depend on no resource and no tag
}

// candidate is a statement that a decision may have to evaluate.
type candidate struct {
	id types.PolicyID // "POLICY#2" is the second statement of POLICY
	*statement
}

// NewIndex returns the index of attached policies. A policy that is in the list twice for one target is evaluated
// twice; the decision is the same.
func NewIndex(attached []Attached) *Index {
	ix := &Index{byTarget: map[target]*targetStatements{}}
	ids := map[string][]types.PolicyID{} // by policy; attachments of one policy share them
	for _, a := range attached {
		to := target{id: string(a.Principal)}
		if a.Group != "" {
			to = target{Group, a.Group}
		}
		t := ix.byTarget[to]
		if t == nil {
			t = &targetStatements{}
			ix.byTarget[to] = t
		}
		for n := len(ids[a.PolicyID]) + 1; n <= len(a.Policy.statements); n++ {
			ids[a.PolicyID] = append(ids[a.PolicyID], types.PolicyID(a.PolicyID+"#"+strconv.Itoa(n)))
		}
		t.add(ids[a.PolicyID], a.Policy)
	}
	return ix
}

// add adds the statements of a policy. ids are their ids, in the order of the policy.
func (t *targetStatements) add(ids []types.PolicyID, p *Policy) {
	others := 0
	for i := range p.statements {
		s := &p.statements[i]
		c := candidate{ids[i], s}
		switch {
		case !s.resource.IsZero():
			if t.byResource == nil {
				t.byResource = map[types.EntityUID][]candidate{}
			}
			t.byResource[s.resource] = append(t.byResource[s.resource], c)
		case s.tag != nil:
			if t.byTag == nil {
				t.byTag = map[tag][]candidate{}
			}
			t.byTag[*s.tag] = append(t.byTag[*s.tag], c)
		default:
			if others++; others == 1 && cap(t.others) == 0 {
				t.others = make([]candidate, 0, len(p.statements)-i)
			}
			t.others = append(t.others, c)
		}
	}
}

// tagKnowledge is whether the tags of a query's resource are known. While they are not, each statement about tags may
// match.
type tagKnowledge uint8

const (
	tagsUnknown tagKnowledge = iota
	tagsKnown
)

// candidates iterates the statements that apply to the principal and the action of a query and whose scope can match.
// It leaves out those that are false because of the tags of the resource.
func (ix *Index) candidates(q *Query, tags tagKnowledge) iter.Seq[candidate] {
	principal, resource := uid("Principal", string(q.Principal)), uid(q.Resource.Kind, q.Resource.ID)
	number := numberOf(q.Action)
	return func(yield func(candidate) bool) {
		each := func(list []candidate) bool {
			for _, c := range list {
				if c.actions.contains(number) && c.matches(q, principal, resource) && !yield(c) {
					return false
				}
			}
			return true
		}
		for t := range ix.attachedTo(q) {
			if !each(t.byResource[resource]) || !t.eachByTag(q, tags, each) || !each(t.others) {
				return
			}
		}
	}
}

// eachByTag calls each with the statements whose tag the resource may have, until each returns false.
func (t *targetStatements) eachByTag(q *Query, tags tagKnowledge, each func([]candidate) bool) bool {
	if tags == tagsUnknown {
		for _, list := range t.byTag {
			if !each(list) {
				return false
			}
		}
		return true
	}
	if len(t.byTag) == 0 {
		return true
	}
	for key, value := range q.Resource.Tags {
		if !each(t.byTag[tag{key, value}]) {
			return false
		}
	}
	return true
}

// allStatements iterates all statements that apply to the principal and the action of a query, whatever its resource.
func (ix *Index) allStatements(q *Query) iter.Seq[candidate] {
	number := numberOf(q.Action)
	return func(yield func(candidate) bool) {
		each := func(list []candidate) bool {
			for _, c := range list {
				if c.actions.contains(number) && !yield(c) {
					return false
				}
			}
			return true
		}
		for t := range ix.attachedTo(q) {
			for _, list := range t.byResource {
				if !each(list) {
					return
				}
			}
			if !t.eachByTag(q, tagsUnknown, each) || !each(t.others) {
				return
			}
		}
	}
}

// attachedTo iterates the statements that are attached to the principal of a query, its role and its groups.
func (ix *Index) attachedTo(q *Query) iter.Seq[*targetStatements] {
	return func(yield func(*targetStatements) bool) {
		yieldTarget := func(to target) bool {
			t := ix.byTarget[to]
			return t == nil || yield(t)
		}
		if !yieldTarget(target{id: string(q.Principal)}) {
			return
		}
		if role := RoleOf(q.Principal); role != "" && !yieldTarget(target{id: string(role)}) {
			return
		}
		for _, g := range q.Groups {
			if !yieldTarget(target{Group, g}) {
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
