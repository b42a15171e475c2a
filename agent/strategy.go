package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"
)

// strategy says how the agent writes a manifest's object.
type strategy struct {
	kind      workv1.UpdateStrategyType
	conflicts conflictPolicy
	manager   string
	ignore    []workv1.IgnoreField // of ServerSideApply only
}

// strategyOf returns the strategy of a manifest's option, nil for the default. refused is
// the reason for which the manifest can never be applied in this way, "" when it can.
func strategyOf(u *workv1.UpdateStrategy, manager string) (s strategy, refused string) {
	s = strategy{kind: workv1.UpdateStrategyTypeUpdate, conflicts: forceConflicts, manager: manager}
	if u == nil || u.Type == "" {
		return s, ""
	}
	switch s.kind = u.Type; u.Type {
	case workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeCreateOnly, workv1.UpdateStrategyTypeReadOnly:
	case workv1.UpdateStrategyTypeServerSideApply:
		s.conflicts = refuseConflicts
		a := u.ServerSideApply
		if a == nil {
			break
		}
		if a.Force {
			s.conflicts = forceConflicts
		}
		s.ignore = a.IgnoreFields
		if a.FieldManager != "" {
			s.manager = a.FieldManager
		}
	default:
		return s, fmt.Sprintf("there is no update strategy %q", u.Type)
	}
	return s, ""
}

// key returns a text that is equal for equal strategies. The store has hashes of it, so it must not change.
func (s strategy) key() string {
	ignore, err := json.Marshal(s.ignore)
	if err != nil {
		panic(err) // strings only
	}
	if len(s.ignore) == 0 {
		ignore = nil
	}
	return fmt.Sprintf("{%s %t %s}%s", s.kind, s.conflicts == forceConflicts, s.manager, ignore)
}

// isAgentManager reports whether the field manager is one of the agent's own. A work may
// have any other; the API server validates its name.
func isAgentManager(manager string) bool {
	return strings.HasPrefix(manager, workv1.DefaultFieldManager)
}

// namedManager returns the field manager that the work names, "" for one of the
// agent's own. Changes of that manager's fields count as drift, like changes of the
// agent's fields.
func (s strategy) namedManager() string {
	if s.kind != workv1.UpdateStrategyTypeServerSideApply || isAgentManager(s.manager) {
		return ""
	}
	return s.manager
}

func (s strategy) readOnly() bool { return s.kind == workv1.UpdateStrategyTypeReadOnly }

// writes reports whether the agent repairs changes of the object.
func (s strategy) writes() bool {
	return !s.readOnly() && s.kind != workv1.UpdateStrategyTypeCreateOnly
}

const (
	// deniedRetry is the time from a denial until the agent asks for the
	// executor's rights again; the message of the denial names it.
	deniedRetry = time.Minute
	// allowedRecheck is the time until the agent asks again for rights that the
	// executor had.
	allowedRecheck = 5 * time.Minute
)

// executor returns the work's executor, in whose name the agent applies the
// manifests; nil: the agent applies them in its own name.
func (w *workState) executor() *workv1.ManifestWorkExecutor {
	if x := w.spec.Bundle.Executer; x != nil && x.Subject != (workv1.ManifestWorkExecutorSubject{}) {
		return x
	}
	return nil
}

// allComplete reports whether the work as a whole is complete. Then the agent does not
// prune its objects, either.
func (w *workState) allComplete() bool {
	return w.status != nil && meta.IsStatusConditionTrue(w.status.Status.Conditions, workv1.WorkComplete)
}
