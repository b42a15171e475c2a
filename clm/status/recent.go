package status

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"atoll.dev/internal/jsonvalue"
)

// keep is how many of an adapter's reports are remembered. Who repeats a report
// does it within seconds, before the next one or two.
const keep = 8

// Recent is a report that was taken: 8 bytes of the hash of what it says, then,
// as microseconds since 1970, when it was observed, when it was received (0 if its
// clock was right), and the transitions of its conditions in the order of their
// types.
type Recent []byte

// recentHead is how many bytes come before the transitions.
const recentHead = 24

// digest is a hash of what a report says and of which moment. The order of
// conditions, of members and white space do not matter; numbers count as they are
// written, so none is taken for another one.
func (r Report) digest() []byte {
	type said struct {
		Adapter    string
		Generation int32
		At         int64
		Conditions []Reported
		Data       any
		Metadata   any
	}
	s := said{Adapter: r.Adapter, Generation: r.Generation, At: r.ObservedAt.UnixMicro(), Conditions: byType(
		r.Conditions)}
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = time.Time{}
	}
	s.Data, s.Metadata = exactly(r.Data), exactly(r.Metadata)
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	sum := sha256.Sum256(text)
	return sum[:8]
}

// exactly decodes JSON and leaves numbers as they are written. Absent is null.
func exactly(data json.RawMessage) any {
	v, _ := jsonvalue.Decode(data) // Check has decoded it before
	return v
}

// byType are conditions in the order of their types, which are unique.
func byType(conditions []Reported) []Reported {
	return slices.SortedFunc(slices.Values(conditions), func(a, b Reported) int { return cmp.Compare(a.Type, b.Type) })
}

// remember has a report that is taken remember itself, and those before it.
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
		r.Recent = append(r.Recent, stored.Recent[:min(len(stored.Recent), keep-1)]...)
	}
}

// of finds a report among recent ones.
func (r Report) of(recent []Recent) (Recent, bool) {
	// A digest takes long; without a report of the same moment there is nothing to compare it with.
	at := binary.BigEndian.AppendUint64(nil, uint64(r.ObservedAt.UnixMicro()))
	if !slices.ContainsFunc(recent, func(k Recent) bool { return len(k) >= recentHead && bytes.Equal(k[8:16], at) }) {
		return nil, false
	}
	digest := r.digest()
	i := slices.IndexFunc(recent, func(k Recent) bool {
		return len(k) == recentHead+8*len(r.Conditions) && bytes.Equal(
			k[:8], digest)
	})
	if i < 0 {
		return nil, false
	}
	return recent[i], true
}

func (r Report) repeats(recent []Recent) bool {
	_, ok := r.of(recent)
	return ok
}

// answered is a report that repeats a recent one, as that was answered.
func (r Report) answered(stored Report) Report {
	k, _ := r.of(stored.Recent)
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
