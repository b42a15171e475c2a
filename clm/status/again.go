package status

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"time"
)

// MaxRecent is how many reports Report.Recent has at most.
const MaxRecent = maxRecent

// Again is a report that has come again with the same content and another time: what it changes in the stored report.
type Again struct {
	digest     [8]byte
	observedAt int64 // microseconds since 1970
	receivedAt int64 // likewise; 0: the adapter's clock was right
}

// Again returns what a stored report has other than the one before. ok is false if that is more than an Again has.
func (r Report) Again(before Report) (a Again, ok bool) {
	kept := before.Recent[:min(len(before.Recent), maxRecent-1)]
	if len(r.Recent) != 1+len(kept) || !slices.EqualFunc(r.Recent[1:], kept, func(a, b Recent) bool {
		return bytes.Equal(a, b)
	}) || !bytes.Equal(r.Data, before.Data) || !bytes.Equal(r.Metadata, before.Metadata) ||
		!r.CreatedAt.Equal(before.CreatedAt) || r.ObservedAt.UnixMicro() < 0 {
		return a, false
	}
	a = Again{observedAt: r.ObservedAt.UnixMicro()}
	copy(a.digest[:], r.Recent[0])
	if r.ReceivedAt != nil {
		a.receivedAt = r.ReceivedAt.UnixMicro()
	}
	return a, bytes.Equal(a.recent(r.Conditions), r.Recent[0])
}

// recent returns the Recent of a report with these conditions.
func (a Again) recent(conditions []Reported) Recent {
	b := append(make(Recent, 0, recentHead+8*len(conditions)), a.digest[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(a.observedAt))
	b = binary.BigEndian.AppendUint64(b, uint64(a.receivedAt))
	for _, c := range byType(conditions) {
		b = binary.BigEndian.AppendUint64(b, uint64(c.LastTransitionTime.UnixMicro()))
	}
	return b
}

// WithAgain returns a stored report after it has come again, the latest time first.
func (r Report) WithAgain(again []Again) Report {
	if len(again) == 0 {
		return r
	}
	recent := make([]Recent, 0, maxRecent)
	for _, a := range again {
		recent = append(recent, a.recent(r.Conditions))
	}
	r.Recent = append(recent, r.Recent[:min(len(r.Recent), maxRecent-len(recent))]...)
	r.ObservedAt, r.ReceivedAt = time.UnixMicro(again[0].observedAt).UTC(), nil
	if again[0].receivedAt != 0 {
		at := time.UnixMicro(again[0].receivedAt).UTC()
		r.ReceivedAt = &at
	}
	return r
}

// Append appends the binary form, which ScanAgain reads: the digest, and the time of observation, whose lowest bit says
// whether the time of receipt follows.
func (a Again) Append(b []byte) []byte {
	b = append(b, a.digest[:]...)
	if a.receivedAt == 0 {
		return binary.BigEndian.AppendUint64(b, uint64(a.observedAt)<<1)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(a.observedAt)<<1|1)
	return binary.BigEndian.AppendUint64(b, uint64(a.receivedAt))
}

// ScanAgain reads what Append wrote, and returns the bytes behind it.
func ScanAgain(b []byte) (a Again, rest []byte, err error) {
	if len(b) < 16 || b[15]&1 == 1 && len(b) < 24 {
		return a, nil, errors.New("the times of a report are incomplete")
	}
	copy(a.digest[:], b)
	at := binary.BigEndian.Uint64(b[8:])
	a.observedAt = int64(at >> 1)
	if at&1 == 0 {
		return a, b[16:], nil
	}
	a.receivedAt = int64(binary.BigEndian.Uint64(b[16:]))
	return a, b[24:], nil
}
