package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

// Explanation explains a decision, in a size that does not grow with the region.
type Explanation = api.Decision

// Bounds of an explanation.
const (
	maxCandidates = 5
	maxObjections = 10
)

// objection is a reason why a management cluster does not fit: a kind for counting, without names and
// amounts, and its subject.
type objection struct {
	kind string
	of   string // resource or label
}

// Kinds of objections.
const (
	isBroken     = "its declaration cannot be used"
	isUnheard    = "its agent was never heard"
	isLost       = "lost"
	isCordoned   = "cordoned"
	isDraining   = "draining"
	isOther      = "not the one that is asked for"
	isUnlabeled  = "it has no label "
	isMislabeled = "it has another value of label "
	isOfVersion  = "it cannot run the version"
	isFull       = "not enough free of "
)

// criteria are a demand with its labels and resources in order.
type criteria struct {
	Demand
	labels, amounts []string
}

func criteriaOf(d Demand) criteria { return criteria{d, sortedKeys(d.Selector), sortedKeys(d.Amounts)} }

// objections returns all reasons why a management cluster does not fit.
func (m *ManagementCluster) objections(d criteria) (all []objection) {
	if m.Broken != "" {
		all = append(all, objection{kind: isBroken})
	}
	switch m.State {
	case api.Ready:
	case api.Unheard:
		all = append(all, objection{kind: isUnheard})
	case api.Lost:
		all = append(all, objection{kind: isLost})
	case api.Draining:
		all = append(all, objection{kind: isDraining})
	default:
		all = append(all, objection{kind: isCordoned})
	}
	if d.Named != "" && d.Named != m.Name {
		all = append(all, objection{kind: isOther})
	}
	for _, k := range d.labels {
		if have, ok := m.Labels[k]; !ok {
			all = append(all, objection{isUnlabeled, k})
		} else if have != d.Selector[k] {
			all = append(all, objection{isMislabeled, k})
		}
	}
	if d.Version != "" && len(m.Versions) > 0 && !slices.Contains(m.Versions, d.Version) {
		all = append(all, objection{kind: isOfVersion})
	}
	for _, name := range d.amounts {
		if capacity, limited := m.Capacity[name]; limited && d.Amounts[name] > capacity-m.Reserved[name] {
			all = append(all, objection{isFull, name})
		}
	}
	return all
}

func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

// text returns the objection with its names and amounts, for operators.
func (o objection) text(m *ManagementCluster, d Demand) string {
	switch o.kind {
	case isBroken:
		return m.Broken
	case isLost:
		return "lost: its agent was last heard " + m.Heard.UTC().Format(time.RFC3339)
	case isOther:
		return "the cluster is for " + string(d.Named)
	case isMislabeled:
		return fmt.Sprintf("its label %s is %s, not %s", o.of, m.Labels[o.of], d.Selector[o.of])
	case isOfVersion:
		return "it cannot run " + d.Version
	case isFull:
		return fmt.Sprintf("%s: %d of %d free, %d needed", o.of, max(0, m.Capacity[o.of]-m.Reserved[o.of]),
			m.Capacity[o.of], d.Amounts[o.of])
	}
	return o.kind + o.of
}

// explain counts the objections by kind and lists the management clusters that come nearest.
func explain(d Demand, fleet []ManagementCluster) Explanation {
	type ranked struct {
		m     *ManagementCluster
		score int64 // of what fits
		all   []objection
	}
	nearer := func(a, b ranked) int {
		return cmp.Or(cmp.Compare(len(a.all), len(b.all)), -cmp.Compare(a.score, b.score),
			cmp.Compare(a.m.Name, b.m.Name))
	}
	asked := criteriaOf(d)
	var nearest []ranked
	counts := map[objection]int{}
	for i := range fleet {
		r := ranked{m: &fleet[i], all: fleet[i].objections(asked)}
		if len(r.all) == 0 {
			r.score = r.m.score(d)
		}
		for _, o := range r.all {
			counts[o]++
		}
		at, _ := slices.BinarySearchFunc(nearest, r, nearer)
		if at < maxCandidates {
			nearest = slices.Insert(nearest, at, r)[:min(len(nearest)+1, maxCandidates)]
		}
	}
	e := Explanation{Considered: len(fleet), Candidates: make([]api.Candidate, len(nearest)),
		Objections: make([]api.Objection, 0, len(counts))}
	for i, r := range nearest {
		c := api.Candidate{Name: string(r.m.Name), Fits: len(r.all) == 0, Score: r.score}
		for _, o := range r.all {
			c.Reasons = append(c.Reasons, o.text(r.m, d))
		}
		e.Candidates[i] = c
	}
	for o, n := range counts {
		e.Objections = append(e.Objections, api.Objection{Reason: o.kind + o.of, Count: n})
	}
	slices.SortFunc(e.Objections, func(a, b api.Objection) int {
		return cmp.Or(-cmp.Compare(a.Count, b.Count), cmp.Compare(a.Reason, b.Reason))
	})
	e.Objections = e.Objections[:min(len(e.Objections), maxObjections)]
	return e
}

// why returns one sentence for operators: why a cluster waits.
func why(d Demand, e Explanation) string {
	if e.Considered == 0 {
		return "there is no management cluster"
	}
	var parts []string
	for _, c := range e.Candidates {
		if d.Named == "" || cluster.ManagementCluster(c.Name) == d.Named {
			parts = append(parts, c.Name+": "+strings.Join(c.Reasons, ", "))
		}
	}
	if len(parts) == 0 {
		return "there is no management cluster " + string(d.Named)
	}
	if more := e.Considered - len(parts); more > 0 && d.Named == "" {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// publicReason returns one sentence for the cluster's owner: why it waits, by the last of these steps that
// any management cluster reaches. It has no names and no amounts (decision 053).
func publicReason(d Demand, fleet []ManagementCluster) string {
	usable, matching, running := false, false, false
	for i := range fleet {
		m := &fleet[i]
		if m.Broken != "" || m.State != api.Ready {
			continue
		}
		usable = true
		if !m.isAskedFor(d) {
			continue
		}
		matching = true
		running = running || m.runs(d)
	}
	switch {
	case running:
		return "the region has no room for the cluster at present"
	case matching:
		return "no place that the cluster may have runs Kubernetes " + d.Version + " at present"
	case usable && d.Named != "":
		return "the management cluster that the cluster asks for takes no clusters at present"
	case usable:
		return "no place has the labels that the cluster asks for"
	}
	return "the region takes no new clusters at present"
}
