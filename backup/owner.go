package backup

import (
	"crypto/rand"
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
	// maxOwners bounds the list; each recovery or move adds one.
	maxOwners = 1000
	// maxDraws bounds the draws of an Identity: those of some hours.
	maxDraws = 64
	// drawEvery is the time after which a claim stores another draw.
	drawEvery = 5 * time.Minute
	// ownerEvery is the time after which a follower asks again whether its plane lives elsewhere.
	ownerEvery = 15 * time.Second
)

// Draw is a random word that a machine has drawn for a claim. A copy of the machine's disk does not have the draws that
// the machine made after the copy.
type Draw struct {
	// Serial is greater than that of the draw before: see newDraw.
	Serial int64  `json:"serial"`
	Word   string `json:"word"`
}

// Identity is what a machine keeps on its disk about its data of a plane. The disk has a draw before the store has it.
type Identity struct {
	Owner Owner  `json:"owner"`
	Draws []Draw `json:"draws,omitempty"` // the last maxDraws, the newest last
	// Confirmed: the store had the owner in a sealed list. From then on an older list, or one that is not sealed, says
	// nothing.
	Confirmed bool `json:"confirmed,omitempty"`
}

// owners is the sealed content of an object below ownersPrefix. The last owner has the plane.
type owners struct {
	Owners []Owner `json:"owners"`
	// Taken is the last owner that has called Take. While it is the last one, no Claim adds another owner.
	Taken Owner `json:"taken,omitempty"`
	// Draw is the one of the last claim; the zero value before the first sealed one.
	Draw Draw `json:"draw,omitzero"`

	isSealed bool
}

func (o owners) last() Owner {
	if len(o.Owners) == 0 {
		return ""
	}
	return o.Owners[len(o.Owners)-1]
}

// claimKind is what an owner wants of the backups of a plane.
type claimKind int

const (
	confirms claimKind = iota // it has data, and claims the plane unless another one has taken it
	takes                     // its data is made from the backups, by a move, or new
)

// deleteList is the next step after a list that is not to be believed, when nobody has an explanation but a store that
// was set back.
const deleteList = "if the store was set back, delete the object: the plane that runs claims the backups again"

// check returns nil when the owner is the last one, or may become it: ErrSuperseded when the plane lives elsewhere, and
// ErrCorrupt when the list is not to be believed.
func (o owners) check(id Identity, kind claimKind) error {
	isLast := o.last() == id.Owner
	switch {
	case o.last() == "": // nobody has claimed the plane, or the object is lost
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
	if kind == takes || o.last() == "" && id.Confirmed { // a lost list must not let older data claim the plane
		o.Taken = id.Owner
	}
	if o.last() != id.Owner {
		o.Owners = append(slices.Clone(o.Owners), id.Owner)
	}
	o.Owners = o.Owners[max(0, len(o.Owners)-maxOwners):]
	o.Draw = d
	return o
}

// newDraw returns a draw that is later than all that the store and the machine have. A machine that has never stored a
// sealed list, and finds none, begins at the time of its clock: where a list is lost while another machine is cut off,
// the draws of that machine, one in drawEvery from an earlier time on, stay behind, and it is superseded. Clocks that
// differ by more than the time between the two make that machine refuse the list as an older one.
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
