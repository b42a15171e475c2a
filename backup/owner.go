package backup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Owner identifies the data of a plane on one machine: hosting generates it when the plane first needs it, and keeps it
// beside the data. A plane that is recovered or moved has another owner on its next machine, under the same name.
type Owner string

// ErrSuperseded is the error of an owner when another owner has claimed the backups of the plane later: this machine
// must not run the plane.
var ErrSuperseded = errors.New("another management cluster has the plane")

const (
	// maxOwners bounds the list; each recovery or move adds one.
	maxOwners = 1000
	// maxDraws bounds the draws of an Identity: one every drawEvery makes those of 5 hours.
	maxDraws = 64
	// drawEvery is the time after which a claim stores another draw.
	drawEvery = 5 * time.Minute
	// ownerEvery is the time between two claims of a follower.
	ownerEvery = 15 * time.Second
)

// Draw is a random number that a machine has generated for a claim (a nonce). A copy of the machine's disk does not
// have the draws that the machine made after the copy was taken, which distinguishes the two machines.
type Draw struct {
	// Serial is greater than the serial of the draw before: see newDraw.
	Serial int64  `json:"serial"`
	Word   string `json:"word"`
}

// Identity is the record on a machine's disk about the machine's data of a plane. Each draw is on the disk before it is
// in the store.
type Identity struct {
	Owner Owner  `json:"owner"`
	Draws []Draw `json:"draws,omitempty"` // the last maxDraws, the newest last
	// Confirmed: the store had the owner in a sealed list. From then on an older list, or one that is not sealed, is an
	// error.
	Confirmed bool `json:"confirmed,omitempty"`
}

// owners is the sealed content of an object below ownersPrefix. The last owner has the plane.
type owners struct {
	Owners []Owner `json:"owners"`
	// Taken is the last owner that has called Take. While it is the last one, no Claim adds another owner.
	Taken Owner `json:"taken,omitempty"`
	// Draw is the draw of the last claim; the zero value when no claim has stored a sealed list.
	Draw Draw `json:"draw,omitzero"`

	isSealed bool
}

func (o owners) last() Owner {
	if len(o.Owners) == 0 {
		return ""
	}
	return o.Owners[len(o.Owners)-1]
}

// claimKind is the kind of a claim on the backups of a plane.
type claimKind int

const (
	confirms claimKind = iota // of Claim: the owner has data, and claims the plane unless another owner has taken it
	takes                     // of Take: the owner's data was made from the backups or by a move, or is new
)

// deleteList ends the errors of a list that contradicts this machine's identity: the operator's next step when an older
// state of the store was restored. No other harmless cause is known.
const deleteList = "if the store was set back, delete the object: the plane that runs claims the backups again"

// check returns nil when the owner is the last one or may become the last one, ErrSuperseded when another machine has
// the plane, and ErrCorrupt when the list contradicts the identity.
func (o owners) check(id Identity, kind claimKind) error {
	isLast := o.last() == id.Owner
	switch {
	case o.last() == "": // no owner has claimed the plane, or the object is lost
		return nil
	case id.Confirmed && !o.isSealed:
		return fmt.Errorf("%w: it is not sealed, and this machine has stored a sealed one; %s", ErrCorrupt, deleteList)
	case id.Confirmed && len(id.Draws) > 0 && o.Draw.Serial < id.Draws[0].Serial:
		return fmt.Errorf("%w: it is older than those that this machine has stored; %s", ErrCorrupt, deleteList)
	case !isLast && slices.Contains(o.Owners, id.Owner), !isLast && kind == confirms && o.Taken == o.last():
		return ErrSuperseded
	case isLast && o.Draw != (Draw{}) && !slices.Contains(id.Draws, o.Draw):
		return fmt.Errorf("%w: a machine with a copy of this one's disk has claimed it", ErrSuperseded)
	}
	return nil
}

// claimedBy returns the list after a claim by an owner that check accepts.
func (o owners) claimedBy(id Identity, kind claimKind, d Draw) owners {
	if kind == takes || o.last() == "" && id.Confirmed { // after the loss of the list, older data must not claim the plane
		o.Taken = id.Owner
	}
	if o.last() != id.Owner {
		o.Owners = append(slices.Clone(o.Owners), id.Owner)
	}
	o.Owners = o.Owners[max(0, len(o.Owners)-maxOwners):]
	o.Draw = d
	return o
}

// newDraw returns a draw whose serial is higher than those of all draws that the store and the machine have.
//
// A machine that has never stored a sealed list, and finds none, begins with the time of its clock. This is for a list
// that was lost while its last owner was disconnected: the serials of that owner began at an earlier time and grow by 1
// each drawEvery, so they are lower, and the owner is superseded when it connects again. When the clocks of the two
// machines differ by more than the time between their first draws, the disconnected owner gets ErrCorrupt instead.
func newDraw(have owners, id Identity, now time.Time) Draw {
	serial := have.Draw.Serial
	for _, d := range id.Draws {
		serial = max(serial, d.Serial)
	}
	if !have.isSealed && !id.Confirmed {
		serial = max(serial, now.Unix()<<20)
	}
	return Draw{Serial: serial + 1, Word: rand.Text()}
}

// withDraw returns the identity with one more draw.
func (id Identity) withDraw(d Draw) Identity {
	id.Draws = append(slices.Clone(id.Draws), d)
	id.Draws = id.Draws[max(0, len(id.Draws)-maxDraws):]
	return id
}
