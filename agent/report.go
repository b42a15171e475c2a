package agent

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

// Condition types, reasons and messages are the contract's, word for word.
const (
	conditionFeedback = "StatusFeedbackSynced"
	// conditionContested is ours, and there only while it is true.
	conditionContested = "Contested"

	reasonFeedback       = "StatusFeedbackSynced"
	reasonFeedbackFailed = "StatusFeedbackSyncFailed"
	reasonNoFeedback     = "NoStatusFeedbackSynced"

	amwFinalizer = workv1.AppliedManifestWorkFinalizer
)

// report computes the status of the work and, when it changed, orders that it is
// stored and sent.
func (c *core) report(w *workState) {
	status := c.statusOf(w)
	applied := meta.IsStatusConditionTrue(status.Conditions, workv1.WorkApplied)
	stamped := applied && w.appliedAt.IsZero()
	if stamped {
		w.appliedAt = c.now
	}
	if w.status != nil && w.status.Generation == w.spec.Generation && equality.Semantic.DeepEqual(w.status.Status,
		status) {
		if stamped {
			c.emit(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w)}})
		}
		return
	}
	w.status = &sentStatus{Status: status, Generation: w.spec.Generation, Hash: statusHash(status)}
	c.emit(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w), Status: w.status}})
	c.out.put(w.id, outgoing{})
}

func (c *core) statusOf(w *workState) workv1.ManifestWorkStatus {
	var old workv1.ManifestWorkStatus
	if w.status != nil {
		old = w.status.Status
	}
	status := workv1.ManifestWorkStatus{Conditions: append([]metav1.Condition(nil), old.Conditions...)}
	if c.amwOf(w) == nil && w.amwErr != "" { // nothing was applied: keep the last state of the manifests
		status.ResourceStatus.Manifests = old.ResourceStatus.Manifests
	} else {
		for _, m := range w.manifests {
			status.ResourceStatus.Manifests = append(status.ResourceStatus.Manifests,
				manifestStatus(c.viewOf(m), previousCondition(old, m.meta), w.spec.Generation, c.now))
		}
	}
	conditions := workConditions(status.ResourceStatus.Manifests, w.spec.Generation)
	if w.amwErr != "" {
		conditions = slices.DeleteFunc(conditions, func(cond metav1.Condition) bool {
			return cond.Type == workv1.WorkApplied
		})
		conditions = append(conditions, metav1.Condition{
			Type:               workv1.WorkApplied,
			Status:             metav1.ConditionFalse,
			Reason:             "AppliedManifestWorkFailed",
			ObservedGeneration: w.spec.Generation,
			Message:            "Failed to apply manifest work: its AppliedManifestWork cannot be written: " + w.amwErr,
		})
	}
	for _, cond := range conditions {
		setCondition(&status.Conditions, cond, c.now)
	}
	status.Conditions = pruneRuleConditions(status.Conditions, w.spec.Generation)
	return status
}

// manifestView has the inputs of one manifest's status.
type manifestView struct {
	meta     workv1.ManifestResourceMeta
	err      string // why it is not applied
	reason   string
	mapped   bool
	live     *observed
	readErr  string
	hasRules bool
	found    feedback
	// contested: another writer repeatedly changes the object back.
	contested bool
}

func (c *core) viewOf(m *manifestState) manifestView {
	v := manifestView{meta: m.meta, err: m.err, reason: m.reason, mapped: m.mapped, readErr: m.readErr,
		hasRules: m.rules != nil && len(m.rules.feedback) > 0}
	if !m.mapped {
		return v
	}
	v.live = c.reportable(m)
	_, v.contested = c.contestedUntil[m.key]
	if m.rules != nil && v.live != nil {
		v.found = v.live.feedback[m.rules.key]
	}
	return v
}

// previousCondition finds the last reported status of a manifest: that of the same
// ordinal and object, or else that of the same object.
func previousCondition(old workv1.ManifestWorkStatus, m workv1.ManifestResourceMeta) *workv1.ManifestCondition {
	var found *workv1.ManifestCondition
	for i := range old.ResourceStatus.Manifests {
		mc := &old.ResourceStatus.Manifests[i]
		if mc.ResourceMeta == m {
			return mc
		}
		same := mc.ResourceMeta
		same.Ordinal = m.Ordinal
		if same == m && found == nil {
			found = mc
		}
	}
	return found
}

