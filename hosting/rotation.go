package hosting

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/api/rotation"
	"atoll.dev/hosting/controlplane"
)

// rotationRetry is the time to the next look at a plane that encrypts its Secrets with a new key.
const rotationRetry = time.Second

// orderedRotation is the last order of a HostedCluster's annotation for one kind of key.
type orderedRotation struct {
	Key     rotation.Key
	Order   rotation.Order
	Invalid string // why the order cannot be executed; "" for one that can
	// Shown is the phase of this order's rotation in the status; "" before the first.
	Shown rotation.Phase
	// CanComplete: the status shows Prepared or Completing, and nothing needs the old key any more: the new key
	// encrypts all Secrets, no node has a certificate of the old CA.
	CanComplete bool
	Waits       string // why the plane must not lose the old CA yet; "" for no reason
}

// parseRotations returns the orders of the annotation, sorted as rotation.Keys; nil when its text is no JSON. It
// ignores unknown kinds of keys.
func parseRotations(hc *hypershift.HostedCluster) (list []orderedRotation) {
	text := hc.Annotations[hypershift.RotationsAnnotation]
	if text == "" {
		return nil
	}
	var orders map[rotation.Key]rotation.Order
	err := json.Unmarshal([]byte(text), &orders)
	for _, k := range rotation.Keys {
		order, isOrdered := orders[k]
		r := orderedRotation{Key: k, Order: order}
		switch {
		case err != nil: // nobody knows which kinds the annotation orders
			return nil
		case !isOrdered:
			continue
		case !orderID.MatchString(order.ID):
			r.Invalid = fmt.Sprintf("the annotation %s: the id %q is not possible", hypershift.RotationsAnnotation, order.ID)
		case order.Step != rotation.Prepare && order.Step != rotation.Complete:
			r.Invalid = fmt.Sprintf("the annotation %s: the step %q is neither prepare nor complete",
				hypershift.RotationsAnnotation, order.Step)
		}
		list = append(list, r)
	}
	return list
}

// ordersWithPhases returns the orders of a cluster with the phases that its status shows.
func ordersWithPhases(c *hostedCluster, hc *hypershift.HostedCluster) []orderedRotation {
	status := hc.Status.Rotations
	if c.status != nil {
		status = c.status.Rotations
	}
	list := parseRotations(hc)
	for i, r := range list {
		if s, isKnown := status[string(r.Key)]; isKnown && s.ID == r.Order.ID {
			list[i].Shown = s.Phase
		}
	}
	return list
}

// findRotations returns the orders of a cluster with what is known about them.
func (h *Hosting) findRotations(c *hostedCluster, hc *hypershift.HostedCluster) ([]orderedRotation, error) {
	list := ordersWithPhases(c, hc)
	for i := range list {
		r := &list[i]
		r.CanComplete = r.Shown == rotation.Prepared || r.Shown == rotation.Completing
		if r.Key == rotation.CAKey {
			r.Waits = c.caWaits
			r.CanComplete = r.CanComplete && r.Waits == ""
		}
		if r.Key == rotation.EncryptionKey && r.CanComplete {
			by, err := h.o.Planes.EncryptedBy(c.id)
			if err != nil {
				return nil, err
			}
			r.CanComplete = by == r.Order.ID // restored data may have Secrets that an earlier key encrypts
		}
	}
	return list, nil
}

// atNextStart returns the rotation that the plane should have at its next start: last, that of its last start, when the
// order changes nothing or is refused. refused is why the order cannot be executed, "" otherwise.
func (r orderedRotation) atNextStart(last rotation.Order) (next rotation.Order, refused string) {
	isLast := last.ID == r.Order.ID
	switch {
	case r.Invalid != "":
		return last, r.Invalid
	case r.Order.Step == rotation.Prepare && !isLast:
		return rotation.Order{ID: r.Order.ID, Step: rotation.Prepare}, ""
	case r.Order.Step == rotation.Complete && !isLast:
		return last, "this rotation was not prepared on this management cluster; prepare another one"
	case r.Order.Step == rotation.Complete && r.CanComplete:
		return rotation.Order{ID: r.Order.ID, Step: rotation.Complete}, ""
	}
	return last, ""
}

// hasUnreportedStep reports whether the plane has started with a step of the order, and the status does not show the
// end of that step.
func (r orderedRotation) hasUnreportedStep(last rotation.Order) bool {
	if last.ID != r.Order.ID {
		return false
	}
	if last.Step == rotation.Complete {
		return r.Shown != rotation.Completed
	}
	return r.Shown == "" || r.Shown == rotation.Preparing
}

// rotationsAtNextStart returns the rotations with which the plane should start.
func rotationsAtNextStart(list []orderedRotation, last controlplane.Rotations) controlplane.Rotations {
	next := last
	for _, r := range list {
		order, _ := r.atNextStart(last.Of(r.Key))
		next = next.With(r.Key, order)
	}
	return next
}

// haveUnreportedStep reports whether at least one of the orders has an unreported step.
func haveUnreportedStep(list []orderedRotation, last controlplane.Rotations) bool {
	for _, r := range list {
		if r.hasUnreportedStep(last.Of(r.Key)) {
			return true
		}
	}
	return false
}

