package status

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"atoll.dev/internal/jsonvalue"
)

// maxRecent is how many of an adapter's reports are remembered. An adapter repeats a report
// within seconds, before its next one or two reports.
const maxRecent = 8

// Recent is a report that was stored: 8 bytes of the hash of its content, then, as
// microseconds since 1970, the times of observation and of receipt (0 if the adapter's
// clock was right), and the transitions of its conditions in the order of their types.
type Recent []byte

// recentHead is how many bytes come before the transitions.
const recentHead = 24

// digest returns a hash of a report's content and time of observation. The order of
// conditions and members, and white space, do not matter. Numbers are compared as they
// are written, so that different numbers never have one hash by rounding.
//
// Stored reports have digests of earlier releases: the hashed text is that of encoding/json, which
// would take a twelfth of the server's time of a report.
func (r Report) digest() []byte {
	b := make([]byte, 0, 512+len(r.Data)+len(r.Metadata))
	text := func(key, v string) { b = jsonvalue.AppendCanonical(append(b, key...), v) }
	text(`{"Adapter":`, string(r.Adapter))
	b = strconv.AppendInt(append(b, `,"Generation":`...), int64(r.Generation), 10)
	b = strconv.AppendInt(append(b, `,"At":`...), r.ObservedAt.UnixMicro(), 10)
	b = append(b, `,"Conditions":`...)
	for i, c := range byType(r.Conditions) {
		if i == 0 {
			b = append(b, '[')
		} else {
			b = append(b, ',')
		}
		text(`{"type":`, c.Type)
		text(`,"status":`, string(c.Status))
		if !c.Reason.IsZero() {
			text(`,"reason":`, c.Reason.String())
		}
		if !c.Message.IsZero() {
			text(`,"message":`, c.Message.String())
		}
		b = append(b, `,"last_transition_time":"0001-01-01T00:00:00Z"}`...)
	}
	if len(r.Conditions) > 0 {
		b = append(b, ']')
	} else {
		b = append(b, "null"...)
	}
	b = appendExactly(append(b, `,"Data":`...), r.Data)
	b = appendExactly(append(b, `,"Metadata":`...), r.Metadata)
	sum := sha256.Sum256(append(b, '}'))
	return sum[:8]
}

// appendExactly appends JSON in its canonical form, and keeps numbers as they are written. Absent JSON becomes null.
func appendExactly(b []byte, data json.RawMessage) []byte {
	text, err := jsonvalue.AppendCanonicalText(b, data)
	if err != nil { // there is none: Check has decoded the rest
		return append(b, "null"...)
	}
	return text
}

// byType returns conditions in the order of their types, which are unique.
func byType(conditions []Reported) []Reported {
	return slices.SortedFunc(slices.Values(conditions), func(a, b Reported) int { return cmp.Compare(a.Type, b.Type) })
}

// remember sets Recent: the report itself first, then the recent reports of the stored one.
func (r *Report) remember(stored *Report) {
	own := r.digest()
	own = binary.BigEndian.AppendUint64(own, uint64(r.ObservedAt.UnixMicro()))
	received := int64(0)
	if r.ReceivedAt != nil {
		received = r.ReceivedAt.UnixMicro()
	}
	own = binary.BigEndian.AppendUint64(own, uint64(received))
	for _, c := range byType(r.Conditions) {
		own = binary.BigEndian.AppendUint64(own, uint64(c.LastTransitionTime.UnixMicro()))
	}
	r.Recent = []Recent{own}
	if stored != nil {
		r.Recent = append(r.Recent, stored.Recent[:min(len(stored.Recent), maxRecent-1)]...)
	}
}

// findIn finds a report among recent ones.
func (r Report) findIn(recent []Recent) (Recent, bool) {
	// A digest takes long; without a report of the same moment there is nothing to compare it with.
	at := binary.BigEndian.AppendUint64(nil, uint64(r.ObservedAt.UnixMicro()))
	if !slices.ContainsFunc(recent, func(k Recent) bool { return len(k) >= recentHead && bytes.Equal(k[8:16], at) }) {
		return nil, false
	}
	digest := r.digest()
	i := slices.IndexFunc(recent, func(k Recent) bool {
		return len(k) == recentHead+8*len(r.Conditions) && bytes.Equal(k[:8], digest)
	})
	if i < 0 {
		return nil, false
	}
	return recent[i], true
}

// repeats reports whether a report is among recent ones.
func (r Report) repeats(recent []Recent) bool {
	_, ok := r.findIn(recent)
	return ok
}

// withRecentTimes returns a report that repeats a recent one of stored, with the times that
// the recent report had in its answer.
func (r Report) withRecentTimes(stored Report) Report {
	k, _ := r.findIn(stored.Recent)
	moment := func(at int) time.Time { return time.UnixMicro(int64(binary.BigEndian.Uint64(k[at:]))).UTC() }
	r.CreatedAt, r.ReceivedAt = stored.CreatedAt, nil
	if received := moment(16); received.UnixMicro() != 0 {
		r.ReceivedAt = &received
	}
	order := byType(r.Conditions)
	r.Conditions = slices.Clone(r.Conditions)
	for i, c := range r.Conditions {
		n, _ := slices.BinarySearchFunc(order, c.Type, func(c Reported, kind string) int {
			return strings.Compare(c.Type, kind)
		})
		r.Conditions[i].LastTransitionTime = moment(recentHead + 8*n)
	}
	return r
}