// manifestStatus returns the status of one manifest. It is a pure function of the
// view, the last reported status and the time.
func manifestStatus(v manifestView, before *workv1.ManifestCondition, generation int64,
	now time.Time) workv1.ManifestCondition {
	mc := workv1.ManifestCondition{ResourceMeta: v.meta, Conditions: []metav1.Condition{}}
	if before != nil {
		mc.Conditions = append(mc.Conditions, before.Conditions...)
		mc.StatusFeedbacks = before.StatusFeedbacks
	}
	applied := metav1.Condition{
		Type: workv1.ManifestApplied, Status: metav1.ConditionTrue,
		Reason: workv1.AppliedManifestComplete, Message: "Apply manifest complete", ObservedGeneration: generation,
	}
	if v.err != "" {
		applied.Status, applied.Reason = metav1.ConditionFalse, v.reason
		applied.Message = "Failed to apply manifest: " + v.err
		if v.reason == workv1.AppliedManifestSSAIgnoreFieldError {
			applied.Message = "Failed to process ignoreFields: " + v.err
		}
	}
	setCondition(&mc.Conditions, applied, now)

	if v.contested {
		setCondition(&mc.Conditions, metav1.Condition{
			Type:               conditionContested,
			Status:             metav1.ConditionTrue,
			Reason:             "AnotherWriter",
			ObservedGeneration: generation,
			Message:            "Another writer keeps changing what this manifest sets; repairs are spaced out",
		}, now)
	} else {
		meta.RemoveStatusCondition(&mc.Conditions, conditionContested)
	}

	available := metav1.Condition{Type: workv1.ManifestAvailable, ObservedGeneration: generation}
	switch {
	case !v.mapped || v.meta.Resource == "" || v.meta.Name == "":
		available.Status, available.Reason, available.Message = metav1.ConditionUnknown, "IncompleteResourceMeta",
			"Resource meta is incomplete"
	case v.live == nil:
		why := v.readErr
		if why == "" {
			why = "it has not been read yet"
		}
		available.Status, available.Reason, available.Message = metav1.ConditionUnknown, "FetchingResourceFailed",
			"Failed to fetch resource: "+why
	case !v.live.exists:
		available.Status, available.Reason, available.Message = metav1.ConditionFalse, "ResourceNotAvailable",
			"Resource is not available"
	default:
		available.Status, available.Reason, available.Message = metav1.ConditionTrue, "ResourceAvailable",
			"Resource is available"
	}
	setCondition(&mc.Conditions, available, now)
	if available.Status != metav1.ConditionTrue {
		return mc // the last feedback values stay
	}

	synced := metav1.Condition{Type: conditionFeedback, Status: metav1.ConditionTrue, Reason: reasonNoFeedback}
	switch {
	case v.hasRules && v.found.Err != "":
		synced.Status, synced.Reason = metav1.ConditionFalse, reasonFeedbackFailed
		synced.Message = "Sync status feedback failed with error " + v.found.Err
	case v.hasRules:
		synced.Reason = reasonFeedback
	}
	synced.ObservedGeneration = generation
	if !equality.Semantic.DeepEqual(mc.StatusFeedbacks.Values, v.found.Values) {
		meta.RemoveStatusCondition(&mc.Conditions, conditionFeedback)
	}
	setCondition(&mc.Conditions, synced, now)
	mc.StatusFeedbacks.Values = v.found.Values

	for _, rc := range v.found.Conditions {
		setCondition(&mc.Conditions, metav1.Condition{
			Type: rc.Type, Status: rc.Status, Reason: rc.Reason, Message: rc.Message, ObservedGeneration: generation,
		}, now)
	}
	mc.Conditions = pruneRuleConditions(mc.Conditions, generation)
	return mc
}

