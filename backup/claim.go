package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"atoll.dev/envelope"
	"atoll.dev/internal/pause"
)

// ownersPrefix is the prefix of the objects that list the owners of each plane. No namespace begins with a dot.
const ownersPrefix = ".owners/"

// Records reads and writes the objects beside the chains: the owners of each plane, the tombstones of deleted clusters,
// and the decisions of moves. The lists of owners are sealed, so that an attacker who can only write the store cannot
// end a plane (decision 156). Use NewRecords. Many goroutines may use Records.
type Records struct {
	store  Store
	kms    envelope.KMS
	opener *envelope.Opener
}

// NewRecords returns the records of a store, whose seals have data keys that the KMS wraps.
func NewRecords(store Store, kms envelope.KMS) *Records {
	return &Records{store: store, kms: kms, opener: envelope.NewOpener(kms)}
}

// owners returns the owners of a plane; an empty list when none has claimed it. Early versions claimed no plane.
func (r *Records) owners(ctx context.Context, p Plane) (o owners, err error) {
	name := ownersPrefix + p.String()
	content, err := r.store.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return owners{}, nil
	}
	if err != nil {
		return owners{}, err
	}
	// An earlier version stored the list without a seal, as JSON. A sealed object is not JSON: bytes follow its first
	// line.
	if json.Unmarshal(content, &o) == nil && o.last() != "" {
		o.Draw = Draw{}
		return o, nil
	}
	plain, err := r.opener.Open(ctx, name, content)
	if err != nil {
		return owners{}, err
	}
	o = owners{isSealed: true}
	if err := json.Unmarshal(plain, &o); err != nil || o.last() == "" {
		return owners{}, fmt.Errorf("%s: %w: it lists no owner", name, ErrCorrupt)
	}
	return o, nil
}

// IsOwned reports whether a plane has an owner.
func (r *Records) IsOwned(ctx context.Context, p Plane) (bool, error) {
	have, err := r.owners(ctx, p)
	return have.last() != "", err
}

// Keeper keeps the Identity of a machine's data of one plane on its disk.
type Keeper interface {
	// Load returns the identity. The first call generates the owner.
	Load() (Identity, error)
	// Update replaces the identity of an owner by the result of change, and returns when the result is on disk. Of two
	// calls at once the second changes the result of the first: a draw that is in the store and not on the disk would
	// end the plane.
	Update(of Owner, change func(Identity) Identity) error
}

// Claimant claims a plane's backups for the data on one machine. Many goroutines may use a Claimant.
type Claimant struct {
	records *Records
	plane   Plane
	keeper  Keeper

	mu      sync.Mutex
	pending Draw      // is on the disk, and perhaps not in the store; the zero value: there is none
	drawn   time.Time // when the store got the last draw of this Claimant; zero: never
}

// Claimant returns a Claimant of a plane.
func (r *Records) Claimant(p Plane, k Keeper) *Claimant {
	return &Claimant{records: r, plane: p, keeper: k}
}

// Claim confirms that this machine's owner is the last owner of the plane, or makes it the last one. The caller repeats
// it. It has three outcomes:
//
//  1. nil: the machine's owner is the last one.
//  2. ErrSuperseded, for ever: another machine has the plane. Either the machine's owner was the last one and another
//     owner has claimed the plane since. Or the machine's owner was never the last one, and the last one has taken the
//     plane: the machine's data was made by a version without owners, or never reached the store before the plane was
//     recovered on another machine. Or a machine with a copy of this machine's disk has claimed the plane.
//  3. Another error: the store does not answer, or its list is damaged, not sealed, or an older one. Then the owner is
//     unknown.
//
// Of two owners that claim at the same time one is superseded at its next call. Of two machines with the same disk, the
// first one that claims after the other has stored a draw is superseded: each machine stores a draw at its first call
// and then every drawEvery.
func (c *Claimant) Claim(ctx context.Context) error { return c.claim(ctx, confirms) }

