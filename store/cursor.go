package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Cursor is a place in the feed: a follower has got all changes before it. It is opaque text
// without white space, which a caller may store anywhere, and is valid for this database only; ""
// is the beginning. When the database cannot serve a cursor any more, functions that continue from
// it return ErrGone.
type Cursor string

// position is a parsed cursor: an incarnation of the database and a pg_snapshot
// "xmin:xmax:xip,xip". The snapshot sees all transactions below xmax except those in xip, which
// were in progress. The zero position sees none.
type position struct {
	incarnation string
	snapshot    string
	xmin, xmax  uint64
	xip         []uint64
}

// cursor returns the position as a Cursor; "" for the zero position.
func (p position) cursor() Cursor {
	if p.snapshot == "" {
		return ""
	}
	return Cursor(p.incarnation + "." + p.snapshot)
}

// position parses the cursor. It returns ErrInvalid when the cursor is malformed or empty.
func (c Cursor) position() (position, error) {
	incarnation, snapshot, ok := strings.Cut(string(c), ".")
	if !ok {
		return position{}, fmt.Errorf("%w: malformed cursor", ErrInvalid)
	}
	p, err := newPosition(incarnation, snapshot)
	if err != nil {
		return position{}, fmt.Errorf("%w: malformed cursor", ErrInvalid)
	}
	return p, nil
}

// newPosition parses a snapshot.
func newPosition(incarnation, snapshot string) (position, error) {
	p := position{incarnation: incarnation, snapshot: snapshot, xip: []uint64{}}
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return p, fmt.Errorf("malformed snapshot %q", snapshot)
	}
	var err error
	if p.xmin, err = strconv.ParseUint(parts[0], 10, 63); err != nil {
		return p, err
	}
	if p.xmax, err = strconv.ParseUint(parts[1], 10, 63); err != nil {
		return p, err
	}
	if parts[2] != "" {
		for x := range strings.SplitSeq(parts[2], ",") {
			xid, err := strconv.ParseUint(x, 10, 63)
			if err != nil {
				return p, err
			}
			if len(p.xip) > 0 && xid <= p.xip[len(p.xip)-1] || xid < p.xmin || xid >= p.xmax {
				return p, fmt.Errorf("malformed snapshot %q", snapshot)
			}
			p.xip = append(p.xip, xid)
		}
	}
	if p.xmin == 0 || p.xmin > p.xmax {
		return p, fmt.Errorf("malformed snapshot %q", snapshot)
	}
	return p, nil
}

// sees reports whether a snapshot taken at p sees the transaction.
func (p position) sees(xid uint64) bool {
	_, inProgress := slices.BinarySearch(p.xip, xid)
	return xid < p.xmax && !inProgress
}

// isCoveredBy reports whether the snapshot of q sees all transactions that the snapshot of p sees.
// It is false for positions of different incarnations.
func (p position) isCoveredBy(q position) bool {
	if p.snapshot == "" || p.incarnation != q.incarnation {
		return false
	}
	for _, xid := range q.xip {
		if p.sees(xid) {
			return false
		}
	}
	// The snapshot of q sees no transaction from q.xmax on, so for p all of these must be in
	// progress.
	if p.xmax <= q.xmax {
		return true
	}
	first, _ := slices.BinarySearch(p.xip, q.xmax)
	return uint64(len(p.xip)-first) == p.xmax-q.xmax
}
