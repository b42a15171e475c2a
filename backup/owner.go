package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Owner identifies the data of a plane on one machine: hosting draws it when the plane first needs it and keeps it
// beside the data. A plane that is recovered or moved has another owner on its next machine, under the same name.
type Owner string

// ErrSuperseded is the error of an owner after which another one has claimed the backups of the plane: the plane lives
// elsewhere.
var ErrSuperseded = errors.New("another management cluster has the plane")

const (
	// ownersPrefix is the prefix of the objects that list the owners of each plane. No namespace begins with a dot.
	ownersPrefix = ".owners/"
	// maxOwners bounds the list; each recovery or move adds one.
	maxOwners = 1000
	// ownerEvery is the time after which a follower asks again whether its plane lives elsewhere.
	ownerEvery = 15 * time.Second
)

// owners is the content of an object below ownersPrefix. The last owner has the plane.
type owners struct {
	Owners []Owner `json:"owners"`
	// Taken is the last owner that has called Take. While it is the last one, no Claim adds another owner.
	Taken Owner `json:"taken,omitempty"`
}

func (o owners) last() Owner {
	if len(o.Owners) == 0 {
		return ""
	}
	return o.Owners[len(o.Owners)-1]
}

// readOwners returns the owners of a plane; none when none has claimed it, as before there were owners.
func readOwners(ctx context.Context, store Store, p Plane) (o owners, err error) {
	name := ownersPrefix + p.String()
	content, err := store.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return owners{}, nil
	}
	if err != nil {
		return owners{}, err
	}
	if err := json.Unmarshal(content, &o); err != nil || o.last() == "" {
		return owners{}, fmt.Errorf("%s: %w: it lists no owner", name, ErrCorrupt)
	}
	return o, nil
}

// Claim confirms that an owner is the last one of a plane, or makes it that. It is repeated, and has three outcomes:
//
//  1. nil: the owner is the last one.
//  2. ErrSuperseded: it was the last one, and another one has claimed the plane since; or it never was, and the last
//     one has taken the plane: then its data is of a version without owners, or never reached the store before the
//     plane was recovered elsewhere. That stays so.
//  3. Another error: the store does not answer, or its object is damaged; nothing is known.
//
// Of two owners that claim at the same time one is superseded at its next call.
func Claim(ctx context.Context, store Store, p Plane, o Owner) error {
	have, err := readOwners(ctx, store, p)
	switch {
	case err != nil:
		return err
	case have.last() == o:
		return nil
	case have.Taken != "" && have.Taken == have.last():
		return fmt.Errorf("plane %s: %w", p, ErrSuperseded)
	}
	return have.add(ctx, store, p, o)
}

// Take makes an owner the last one whose data is made from the backups of the plane, or by a move, or is new. It may be
// repeated, and has the outcomes of Claim; only an owner that was the last one before can be superseded.
func Take(ctx context.Context, store Store, p Plane, o Owner) error {
	have, err := readOwners(ctx, store, p)
	if err != nil || have.last() == o && have.Taken == o {
		return err
	}
	have.Taken = o
	return have.add(ctx, store, p, o)
}

// IsOwned reports whether a plane has an owner.
func IsOwned(ctx context.Context, store Store, p Plane) (bool, error) {
	have, err := readOwners(ctx, store, p)
	return have.last() != "", err
}

// add stores the owners with o as the last one.
func (have owners) add(ctx context.Context, store Store, p Plane, o Owner) error {
	if have.last() != o {
		if slices.Contains(have.Owners, o) {
			return fmt.Errorf("plane %s: %w", p, ErrSuperseded)
		}
		have.Owners = append(have.Owners, o)
	}
	if n := len(have.Owners); n > maxOwners {
		have.Owners = have.Owners[n-maxOwners:]
	}
	content, err := json.Marshal(have)
	if err != nil {
		return err
	}
	return store.Put(ctx, ownersPrefix+p.String(), content)
}

// claim claims the follower's plane; without Options.Owner there is nothing to claim.
func (f *Follower) claim(ctx context.Context) error {
	if f.o.Owner == nil {
		return nil
	}
	owner, err := f.o.Owner()
	if err != nil {
		return fmt.Errorf("the owner of the plane's data: %w", err)
	}
	return Claim(ctx, f.o.Store, f.o.Plane, owner)
}

// keepClaiming asks the store from time to time whether the plane lives elsewhere. When it does, keepClaiming records
// that and calls end.
func (f *Follower) keepClaiming(ctx context.Context, end func()) {
	if f.o.Owner == nil {
		return
	}
	for pause(ctx, ownerEvery) == nil {
		attempt, cancel := context.WithTimeout(ctx, ownerEvery)
		err := f.claim(attempt)
		cancel()
		if errors.Is(err, ErrSuperseded) { // any other error also shows in the chain
			f.recordSuperseded()
			end()
			return
		}
	}
}

// recordSuperseded records that the plane lives elsewhere.
func (f *Follower) recordSuperseded() {
	f.mu.Lock()
	isNew := !f.state.Superseded
	f.state.Superseded = true
	f.mu.Unlock()
	if isNew {
		f.o.Log.Warn("the backup of a plane ends: another management cluster has the plane")
		f.o.Changed()
	}
}
