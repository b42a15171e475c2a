package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"atoll.dev/envelope"
)

// moveDecision is a decision of one side of a move, stored as an object below move-ID/. When the source withdraws its
// order, both sides agree by these objects which of them runs the plane: each first stores its own decision, and then
// reads the other side's:
//
//	claimed      the target has the data, and takes the plane unless the move is withdrawn
//	withdrawn    the source wants the plane back
//	declined     the target has read withdrawn, and never takes the plane
//
// So both sides never run the plane at once. The objects stay until the backups of the plane are removed. They are
// sealed under their names, as the lists of owners are: an attacker who can only write the store cannot make one
// (decision 152).
type moveDecision string

const (
	claimed   moveDecision = "claimed"
	withdrawn moveDecision = "withdrawn"
	declined  moveDecision = "declined"
)

// ErrWithdrawn is the error of a move that the source has withdrawn: the target never gets the plane.
var ErrWithdrawn = errors.New("the move was withdrawn; delete the HostedCluster here")

// ErrClaimed is the error of a withdrawal while the target may still take the plane or decline it: the caller repeats
// WithdrawHandover.
var ErrClaimed = errors.New("the target of the move has claimed the plane, and has not answered the withdrawal yet")

// hasDecided reports whether a side of a move has stored a decision. An object that no machine of the region has sealed
// is an error: it proves neither that the decision was stored nor that it was not.
func (r *Records) hasDecided(ctx context.Context, p Plane, move string, d moveDecision) (bool, error) {
	name := handoverPrefix(p, move) + string(d)
	content, err := r.store.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	plain, err := r.opener.Open(ctx, name, content)
	if err != nil {
		return false, fmt.Errorf("a decision of a move: %w; restore the earlier version of the object", err)
	}
	var stored moveDecision
	if err := json.Unmarshal(plain, &stored); err != nil || stored != d {
		return false, fmt.Errorf("%s: %w: its content is not %q", name, ErrCorrupt, d)
	}
	return true, nil
}

// storeDecision stores a decision of one side of a move. It may be repeated.
func (r *Records) storeDecision(ctx context.Context, p Plane, move string, d moveDecision) error {
	key, err := envelope.NewDataKey(ctx, r.kms)
	if err != nil {
		return err
	}
	return putSealed(ctx, r.store, handoverPrefix(p, move)+string(d), key, d)
}

// hasTaken reports whether an owner has taken a plane. A withdrawal does not undo that.
func (r *Records) hasTaken(ctx context.Context, p Plane, o Owner) (bool, error) {
	have, err := r.owners(ctx, p)
	return o != "" && have.isSealed && have.last() == o && have.Taken == o, err
}

// DeclineWithdrawn ends a move for its target, whose owner is o, when the source has withdrawn the move. The error is
// ErrWithdrawn then, also of each later call: the target never takes the plane. It is nil when the move is not
// withdrawn, and when the target has taken the plane before.
func (r *Records) DeclineWithdrawn(ctx context.Context, p Plane, move string, o Owner) error {
	isWithdrawn, err := r.hasDecided(ctx, p, move, withdrawn)
	if err != nil || !isWithdrawn {
		return err
	}
	if isTaken, err := r.hasTaken(ctx, p, o); err != nil || isTaken {
		return err
	}
	if err := r.storeDecision(ctx, p, move, declined); err != nil {
		return err
	}
	return fmt.Errorf("plane %s: %w", p, ErrWithdrawn)
}

// ClaimHandover lets the target of a move take the plane. The target calls it with its owner when it has all data, and
// calls Take only after nil. It may be repeated, and has the outcomes of DeclineWithdrawn.
func (r *Records) ClaimHandover(ctx context.Context, p Plane, move string, o Owner) error {
	if isTaken, err := r.hasTaken(ctx, p, o); err != nil || isTaken {
		return err
	}
	if err := r.storeDecision(ctx, p, move, claimed); err != nil {
		return err
	}
	return r.DeclineWithdrawn(ctx, p, move, o)
}

// WithdrawHandover takes a plane back to the source of a move. It has four outcomes:
//
//  1. nil: the target never gets the plane, and the source may run it again.
//  2. ErrSuperseded: another owner has the plane, for ever.
//  3. ErrClaimed: the target is about to take the plane, or to decline it; the caller repeats.
//  4. Another error: the store does not answer, or an object is damaged or not sealed; the caller repeats.
func (r *Records) WithdrawHandover(ctx context.Context, p Plane, move string, source Identity) error {
	have, err := r.owners(ctx, p)
	if err != nil {
		return err
	}
	if err := have.check(source, confirms); err != nil {
		return fmt.Errorf("%s: %w", ownersPrefix+p.String(), err)
	}
	if last := have.last(); last != "" && last != source.Owner {
		return fmt.Errorf("plane %s: %w", p, ErrSuperseded)
	}
	if err := r.storeDecision(ctx, p, move, withdrawn); err != nil {
		return err
	}
	isClaimed, err := r.hasDecided(ctx, p, move, claimed)
	if err != nil || !isClaimed {
		return err
	}
	isDeclined, err := r.hasDecided(ctx, p, move, declined)
	if err == nil && !isDeclined {
		err = fmt.Errorf("plane %s: %w", p, ErrClaimed)
	}
	return err
}
