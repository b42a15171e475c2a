package arm

import (
	"context"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/progress"
)

// condition is one aspect of the observed state of a resource, as api-versions from 2026-06-30-preview on show it.
type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
}

// addStatus adds status.conditions to the view of a cluster or node pool. It reads the lifecycle manager once, so lists
// have no conditions. A resource that the lifecycle manager does not have yet has none either.
func (f *front) addStatus(ctx context.Context, v version, r resource, shown map[string]any) {
	if v < v20260630 || r.status.Resource == "" {
		return
	}
	from := clusters
	if r.kind == kindPool {
		from = nodePools
	}
	conditions := []condition{{Type: "Available", Status: "Unknown", Reason: "Unknown",
		Message: "the lifecycle manager does not answer"}}
	have, err := f.clm.GetWithStatuses(ctx, from, r.status.Resource)
	if err == nil {
		conditions = conditionsOf(have, r)
	} else {
		f.log.Warn("reading the conditions of a resource failed", "document", r.id, "error", err)
	}
	shown["properties"].(map[string]any)["status"] = map[string]any{"conditions": conditions}
}

// conditionsOf returns the conditions Available, Progressing and Degraded of a resource of the lifecycle manager.
func conditionsOf(have clmclient.Resource, of resource) []condition {
	s := readStatus(have, of)
	isReady := s.phase == progress.Ready
	available := newCondition("Available", isReady, transitionOf(have, "Available"))
	if !isReady {
		available.Reason, available.Message = s.reason, s.message
	}
	reconciled := transitionOf(have, "Reconciled")
	progressing := newCondition("Progressing", !s.isDone && !s.isFailed, reconciled)
	if progressing.Status == "True" {
		progressing.Reason, progressing.Message = string(cluster.ReasonUpdating), s.message
	}
	degraded := newCondition("Degraded", s.isFailed || isReady && s.reason == progress.Degraded, reconciled)
	if degraded.Status == "True" {
		degraded.Reason, degraded.Message = s.reason, s.message
	}
	return []condition{available, progressing, degraded}
}

// newCondition returns a condition without a message.
func newCondition(name string, isTrue bool, since string) condition {
	c := condition{Type: name, Status: "False", LastTransitionTime: since, Reason: string(cluster.ReasonAsExpected)}
	if isTrue {
		c.Status = "True"
	}
	return c
}

// transitionOf returns when a condition of a resource of the lifecycle manager changed last; without that condition,
// when the resource was created.
func transitionOf(have clmclient.Resource, name string) string {
	at := have.CreatedTime
	for _, c := range have.Status.Conditions {
		if c.Type == name {
			at = c.LastTransitionTime
		}
	}
	return at.UTC().Format(time.RFC3339)
}
