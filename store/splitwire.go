package store

// splitMark is the first byte of the column wire of a document whose wire form begins in the column
// head. A process of the previous release does not know the column head: it writes the whole wire
// form, without the mark, and leaves the head of an earlier version in the row, which readers then
// ignore. No wire form that has a head begins with this byte.
const splitMark = 1

// storedWire returns the content of the column wire for a document: its wire form without the head,
// after the mark.
func storedWire(d Document) []byte {
	if d.sealed != nil && d.sealed.wire != nil { // of a kind without heads
		return d.sealed.wire
	}
	if d.head == 0 {
		return d.Wire
	}
	tail := d.tail()
	return append(append(make([]byte, 0, 1+len(tail)), splitMark), tail...)
}

// isSplit reports whether the wire form consists of both columns.
func isSplit(head, wire []byte) bool { return len(head) > 0 && len(wire) > 0 && wire[0] == splitMark }

// joinWire returns a new slice with the wire form that the two columns have, and the length of its
// head, which is 0 if the column wire has all of it.
func joinWire(head, wire []byte) (joined []byte, headLength int) {
	if !isSplit(head, wire) {
		return append([]byte{}, wire...), 0
	}
	joined = make([]byte, 0, len(head)+len(wire)-1)
	return append(append(joined, head...), wire[1:]...), len(head)
}

// scannedWire scans the columns head and wire, in this order, into one wire form. It copies the driver's memory once.
type scannedWire struct {
	head  []byte // the driver's; nothing may use it after Scan
	wire  []byte
	split int // the length of the head in wire
}

// headTarget and wireTarget are the targets of the two columns. They implement pgtype.BytesScanner.
type (
	headTarget scannedWire
	wireTarget scannedWire
)

// targets returns the arguments of Scan for both columns.
func (s *scannedWire) targets() (head, wire any) { return (*headTarget)(s), (*wireTarget)(s) }

func (t *headTarget) ScanBytes(b []byte) error {
	t.head = b
	return nil
}

func (t *wireTarget) ScanBytes(b []byte) error {
	t.wire, t.split = joinWire(t.head, b)
	t.head = nil
	return nil
}