// Take makes this machine's owner the last one. It is for data that was made from the backups of the plane or by a
// move, and for new data. It may be repeated, and has the outcomes of Claim; only an owner that was the last one before
// can be superseded.
func (c *Claimant) Take(ctx context.Context) error { return c.claim(ctx, takes) }

func (c *Claimant) claim(ctx context.Context, kind claimKind) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, err := c.records.owners(ctx, c.plane)
	if err != nil {
		return err
	}
	// The disk is read after the store: it has each draw of this machine before the store has it.
	id, err := c.keeper.Load()
	if err != nil {
		return fmt.Errorf("the owner of the plane's data: %w", err)
	}
	if err := have.check(id, kind); err != nil {
		return fmt.Errorf("%s: %w", ownersPrefix+c.plane.String(), err)
	}
	if c.pending != (Draw{}) && have.Draw == c.pending { // an earlier Put stored it, though the store did not answer
		c.markDrawn()
	}
	if have.last() == id.Owner && have.isSealed && (kind == confirms || have.Taken == id.Owner) &&
		!c.drawn.IsZero() && time.Since(c.drawn) < drawEvery {
		return c.confirm(id)
	}
	if c.pending.Serial <= have.Draw.Serial {
		drawn := newDraw(have, id, time.Now())
		if err := c.update(id, func(id Identity) Identity { return id.withDraw(drawn) }); err != nil {
			return err
		}
		c.pending = drawn
	}
	if err := c.records.put(ctx, c.plane, have.claimedBy(id, kind, c.pending)); err != nil {
		return err
	}
	c.markDrawn()
	return c.confirm(id)
}

// markDrawn records that the store has the pending draw. The caller holds mu.
func (c *Claimant) markDrawn() { c.pending, c.drawn = Draw{}, time.Now() }

// confirm records on the disk that the store has the owner in a sealed list.
func (c *Claimant) confirm(id Identity) error {
	if id.Confirmed {
		return nil
	}
	return c.update(id, func(id Identity) Identity {
		id.Confirmed = true
		return id
	})
}

func (c *Claimant) update(id Identity, change func(Identity) Identity) error {
	if err := c.keeper.Update(id.Owner, change); err != nil {
		return fmt.Errorf("the owner of the plane's data: %w", err)
	}
	return nil
}

// put stores the owners of a plane, sealed.
func (r *Records) put(ctx context.Context, p Plane, o owners) error {
	key, err := envelope.NewDataKey(ctx, r.kms)
	if err != nil {
		return err
	}
	return putSealed(ctx, r.store, ownersPrefix+p.String(), key, o)
}

// claim claims the follower's plane; without Options.Claim there is nothing to claim.
func (f *Follower) claim(ctx context.Context) error {
	if f.o.Claim == nil {
		return nil
	}
	return f.o.Claim(ctx)
}

// keepClaiming repeats the claim every ownerEvery until ctx ends. When another machine has the plane, keepClaiming
// records that, calls end, and returns.
func (f *Follower) keepClaiming(ctx context.Context, end func()) {
	if f.o.Claim == nil {
		return
	}
	for pause.For(ctx, untilNext(ownerEvery, f.o.Plane.offset())) {
		attempt, cancel := context.WithTimeout(ctx, ownerEvery)
		err := f.claim(attempt)
		cancel()
		if errors.Is(err, ErrSuperseded) { // another error of the store also fails the chain, which reports it
			f.recordSuperseded(err)
			end()
			return
		}
	}
}

// recordSuperseded records that another machine has the plane.
func (f *Follower) recordSuperseded(why error) {
	f.mu.Lock()
	isNew := !f.state.Superseded
	f.state.Superseded = true
	f.mu.Unlock()
	if isNew {
		f.o.Log.Warn("the backup of a plane ends: another management cluster has the plane", "reason", why)
		f.o.Changed()
	}
}
