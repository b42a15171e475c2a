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

// objection is a reason why a management cluster does not fit. Equal objections of several management clusters are
// counted, so it has no names and amounts.
type objection struct {
	kind    string
	subject string // a resource or label, "" for kinds without one
}

// Kinds of objections.
const (
	kindUnusable   = "its declaration cannot be used"
	kindNeverSeen  = "its agent has never connected"
	kindLost       = "lost"
	kindCordoned   = "cordoned"
	kindDraining   = "draining"
	kindOther      = "not the requested management cluster"
	kindUnlabeled  = "it has no label "
	kindMislabeled = "it has another value of label "
	kindVersion    = "it cannot run the version"
	kindFull       = "not enough free of "
)

// criteria are a demand with the names of its labels and resources in order.
type criteria struct {
	Demand
	labels, amounts []string
}

func criteriaOf(d Demand) criteria { return criteria{d, sortedKeys(d.Selector), sortedKeys(d.Amounts)} }

// objections returns all reasons why a management cluster does not fit.
func (m *ManagementCluster) objections(d criteria) (all []objection) {
	if m.Unusable != "" {
		all = append(all, objection{kind: kindUnusable})
	}
	switch m.State {
	case api.Ready:
	case api.Unheard:
		all = append(all, objection{kind: kindNeverSeen})
	case api.Lost:
		all = append(all, objection{kind: kindLost})
	case api.Draining:
		all = append(all, objection{kind: kindDraining})
	default:
		all = append(all, objection{kind: kindCordoned})
	}
	if d.Named != "" && d.Named != m.Name {
		all = append(all, objection{kind: kindOther})
	}
	for _, k := range d.labels {
		if have, ok := m.Labels[k]; !ok {
			all = append(all, objection{kindUnlabeled, k})
		} else if have != d.Selector[k] {
			all = append(all, objection{kindMislabeled, k})
		}
	}
	if d.Version != "" && len(m.Versions) > 0 && !slices.Contains(m.Versions, d.Version) {
		all = append(all, objection{kind: kindVersion})
	}
	for _, name := range d.amounts {
		if capacity, limited := m.Capacity[name]; limited && d.Amounts[name] > capacity-m.Reserved[name] {
			all = append(all, objection{kindFull, name})
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
	case kindUnusable:
		return m.Unusable
	case kindLost:
		return "lost: the last event of its agent was at " + m.LastSeen.UTC().Format(time.RFC3339)
	case kindOther:
		return "the cluster is for " + string(d.Named)
	case kindMislabeled:
		return fmt.Sprintf("its label %s is %s, not %s", o.subject, m.Labels[o.subject], d.Selector[o.subject])
	case kindVersion:
		return "it cannot run " + d.Version
	case kindFull:
		return fmt.Sprintf("%s: %d of %d free, %d needed", o.subject, max(0, m.Capacity[o.subject]-m.Reserved[o.subject]),
			m.Capacity[o.subject], d.Amounts[o.subject])
	}
	return o.kind + o.subject
}

// explain counts the objections by kind and lists the management clusters that come nearest to fitting.
func explain(d Demand, fleet []ManagementCluster) Explanation {
	type ranked struct {
		m     *ManagementCluster
		score int64 // 0 for a management cluster that does not fit
		all   []objection
	}
	nearer := func(a, b ranked) int {
		return cmp.Or(cmp.Compare(len(a.all), len(b.all)), -cmp.Compare(a.score, b.score),
			cmp.Compare(a.m.Name, b.m.Name))
	}
	criteria := criteriaOf(d)
	var nearest []ranked
	counts := map[objection]int{}
	for i := range fleet {
		r := ranked{m: &fleet[i], all: fleet[i].objections(criteria)}
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
		e.Objections = append(e.Objections, api.Objection{Reason: o.kind + o.subject, Count: n})
	}
	slices.SortFunc(e.Objections, func(a, b api.Objection) int {
		return cmp.Or(-cmp.Compare(a.Count, b.Count), cmp.Compare(a.Reason, b.Reason))
	})
	e.Objections = e.Objections[:min(len(e.Objections), maxObjections)]
	return e
}

// operatorReason returns why a cluster waits, in one sentence for operators.
func operatorReason(d Demand, e Explanation) string {
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

// publicReason returns why a cluster waits, in one sentence for the cluster's owner. A management cluster passes up to
// three steps: it is usable, it matches the selection, it supports the version. The sentence follows from the last
// step that any management cluster passes. It has no names and no amounts (decision 053).
func publicReason(d Demand, fleet []ManagementCluster) string {
	usable, matching, running := false, false, false
	for i := range fleet {
		m := &fleet[i]
		if m.Unusable != "" || m.State != api.Ready {
			continue
		}
		usable = true
		if !m.matchesSelection(d) {
			continue
		}
		matching = true
		running = running || m.supportsVersion(d)
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