// workConditions returns the conditions of a work from those of its manifests.
func workConditions(manifests []workv1.ManifestCondition, generation int64) []metav1.Condition {
	applied := metav1.Condition{
		Type: workv1.WorkApplied, Status: metav1.ConditionTrue,
		Reason: "AppliedManifestWorkComplete", Message: "Apply manifest work complete", ObservedGeneration: generation,
	}
	var available, unavailable, unknown int
	for _, m := range manifests {
		if !meta.IsStatusConditionTrue(m.Conditions, workv1.ManifestApplied) {
			applied.Status, applied.Reason, applied.Message = metav1.ConditionFalse, "AppliedManifestWorkFailed",
				"Failed to apply manifest work"
		}
		switch cond := meta.FindStatusCondition(m.Conditions, workv1.ManifestAvailable); {
		case cond == nil:
		case cond.Status == metav1.ConditionTrue:
			available++
		case cond.Status == metav1.ConditionFalse:
			unavailable++
		default:
			unknown++
		}
	}
	avail := metav1.Condition{Type: workv1.WorkAvailable, Status: metav1.ConditionUnknown,
		Reason: "ResourcesStatusUnknown", ObservedGeneration: generation}
	switch {
	case unavailable > 0:
		avail.Status, avail.Reason = metav1.ConditionFalse, "ResourcesNotAvailable"
		avail.Message = fmt.Sprintf("%d of %d resources are not available", unavailable, len(manifests))
	case unknown > 0:
		avail.Message = fmt.Sprintf("%d of %d resources have unknown status", unknown, len(manifests))
	case available == 0:
		avail.Message = "cannot get any available resource " // the contract has this blank
	default:
		avail.Status, avail.Reason, avail.Message = metav1.ConditionTrue, "ResourcesAvailable",
			"All resources are available"
	}
	if len(manifests) == 0 {
		return []metav1.Condition{avail}
	}
	return append([]metav1.Condition{applied, avail}, aggregateRuleConditions(manifests, generation)...)
}

// deletedStatus is the final status of a deleted work.
func deletedStatus(consumer work.Consumer, generation int64, now time.Time) workv1.ManifestWorkStatus {
	return workv1.ManifestWorkStatus{Conditions: []metav1.Condition{
		{
			Type:               work.ConditionDeleted,
			Status:             metav1.ConditionTrue,
			Reason:             work.ReasonDeleted,
			ObservedGeneration: generation,
			Message:            fmt.Sprintf(work.MessageDeletedFormat, consumer),
			LastTransitionTime: metav1.NewTime(
				now.Truncate(time.Second)),
		},
	}}
}

// setCondition is meta.SetStatusCondition with a given time: the transition time
// changes only with the status.
func setCondition(conditions *[]metav1.Condition, cond metav1.Condition, now time.Time) {
	cond.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	if old := meta.FindStatusCondition(*conditions, cond.Type); old != nil && old.Status == cond.Status {
		cond.LastTransitionTime = old.LastTransitionTime
	}
	for i := range *conditions {
		if (*conditions)[i].Type == cond.Type {
			(*conditions)[i] = cond
			return
		}
	}
	*conditions = append(*conditions, cond)
}

// withoutFeedback returns a status that is too large for the broker without its
// feedback values; why is the broker's error. Each manifest that had values gets a
// condition with the reason. The sender keeps the hash of the whole status, so that a
// later comparison of hashes finds no difference.
func withoutFeedback(status work.Status, why error) work.Status {
	small := work.Status{Conditions: status.Conditions, ResourceStatus: slices.Clone(status.ResourceStatus)}
	for i := range small.ResourceStatus {
		m := &small.ResourceStatus[i]
		if len(m.StatusFeedbacks.Values) == 0 {
			continue
		}
		m.StatusFeedbacks = workv1.StatusFeedbackResult{}
		m.Conditions = slices.Clone(m.Conditions)
		meta.SetStatusCondition(&m.Conditions, metav1.Condition{
			Type: conditionFeedback, Status: metav1.ConditionFalse, Reason: reasonFeedbackFailed,
			Message: "Sync status feedback failed with error the status is too large for the message broker: " +
				why.Error(),
		})
	}
	return small
}
