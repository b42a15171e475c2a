package hosting

import (
	"encoding/json"
	"fmt"
	"slices"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// move is the order of a HostedCluster's annotation to move its plane, and the state of the move.
type move struct {
	Order   hypershift.MoveOrder
	Invalid string               // why the order cannot be executed; "" for one that can
	Leaving controlplane.Leaving // of a plane that leaves
}

var moveRoles = []hypershift.MoveRole{hypershift.MoveLeaves, hypershift.MoveArrives, hypershift.MoveRecovers}

// parseMove parses the annotation of an order; nil: there is none.
func parseMove(hc *hypershift.HostedCluster) *move {
	text := hc.Annotations[hypershift.MoveAnnotation]
	if text == "" {
		return nil
	}
	m := &move{}
	if err := json.Unmarshal([]byte(text), &m.Order); err != nil {
		m.Invalid = fmt.Sprintf("the annotation %s cannot be read: %s", hypershift.MoveAnnotation, err)
	} else if !orderID.MatchString(m.Order.ID) {
		m.Invalid = fmt.Sprintf("the annotation %s: the id %q is not possible", hypershift.MoveAnnotation, m.Order.ID)
	} else if !slices.Contains(moveRoles, m.Order.Role) {
		m.Invalid = fmt.Sprintf("the annotation %s: the role %q is none of %v", hypershift.MoveAnnotation, m.Order.Role,
			moveRoles)
	}
	return m
}

func (m *move) leaves() bool {
	return m != nil && m.Invalid == "" && m.Order.Role == hypershift.MoveLeaves
}

func (m *move) arrives() bool {
	return m != nil && (m.Invalid != "" || m.Order.Role == hypershift.MoveArrives)
}

// recovers reports whether the plane needs the data of its backup: without it, it would begin empty.
func (m *move) recovers() bool {
	return m != nil && m.Invalid == "" && m.Order.Role == hypershift.MoveRecovers
}

// mustStop reports whether the plane must not run here: the other management cluster waits for it, or has it.
func (m *move) mustStop() bool {
	return m.leaves() && m.Leaving.State != controlplane.LeavingWaits && m.Leaving.State != controlplane.LeavingRefused
}

// hasLeft reports whether the other management cluster can have the plane's data.
func (m *move) hasLeft() bool { return m.leaves() && m.Leaving.State == controlplane.LeavingDone }

// findMove returns a cluster's order to move, with the state of a plane that leaves; nil: there is none. It calls
// Backups.Stopped when the plane's process has ended after hosting has decided to stop it. A plane that was never ready
// here has no data to move, and waits. A plane within an upgrade or a restore stops when that has ended.
func (h *Hosting) findMove(c *hostedCluster, hc *hypershift.HostedCluster, o controlplane.Observation) *move {
	m := parseMove(hc)
	if !m.leaves() {
		h.o.Backups.Stay(c.id)
		return m
	}
	if !o.LastStart.WasReady {
		m.Leaving = controlplane.Leaving{State: controlplane.LeavingWaits, Message: "the plane was never ready here"}
		return m
	}
	m.Leaving = h.o.Backups.Leave(c.id, m.Order.ID)
	status := hc.Status
	if c.status != nil {
		status = *c.status
	}
	why := reasonToStay(hc, status, o)
	if m.Leaving.State == controlplane.LeavingStops && why != "" && !h.o.Backups.IsSuperseded(c.id) { // no note yet
		m.Leaving = controlplane.Leaving{State: controlplane.LeavingWaits, Message: why}
		return m
	}
	h.mu.Lock()
	isStopped := c.stopping && !o.Running && o.State == controlplane.Down
	h.mu.Unlock()
	if m.mustStop() && isStopped {
		h.o.Backups.Stopped(c.id, departingStatus(status))
	}
	return m
}

// failure returns the reason why a plane that moves does not serve here.
func (m *move) failure() *controlplane.Failure {
	if m.hasLeft() {
		return &controlplane.Failure{Reason: controlplane.MovedAway,
			Message: "the plane has moved to another management cluster; this one never runs it again"}
	}
	return &controlplane.Failure{Reason: controlplane.FailureReason(cluster.ReasonMoving),
		Message: "the plane moves to another management cluster"}
}

// findArrival returns the order by which a plane gets the data that it had on another management cluster; nil: the
// order is complete, or the plane has run here before.
func (h *Hosting) findArrival(c *hostedCluster, hc *hypershift.HostedCluster, m *move,
	last controlplane.LastStart) *restore {
	id := controlplane.ArrivalOrder(m.Order.ID)
	r := &restore{Order: hypershift.RestoreOrder{ID: id}, IsRecovery: true, IsArrival: true, Invalid: m.Invalid}
	if last.Data == id {
		if !h.o.Backups.HasRemains(c.id, id) {
			return nil
		}
		r.IsExecuted, r.IsUnfinished = true, true
		return r
	}
	if last.Release != "" || wasCompleted(hc.Status) {
		return nil // it has run here before
	}
	if r.Invalid != "" {
		return r
	}
	release, refused := h.o.Releases.pick(hc.Spec.Release.Image, "")
	if refused != nil {
		return nil // the plane does not start either
	}
	r.Prepared = withReadableDeparture(h.o.Backups.Prepare(c.id,
		controlplane.RestoreOrder{ID: id, Source: c.id, Release: release}))
	return r
}

// decideMove computes the status of the last order.
func decideMove(before *hypershift.MoveStatus, r report) *hypershift.MoveStatus {
	m := r.Move
	if m == nil {
		isOpen := before != nil && before.Role == hypershift.MoveLeaves && before.Phase != hypershift.MoveFailed
		if !isOpen || r.Failure != nil { // the failure may be that the other side has the plane
			return before
		}
		return &hypershift.MoveStatus{ID: before.ID, Role: before.Role, Phase: hypershift.MoveWithdrawn}
	}
	s := hypershift.MoveStatus{ID: m.Order.ID, Role: m.Order.Role}
	isSame := before != nil && before.ID == s.ID && before.Role == s.Role
	switch {
	case isSame && (before.Phase == hypershift.MoveLeft || before.Phase == hypershift.MoveArrived):
		return before
	case m.Invalid != "":
		s.Phase, s.Message = hypershift.MoveFailed, m.Invalid
	case m.leaves():
		s.Message = m.Leaving.Message
		s.Phase = map[controlplane.LeavingState]hypershift.MovePhase{
			controlplane.LeavingWaits: hypershift.MoveWaiting, controlplane.LeavingStops: hypershift.MoveStopping,
			controlplane.LeavingStores: hypershift.MoveStoring, controlplane.LeavingDone: hypershift.MoveLeft,
			controlplane.LeavingRefused: hypershift.MoveFailed,
		}[m.Leaving.State]
	case r.Plane.LastStart.WasReady && !r.Order.isUnfinished():
		s.Phase = hypershift.MoveArrived
	case r.Order == nil || !r.Order.IsRecovery:
		s.Phase, s.Message = hypershift.MoveWaiting, "the plane cannot start here; the other conditions have the reason"
	case r.Order.Prepared.State == controlplane.PreparationFailed:
		s.Phase, s.Message = hypershift.MoveFailed, r.Order.Prepared.Message
	case r.Order.IsExecuted || r.Order.Prepared.State == controlplane.PreparationDone:
		s.Phase = hypershift.MoveArriving
	default:
		s.Phase, s.Message = hypershift.MoveWaiting, r.Order.Prepared.Message
	}
	return &s
}
