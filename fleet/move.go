package fleet

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// A move brings a cluster's control plane to another management cluster (decision 168). Until the plane has arrived,
// the placement reserves room on both.

// moveState is a placement's last move.
type moveState struct {
	ID     string                      `json:"id"`
	Phase  api.MovePhase               `json:"phase"`
	From   cluster.ManagementCluster   `json:"from"`
	To     cluster.ManagementCluster   `json:"to"`
	ToID   cluster.ManagementClusterID `json:"to_id"`
	FromID cluster.ManagementClusterID `json:"from_id"`
	// ReservedOn is the management cluster without the placement while the move reserves room there, too: the target,
	// or a lost source. "": none.
	ReservedOn  cluster.ManagementClusterID `json:"reserved_on,omitempty"`
	StartedTime time.Time                   `json:"started_time"`
	ChangedTime time.Time                   `json:"changed_time"` // when the phase began
	Message     string                      `json:"message,omitempty"`
	// IsRecovery: the source is lost, and the target makes the plane from its backup.
	IsRecovery bool `json:"is_recovery,omitempty"`
}

// isOver reports whether the move has ended.
func (m *moveState) isOver() bool {
	return m == nil || m.Phase == api.Moved || m.Phase == api.Canceled
}

// Orders of the two sides of a move, as hosting reads them.
const (
	roleLeaves   = "leaves"
	roleArrives  = "arrives"
	roleRecovers = "recovers"
)

// wire returns the move as services of the region read it, with what the adapter of HostedClusters orders on each
// side.
func (m *moveState) wire() *api.Move {
	w := &api.Move{ID: m.ID, From: string(m.From), To: string(m.To), Phase: m.Phase, StartedTime: m.StartedTime,
		ChangedTime: m.ChangedTime, Message: m.Message, At: string(m.From), Other: string(m.To), OtherRole: roleArrives}
	switch m.Phase {
	case api.Moving, api.Canceling:
		w.Role = roleLeaves
	case api.Forwarding, api.Ending:
		w.Role = roleArrives
		fallthrough
	case api.Moved:
		w.At, w.Other, w.OtherRole = w.To, w.From, roleLeaves
	}
	if m.IsRecovery { // the source keeps its objects until the target has the plane; then they are deleted
		w.At, w.Other, w.Role, w.OtherRole = w.To, w.From, roleRecovers, ""
	}
	if m.isOver() {
		w.Other = ""
	}
	return w
}

// begin returns the placement with a move to a target, on which the caller reserves the room.
func (p placement) begin(id string, to ManagementCluster, now time.Time) placement {
	p.Move = &moveState{ID: id, Phase: api.Moving, From: p.ManagementCluster, FromID: p.ManagementClusterID, To: to.Name,
		ToID: to.ID, ReservedOn: to.ID, StartedTime: now, ChangedTime: now}
	return p
}

// beginRecovery returns the placement with the recovery of a plane whose management cluster is lost. The caller
// reserves the room on the target. The room on the source stays reserved until the target has the plane: the source
// may come back and run it before.
func (p placement) beginRecovery(id string, to ManagementCluster, now time.Time) placement {
	p = p.begin(id, to, now)
	p.Move.Phase, p.Move.IsRecovery, p.Move.ReservedOn = api.Recovering, true, p.Move.FromID
	p.ManagementCluster, p.ManagementClusterID = to.Name, to.ID
	return p
}

// advance returns the placement after a step of its move other than Start and Recover, and the management cluster
// whose room the step frees, "" for none. A step that the move has made before, and a report on another move, change
// nothing. The error has status 409 for an operator's step that is not possible.
func (p placement) advance(o api.MoveOrder, now time.Time) (next placement, frees cluster.ManagementClusterID,
	err error) {
	isReport := o.Step == api.Arrived || o.Step == api.Stayed || o.Step == api.Removed
	if p.Move == nil || o.ID != "" && o.ID != p.Move.ID {
		if isReport {
			return p, "", nil
		}
		return p, "", rest.Errorf(http.StatusConflict, codeState, "Cluster %s has no move %s", p.ClusterID,
			rest.Shorten(o.ID, 63))
	}
	phase, m := p.Move.Phase, *p.Move
	switch o.Step {
	case api.Arrived:
		switch phase {
		case api.Moving, api.Canceling:
			p.ManagementCluster, p.ManagementClusterID = m.To, m.ToID
			m.Phase, m.ReservedOn, frees = api.Forwarding, "", m.FromID
		case api.Recovering: // the backup has another owner now: the source never runs the plane again
			m.Phase, m.ReservedOn, frees = api.Ending, "", m.FromID
		default:
			return p, "", nil
		}
	case api.Stayed:
		if phase != api.Moving && phase != api.Canceling {
			return p, "", nil
		}
		m.Phase, m.Message = api.Removing, o.Message
	case api.Removed:
		switch phase {
		case api.Removing:
			m.Phase, m.ReservedOn, frees = api.Canceled, "", m.ToID
		case api.Ending:
			m.Phase = api.Moved
		default:
			return p, "", nil
		}
	case api.Cancel:
		switch phase {
		case api.Moving:
			m.Phase = api.Canceling
		case api.Canceling, api.Removing, api.Canceled:
			return p, "", nil
		case api.Recovering:
			return p, "", rest.Errorf(http.StatusConflict, codeState,
				"Cluster %s is recovered on %s; a recovery cannot be canceled", p.ClusterID, m.To)
		default:
			return p, "", rest.Errorf(http.StatusConflict, codeState,
				"Cluster %s has moved to %s; order a move back", p.ClusterID, m.To)
		}
	case api.Finish:
		switch phase {
		case api.Forwarding:
			m.Phase = api.Ending
		case api.Ending, api.Moved:
			return p, "", nil
		default:
			return p, "", rest.Errorf(http.StatusConflict, codeState,
				"the move of Cluster %s is %s; only one that forwards connections can be finished", p.ClusterID, phase)
		}
	}
	m.ChangedTime, p.Move = now, &m
	return p, frees, nil
}

