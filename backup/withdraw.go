package backup

import (
	"context"
	"errors"
	"fmt"
)

// The two sides of a move agree through the store which of them has the plane when the source withdraws its order. Each
// first stores its own object below move-ID/, and then looks for the other side's:
//
//	claimed      the target has the data, and takes the plane unless the move is withdrawn
//	withdrawn    the source wants the plane back
//	declined     the target has seen withdrawn, and never takes the plane
//
// So never both have it. Of these objects none is removed before the backups of the plane are.

// ErrWithdrawn is the error of a move that the source has withdrawn: the target never gets the plane.
var ErrWithdrawn = errors.New("the move was withdrawn; delete the HostedCluster here")

// ErrClaimed is the error of a withdrawal while the target may take the plane, or decline it: ask again.
var ErrClaimed = errors.New("the target of the move has claimed the plane, and has not answered the withdrawal yet")

// hasObject reports whether an object of a move is in the store.
func hasObject(ctx context.Context, store Store, p Plane, move, name string) (bool, error) {
	_, err := store.Get(ctx, handoverPrefix(p, move)+name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func putObject(ctx context.Context, store Store, p Plane, move, name string) error {
	return store.Put(ctx, handoverPrefix(p, move)+name, []byte(name+"\n"))
}

// IsWithdrawn reports whether the source has withdrawn a move.
func IsWithdrawn(ctx context.Context, store Store, p Plane, move string) (bool, error) {
	return hasObject(ctx, store, p, move, "withdrawn")
}

// ClaimHandover lets the target of a move take the plane. The target calls it with its owner when it has all data, and
// calls Take only after nil. ErrWithdrawn stays: the target never takes the plane. It may be repeated; a target that
// has taken the plane before gets nil.
func ClaimHandover(ctx context.Context, store Store, p Plane, move string, o Owner) error {
	have, err := readOwners(ctx, store, p)
	if err != nil || o != "" && have.last() == o && have.Taken == o {
		return err
	}
	if err := putObject(ctx, store, p, move, "claimed"); err != nil {
		return err
	}
	isWithdrawn, err := IsWithdrawn(ctx, store, p, move)
	if err != nil || !isWithdrawn {
		return err
	}
	if err := putObject(ctx, store, p, move, "declined"); err != nil {
		return err
	}
	return fmt.Errorf("plane %s: %w", p, ErrWithdrawn)
}

// WithdrawHandover takes a plane back to the source of a move, whose owner is o. It has four outcomes:
//
//  1. nil: the target never gets the plane, and the source may run it again.
//  2. ErrSuperseded: another owner has the plane. That stays so.
//  3. ErrClaimed: the target is about to take the plane, or to decline it: the caller repeats.
//  4. Another error: the store does not answer; the caller repeats.
func WithdrawHandover(ctx context.Context, store Store, p Plane, move string, o Owner) error {
	have, err := readOwners(ctx, store, p)
	if err != nil {
		return err
	}
	if last := have.last(); last != "" && last != o {
		return fmt.Errorf("plane %s: %w", p, ErrSuperseded)
	}
	if err := putObject(ctx, store, p, move, "withdrawn"); err != nil {
		return err
	}
	isClaimed, err := hasObject(ctx, store, p, move, "claimed")
	if err != nil || !isClaimed {
		return err
	}
	isDeclined, err := hasObject(ctx, store, p, move, "declined")
	if err == nil && !isDeclined {
		err = fmt.Errorf("plane %s: %w", p, ErrClaimed)
	}
	return err
}
