package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Cursor is a place in the feed: a follower has seen all changes before it. It is opaque text without white space,
// which a caller may store anywhere, and is valid for this database only; "" is the beginning. A cursor that the
// database cannot serve any more gets ErrGone.
type Cursor string

// position is a parsed cursor: an incarnation and a pg_snapshot "xmin:xmax:xip,xip".
type position struct {
	incarnation string
	snapshot    string
	xmin, xmax  uint64
	xip         []uint64
}

func (p position) cursor() Cursor {
	if p.snapshot == "" {
		return ""
	}
	return Cursor(p.incarnation + "." + p.snapshot)
}

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

// within reports whether a snapshot taken at q sees everything that one taken at p sees.
func (p position) within(q position) bool {
	if p.snapshot == "" || p.incarnation != q.incarnation {
		return false
	}
	for _, xid := range q.xip {
		if p.sees(xid) {
			return false
		}
	}
	// Transactions from q.xmax on are unknown to q: p must have found all of them in progress.
	if p.xmax <= q.xmax {
		return true
	}
	first, _ := slices.BinarySearch(p.xip, q.xmax)
	return uint64(len(p.xip)-first) == p.xmax-q.xmax
}
