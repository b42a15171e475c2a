package adapter

import (
	"fmt"
	"strings"

	"atoll.dev/internal/jsonvalue"
)

// workView describes how a report reads the state of a ManifestWork's object.
type workView struct {
	resource, object, ready string
	ignoreUnversioned       bool // a condition without observedGeneration does not count
	subject                 string
	waiting, pending        reasonRule
	taskReasons, blockers   []reasonRule
}

// workFacts is the state of a ManifestWork and its object. The zero value is that of a work that
// does not exist.
type workFacts struct {
	ordered    bool     // Maestro has the work
	applied    bool     // the agent has applied its present content, and the object is of this generation
	refused    []string // manifests that the management cluster refused, as "Kind: message"
	generation string   // the object's own generation; "" while it is unknown
	conditions []any    // the object's conditions
	object     any      // the object with its feedback
}

// readFacts reads the state from the objects that the run found. The error is about feedback with conditions that
// is no JSON.
func (w *workView) readFacts(vars map[string]any) (f workFacts, err error) {
	resources, _ := vars["resources"].(map[string]any)
	work, found := resources[w.resource].(map[string]any)
	f.object = resources[w.object]
	f.ordered = found
	f.applied = hasCurrentCondition(work, "Applied", "True") && feedbackText(f.object, "of") == toText(vars["generation"])
	if hasCurrentCondition(work, "Applied", "False") {
		f.refused = refusalMessages(work)
	}
	f.generation = feedbackText(f.object, "generation")
	conditions, err := fromJSON(feedbackText(f.object, "conditions"))
	if err != nil {
		return f, fmt.Errorf("the conditions of %s: %w", w.object, err)
	}
	f.conditions, _ = conditions.([]any)
	return f, nil
}

// forExpressions is the facts as expressions see them under the name work.
func (f workFacts) forExpressions() map[string]any {
	refused := []any{}
	for _, text := range f.refused {
		refused = append(refused, text)
	}
	conditions := f.conditions
	if conditions == nil {
		conditions = []any{}
	}
	return map[string]any{
		"ordered": f.ordered, "applied": f.applied, "refused": refused, "generation": f.generation,
		"conditions": conditions,
	}
}

// hasCurrentCondition reports whether a work has a condition of that status about its present content.
func hasCurrentCondition(work map[string]any, kind, status string) bool {
	list, _ := valueAt(work, "status.conditions").([]any)
	for _, x := range list {
		c, _ := x.(map[string]any)
		observed, there := c["observedGeneration"]
		if !there {
			observed = int64(0)
		}
		if c["type"] == kind && c["status"] == status && jsonvalue.Equal(observed, valueAt(work, "metadata.generation")) {
			return true
		}
	}
	return false
}

// refusalMessages are the messages of the manifests that were not applied.
func refusalMessages(work map[string]any) (out []string) {
	manifests, _ := valueAt(work, "status.resourceStatus.manifests").([]any)
	for _, m := range manifests {
		kind, _ := valueAt(m, "resourceMeta.kind").(string)
		list, _ := valueAt(m, "conditions").([]any)
		var messages []string
		for _, x := range list {
			if c, _ := x.(map[string]any); c["type"] == "Applied" && c["status"] == "False" {
				messages = append(messages, kind+": "+textOf(c["message"]))
			}
		}
		if text := strings.Join(messages, "; "); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// isReady reports whether the object is ready in its present generation.
func (w *workView) isReady(f workFacts) bool {
	if !f.applied {
		return false
	}
	for _, x := range f.conditions {
		c, _ := x.(map[string]any)
		if c["type"] != w.ready || c["status"] != "True" {
			continue
		}
		observed, there := c["observedGeneration"]
		if there && toText(observed) == f.generation || !there && !w.ignoreUnversioned {
			return true
		}
	}
	return false
}

// isOutdated reports whether the object's ready condition is about another generation than its present
// one.
func (w *workView) isOutdated(f workFacts) bool {
	for _, x := range f.conditions {
		c, _ := x.(map[string]any)
		observed, there := c["observedGeneration"]
		if c["type"] == w.ready && there && toText(observed) != f.generation {
			return true
		}
	}
	return false
}

// wasAvailable reports whether the last report is about this generation and had Available True.
func wasAvailable(vars map[string]any) bool {
	before, _ := vars["before"].(map[string]any)
	list, _ := before["conditions"].([]any)
	for _, x := range list {
		if c, _ := x.(map[string]any); c["type"] == "Available" && c["status"] == "True" {
			return jsonvalue.Equal(before["observed_generation"], vars["generation"])
		}
	}
	return false
}

// textOf is a value that should be a string; null is "".
func textOf(v any) string {
	if v == nil {
		return ""
	}
	return toText(v)
}
