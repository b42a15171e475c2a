package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"atoll.dev/envelope"
)

// The two sides of a move agree through the store which of them has the plane when the source withdraws its order. Each
// first stores its own word below move-ID/, and then looks for the other side's:
//
//	claimed      the target has the data, and takes the plane unless the move is withdrawn
//	withdrawn    the source wants the plane back
//	declined     the target has seen withdrawn, and never takes the plane
//
// So never both have it. Of these objects none is removed before the backups of the plane are. They are sealed under
// their names, as the lists of owners are: who can only write the store speaks for no side (decision 152).
type word string

const (
	claimed   word = "claimed"
	withdrawn word = "withdrawn"
	declined  word = "declined"
)

// ErrWithdrawn is the error of a move that the source has withdrawn: the target never gets the plane.
var ErrWithdrawn = errors.New("the move was withdrawn; delete the HostedCluster here")

// ErrClaimed is the error of a withdrawal while the target may take the plane, or decline it: ask again.
var ErrClaimed = errors.New("the target of the move has claimed the plane, and has not answered the withdrawal yet")

// hasSaid reports whether a side of a move has stored a word. An object that no machine of the region has sealed is an
// error, and neither a word nor its absence.
func (r *Records) hasSaid(ctx context.Context, p Plane, move string, w word) (bool, error) {
	name := handoverPrefix(p, move) + string(w)
	content, err := r.store.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	plain, err := r.opener.Open(ctx, name, content)
	if err != nil {
		return false, fmt.Errorf("what the sides of a move have agreed: %w; restore the object's version of before", err)
	}
	var said word
	if err := json.Unmarshal(plain, &said); err != nil || said != w {
		return false, fmt.Errorf("%s: %w: it is another word", name, ErrCorrupt)
	}
	return true, nil
}

func (r *Records) say(ctx context.Context, p Plane, move string, w word) error {
	key, err := envelope.NewDataKey(ctx, r.kms)
	if err != nil {
		return err
	}
	return putSealed(ctx, r.store, handoverPrefix(p, move)+string(w), key, w)
}

// hasTaken reports whether an owner has taken a plane, which no withdrawal undoes.
func (r *Records) hasTaken(ctx context.Context, p Plane, o Owner) (bool, error) {
	have, err := r.owners(ctx, p)
	return o != "" && have.isSealed && have.last() == o && have.Taken == o, err
}

// DeclineWithdrawn ends the move of a target, whose owner is o, when the source has withdrawn it: the error is
// ErrWithdrawn then, and stays so: the target never takes the plane. A target that has taken the plane before gets nil,
// and so does one whose move is not withdrawn.
func (r *Records) DeclineWithdrawn(ctx context.Context, p Plane, move string, o Owner) error {
	isWithdrawn, err := r.hasSaid(ctx, p, move, withdrawn)
	if err != nil || !isWithdrawn {
		return err
	}
	if isTaken, err := r.hasTaken(ctx, p, o); err != nil || isTaken {
		return err
	}
	if err := r.say(ctx, p, move, declined); err != nil {
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
	if err := r.say(ctx, p, move, claimed); err != nil {
		return err
	}
	return r.DeclineWithdrawn(ctx, p, move, o)
}

// WithdrawHandover takes a plane back to the source of a move. It has four outcomes:
//
//  1. nil: the target never gets the plane, and the source may run it again.
//  2. ErrSuperseded: another owner has the plane. That stays so.
//  3. ErrClaimed: the target is about to take the plane, or to decline it: the caller repeats.
//  4. Another error: the store does not answer, or an object is not to be believed; the caller repeats.
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
	if err := r.say(ctx, p, move, withdrawn); err != nil {
		return err
	}
	isClaimed, err := r.hasSaid(ctx, p, move, claimed)
	if err != nil || !isClaimed {
		return err
	}
	isDeclined, err := r.hasSaid(ctx, p, move, declined)
	if err == nil && !isDeclined {
		err = fmt.Errorf("plane %s: %w", p, ErrClaimed)
	}
	return err
}
