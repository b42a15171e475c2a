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
	const asExpected = string(cluster.ReasonAsExpected)
	reconciled := transitionOf(have, "Reconciled")
	available := condition{"Available", "True", transitionOf(have, "Available"), asExpected, ""}
	progressing := condition{"Progressing", "False", reconciled, asExpected, ""}
	degraded := condition{"Degraded", "False", reconciled, asExpected, ""}
	isReady := s.phase == progress.Ready
	if !isReady {
		available.Status, available.Reason, available.Message = "False", s.reason, s.message
	}
	if !s.isDone && !s.isFailed {
		progressing.Status, progressing.Reason, progressing.Message = "True", string(cluster.ReasonUpdating), s.message
	}
	if s.isFailed || isReady && s.reason == progress.Degraded {
		degraded.Status, degraded.Reason, degraded.Message = "True", s.reason, s.message
	}
	return []condition{available, progressing, degraded}
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