// moveID is the form of a move's id; hosting accepts it.
var moveID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$`)

func (h *handlers) move(w http.ResponseWriter, r *http.Request) error {
	ctx, id := r.Context(), cluster.ID(r.PathValue("id"))
	if err := h.requireRegionCaller(ctx); err != nil {
		return err
	}
	var o api.MoveOrder
	if err := readOrder(r, &o); err != nil {
		return err
	}
	switch {
	case !o.Step.Valid():
		return rest.Errorf(http.StatusBadRequest, codeInvalid, "the step %q of a move does not exist",
			rest.Shorten(string(o.Step), 40))
	case o.ID != "" && !moveID.MatchString(o.ID):
		return rest.Errorf(http.StatusBadRequest, codeInvalid,
			"the id of a move has at most 50 lower-case letters, digits and hyphens")
	case len(o.Message) > maxReason:
		o.Message = rest.Shorten(o.Message, maxReason)
	}
	var d store.Document
	var err error
	if o.Step == api.Start || o.Step == api.Recover {
		d, _, err = h.f.startMove(ctx, id, o)
	} else {
		d, err = h.f.advanceMove(ctx, id, o)
	}
	if err != nil {
		return err
	}
	return rest.WriteVersioned(w, r, http.StatusOK, d.Version, d.Wire)
}

// startMove reserves room for a placed cluster on another management cluster and starts its move or its recovery
// there, in one transaction. It chooses again when others took the room. The same order returns the placement
// unchanged, and began is false.
func (f *Fleet) startMove(ctx context.Context, id cluster.ID, o api.MoveOrder) (d store.Document, began bool,
	err error) {
	if o.ID == "" {
		o.ID = uuid.NewString()
	}
	for range placeAttempts {
		d, began, err = f.startMoveOnce(ctx, id, o)
		if !errors.Is(err, errChoiceStale) {
			return d, began, err
		}
	}
	e := rest.Errorf(http.StatusServiceUnavailable, codeState,
		"Cluster %s was not moved: others took the room %d times; try again", id, placeAttempts)
	e.RetryAfter = time.Second
	return d, false, e
}

// startMoveOnce is one attempt of startMove. The error is errChoiceStale when the target has no room any more, or when
// the placement's management cluster or size has changed since the choice.
func (f *Fleet) startMoveOnce(ctx context.Context, id cluster.ID, o api.MoveOrder) (d store.Document, began bool,
	err error) {
	owner, err := f.store.Get(ctx, kindCluster, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return d, false, noCluster(id)
	} else if err != nil {
		return d, false, err
	}
	d, p, err := f.readPlacement(ctx, id)
	if err != nil {
		return d, false, err
	}
	isSame, err := p.checkMove(owner, o)
	if isSame || err != nil {
		return d, false, err
	}
	target, demand, err := f.chooseTarget(ctx, owner, p, o)
	if err != nil {
		return d, false, err
	}
	end, err := f.store.WaitTurn(ctx, kindMC, string(target.ID))
	if err != nil {
		return d, false, err
	}
	defer end()
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		owner, err := tx.GetForUpdate(ctx, kindCluster, string(id))
		if err := placeable(id, owner, err); err != nil {
			return err
		}
		if d, err = tx.GetForUpdate(ctx, KindPlacement, placementID(id)); err != nil {
			return err
		}
		fresh, err := placementOf(d)
		if err != nil {
			return err
		}
		isSame, err := fresh.checkMove(owner, o)
		if began = !isSame; isSame || err != nil {
			return err
		}
		if fresh.ManagementClusterID != p.ManagementClusterID || fresh.Size != p.Size {
			return errChoiceStale
		}
		if o.Step == api.Recover {
			if isBack, err := f.isConnected(ctx, tx, p.ManagementClusterID); isBack || err != nil {
				return cmp.Or(err, errChoiceStale)
			}
		}
		now := time.Now().UTC().Truncate(time.Microsecond)
		if err := f.reserve(ctx, tx, target.ID, demand, now); err != nil {
			return err
		}
		next := fresh.begin(o.ID, target, now)
		if o.Step == api.Recover {
			next = fresh.beginRecovery(o.ID, target, now)
		}
		d, err = f.writeMove(ctx, tx, next, o.Step, now)
		return err
	})
	d, err = f.applyPlacement(d, err)
	return d, began && err == nil, err
}

// isConnected reports whether the agent of a management cluster is connected; false when there is no such management
// cluster.
func (f *Fleet) isConnected(ctx context.Context, tx *store.Tx, id cluster.ManagementClusterID) (bool, error) {
	d, err := tx.Get(ctx, kindMC, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return f.host(d, time.Now()).isConnected(), nil
}

// readPlacement reads the placement of a cluster; the error has status 409 when there is none.
func (f *Fleet) readPlacement(ctx context.Context, id cluster.ID) (d store.Document, p placement, err error) {
	d, err = f.store.Get(ctx, KindPlacement, placementID(id))
	if errors.Is(err, store.ErrNotFound) {
		return d, p, rest.Errorf(http.StatusConflict, codeState, "Cluster %s has no placement", id)
	}
	if err != nil {
		return d, p, err
	}
	p, err = placementOf(d)
	return d, p, err
}

// checkMove returns an error when the cluster cannot move now. isSame is true when the cluster's last move already is
// the ordered one: the caller then changes nothing.
func (p placement) checkMove(owner store.Document, o api.MoveOrder) (isSame bool, err error) {
	refuse := func(format string, args ...any) (bool, error) {
		return false, rest.Errorf(http.StatusConflict, codeState, format, args...)
	}
	switch m := p.Move; {
	case m != nil && m.ID == o.ID:
		if o.To != "" && o.To != string(m.To) {
			return refuse("the move %s of Cluster %s is one to %s", m.ID, p.ClusterID, m.To)
		}
		return true, nil
	case owner.DeletedAt != nil:
		return refuse("Cluster %s is being deleted; it does not move any more", p.ClusterID)
	case p.State != api.Placed:
		return refuse("Cluster %s is %s; only a placed cluster moves", p.ClusterID, p.State)
	case !m.isOver():
		return refuse("the move %s of Cluster %s to %s is %s; cancel or finish it first", m.ID, p.ClusterID, m.To, m.Phase)
	case o.To == string(p.ManagementCluster):
		return refuse("Cluster %s is on %s already", p.ClusterID, o.To)
	}
	return false, nil
}

// chooseTarget chooses the management cluster to which a cluster moves: the one that the order names, or the one that a
// new placement would get, other than the source. The demand is what it must fit.
func (f *Fleet) chooseTarget(ctx context.Context, owner store.Document, p placement, o api.MoveOrder) (
	target ManagementCluster, demand Demand, err error) {
	if demand, err = f.demand(owner); err != nil {
		return target, demand, err
	}
	demand.Amounts = p.Demand.Amounts
	if o.To != "" {
		demand.Named = cluster.ManagementCluster(o.To)
	}
	hosts, err := f.readHosts(ctx)
	if err != nil {
		return target, demand, err
	}
	isSource := func(m ManagementCluster) bool { return m.ID == p.ManagementClusterID }
	others := slices.DeleteFunc(slices.Clone(hosts), isSource)
	for _, m := range hosts {
		switch isConnected := m.isConnected(); {
		case !isSource(m):
		case !isConnected && o.Step == api.Start:
			return target, demand, rest.Errorf(http.StatusConflict, codeState,
				"%s is not connected and cannot hand over the plane; recover it: atoll cluster move %s --recover", m.Name,
				p.ClusterID)
		case isConnected && o.Step == api.Recover:
			return target, demand, rest.Errorf(http.StatusConflict, codeState,
				"%s is connected and may run the plane; move Cluster %s without --recover, or stop the machine of %s first",
				m.Name, p.ClusterID, m.Name)
		}
	}
	chosen, explanation := Decide(demand, others)
	if chosen < 0 {
		return target, demand, rest.Errorf(http.StatusConflict, codeState, "Cluster %s cannot move: %s", p.ClusterID,
			operatorReason(demand, explanation))
	}
	return others[chosen], demand, nil
}

// advanceMove makes a step of a cluster's move.
func (f *Fleet) advanceMove(ctx context.Context, id cluster.ID, o api.MoveOrder) (d store.Document, err error) {
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		if d, err = tx.GetForUpdate(ctx, KindPlacement, placementID(id)); err != nil {
			return err
		}
		p, err := placementOf(d)
		if err != nil {
			return err
		}
		now := time.Now().UTC().Truncate(time.Microsecond)
		next, frees, err := p.advance(o, now)
		if err != nil || p.Move == next.Move {
			return err
		}
		if frees != "" {
			if err := free(ctx, tx, frees, p.Demand.Amounts); err != nil {
				return err
			}
		}
		d, err = f.writeMove(ctx, tx, next, o.Step, now)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return d, rest.Errorf(http.StatusNotFound, codeNotFound, "Cluster %s has no placement", id)
	}
	return f.applyPlacement(d, err)
}