// finishRotationSteps renews the stored tokens of a Ready plane after its signing key was replaced, checks that the new
// key encrypts all Secrets, and records in the report which steps have ended. again is the time to the next call while
// a plane encrypts its Secrets; 0 otherwise.
func (h *Hosting) finishRotationSteps(ctx context.Context, c *hostedCluster, r *report) (again time.Duration,
	err error) {
	last := r.Plane.LastStart.Rotations
	r.Rotated = map[rotation.Key]bool{}
	if r.Plane.State != controlplane.Ready {
		return 0, nil
	}
	for _, order := range r.Rotations {
		of := last.Of(order.Key)
		if !order.hasUnreportedStep(of) {
			continue
		}
		isComplete := of.Step == rotation.Complete
		switch {
		case order.Key == rotation.ServiceAccountKey && isComplete: // the plane refuses the stored ones now
			if err := h.renewTokens(ctx, c); err != nil {
				return 0, fmt.Errorf("tokens of service accounts in Secrets: %w", err)
			}
		case order.Key == rotation.CAKey && isComplete:
			if err := h.dropEarlierCA(ctx, c); err != nil {
				return 0, fmt.Errorf("the CAs that extension API servers trust: %w", err)
			}
		case order.Key == rotation.EncryptionKey && !isComplete:
			by, err := h.o.Planes.EncryptedBy(c.id)
			if err != nil {
				return 0, err
			}
			if by != of.ID {
				again = rotationRetry
				continue
			}
		}
		r.Rotated[order.Key] = true
	}
	return again, nil
}

// renewTokens replaces the tokens of service accounts that are stored in Secrets and signed with an earlier key.
func (h *Hosting) renewTokens(ctx context.Context, c *hostedCluster) error {
	admin, err := h.o.Planes.Client(c.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, agreeLimit)
	defer cancel()
	return renewStoredTokens(ctx, admin)
}

// rotationStatuses returns the new status of each ordered rotation, and keeps the status of other kinds of keys.
func rotationStatuses(before map[string]hypershift.RotationStatus, r report,
	now time.Time) map[string]hypershift.RotationStatus {
	if len(r.Rotations) == 0 {
		return before
	}
	after := maps.Clone(before)
	if after == nil {
		after = map[string]hypershift.RotationStatus{}
	}
	for _, order := range r.Rotations {
		after[string(order.Key)] = order.status(before[string(order.Key)], r, now)
	}
	return after
}

// status returns the new status of one rotation.
func (r orderedRotation) status(before hypershift.RotationStatus, of report, now time.Time) hypershift.RotationStatus {
	at := metav1.NewTime(now.Truncate(time.Second))
	s := hypershift.RotationStatus{ID: r.Order.ID}
	if before.ID == r.Order.ID {
		s = before
	}
	last := of.Plane.LastStart.Rotations.Of(r.Key)
	_, refused := r.atNextStart(last)
	reach := func(phase rotation.Phase, since **metav1.Time, message string) {
		s.Phase, s.Message = phase, message
		if *since == nil {
			*since = &at
		}
	}
	isCompleted := s.Phase == rotation.Completed
	switch {
	case isCompleted:
	case refused != "":
		s.Phase, s.Message = rotation.Failed, refused
	case last.ID == r.Order.ID && last.Step == rotation.Complete && of.Rotated[r.Key]:
		reach(rotation.Completed, &s.CompletedAt, "")
	case r.Order.Step == rotation.Complete:
		reach(rotation.Completing, &s.CompletingAt, r.waitMessage(of, last))
	case last.ID == r.Order.ID && of.Rotated[r.Key]:
		reach(rotation.Prepared, &s.PreparedAt, r.advice())
	case s.Phase == rotation.Prepared:
	default:
		reach(rotation.Preparing, &s.PreparingAt, r.waitMessage(of, last))
	}
	return s
}

// waitMessage returns what a step of the rotation waits for, as text; "" for nothing.
func (r orderedRotation) waitMessage(of report, last rotation.Order) string {
	isStarted := last.ID == r.Order.ID && last.Step == r.Order.Step
	switch {
	case of.Paused && !isStarted:
		return "spec.pausedUntil holds the rotation up"
	case isOpen(of.Upgrade) && !isStarted:
		return fmt.Sprintf("the upgrade to %s has the phase %s; the rotation waits until it is %s or %s", of.Upgrade.To,
			of.Upgrade.Phase, hypershift.UpgradeCompleted, hypershift.UpgradeRolledBack)
	case !of.Plane.LastStart.WasReady:
		return "the plane has not been ready yet"
	case r.Waits != "" && !isStarted:
		return r.Waits
	case last.ID == r.Order.ID && !r.CanComplete && r.Order.Step == rotation.Complete && !isStarted:
		return "the plane still encrypts Secrets with the new key"
	case !isStarted:
		return "the plane stops and starts with other keys"
	case of.Plane.State != controlplane.Ready:
		return "the plane starts with other keys"
	case r.Key == rotation.EncryptionKey && r.Order.Step == rotation.Prepare:
		return "the plane encrypts all Secrets with the new key; a webhook that refuses changes of Secrets delays this"
	case r.Key == rotation.ServiceAccountKey && r.Order.Step == rotation.Complete:
		return "tokens of service accounts in Secrets are made again"
	}
	return ""
}

// advice returns what to do between the two steps.
func (r orderedRotation) advice() string {
	switch r.Key {
	case rotation.EncryptionKey:
		return "all Secrets are encrypted with the new key; complete the rotation"
	case rotation.CAKey:
		return "the new CA signs; complete the rotation when people and programs have new kubeconfigs: the old ones end then"
	}
	return "tokens are signed with the new key; complete the rotation when pods and programs have new tokens: " +
		"kubelets renew those of pods within an hour"
}
