package clm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"atoll.dev/clm/status"
	"atoll.dev/internal/jsonscan"
	"atoll.dev/store"
)

// observationForm is the short form of a status in which reports of the same content have come again: their times, and
// those of the conditions that follow from them.
//
// It begins with the byte shortForm and the number of conditions (one byte), and has the last_updated_time of each
// condition, as microseconds since 1970 in 8 bytes. Then come the reports that have come again: the index of the report
// (one byte), how many have come (one byte), and of each, the latest first, what status.Again has.
var observationForm = store.ObservationForm{Of: shortObservation, Status: observeStatus, Tail: observeTail}

const shortForm = 1

// maxShort is the length from which a status is stored in full again. It bounds what each report copies.
const maxShort = 512

// observedTimeSQL is the last_updated_time of condition n, counted from 1, in the short form; null without one. Before
// the short form comes the store's token.
const observedTimeSQL = `timestamptz 'epoch' + ('x' || encode(substr(d.observed, 3 + 8 * n::int, 8), ` +
	`'hex'))::bit(64)::bigint * interval '1 microsecond'`

// shortObservation returns the short form of after; nil if it has none. form is the short form of before.
func shortObservation(before, after store.Document, form []byte) []byte {
	was, now := decodedOf(before), decodedOf(after)
	if was == nil || now == nil || after.DeletedAt != nil || len(now.seen.Conditions) > math.MaxUint8 ||
		len(now.seen.Reports) > math.MaxUint8 || len(was.seen.Reports) != len(now.seen.Reports) ||
		!was.seen.DeletionRepeated.Equal(now.seen.DeletionRepeated) {
		return nil
	}
	known, err := scanShort(form)
	if err != nil {
		return nil
	}
	b := append(make([]byte, 0, maxShort), shortForm, byte(len(now.seen.Conditions)))
	for _, c := range now.seen.Conditions {
		at := c.LastUpdatedTime.UnixMicro()
		if !time.UnixMicro(at).Equal(c.LastUpdatedTime) {
			return nil
		}
		b = binary.BigEndian.AppendUint64(b, uint64(at))
	}
	for i, r := range now.seen.Reports {
		again := known.again[i]
		if !identical(was.seen.texts[i], now.seen.texts[i]) {
			latest, ok := r.Again(was.seen.Reports[i])
			if !ok {
				return nil
			}
			again = append([]status.Again{latest}, again[:min(len(again), status.MaxRecent-1)]...)
		}
		if len(again) == 0 {
			continue
		}
		b = append(b, byte(i), byte(len(again)))
		for _, a := range again {
			b = a.Append(b)
		}
	}
	if len(b) > maxShort {
		return nil
	}
	return b
}

// short is a decoded short form.
type short struct {
	updated []time.Time            // of each condition
	again   map[int][]status.Again // by the index of the report, the latest first
}

// scanShort decodes a short form; nil is one without times.
func scanShort(b []byte) (s short, err error) {
	if b == nil {
		return s, nil
	}
	if len(b) < 2 || b[0] != shortForm || len(b) < 2+8*int(b[1]) {
		return s, errors.New("the times of observation have another form")
	}
	n := int(b[1])
	b = b[2:]
	for range n {
		s.updated = append(s.updated, time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC())
		b = b[8:]
	}
	s.again = map[int][]status.Again{}
	for len(b) >= 2 {
		i, count := int(b[0]), int(b[1])
		b = b[2:]
		for range count {
			var a status.Again
			if a, b, err = status.ScanAgain(b); err != nil {
				return s, err
			}
			s.again[i] = append(s.again[i], a)
		}
	}
	return s, nil
}

// observeStatus sets the times of a short form in the status of a document. It decodes a document that has a spec or is
// partial. A list without specs (store.Query.WithoutSpec) has neither, so nothing can decode its documents.
func observeStatus(d *store.Document, form []byte) error {
	s, err := scanShort(form)
	if err != nil {
		return err
	}
	seen, err := observedOf(*d)
	if err != nil {
		return err
	}
	if len(s.updated) != len(seen.Conditions) {
		return fmt.Errorf("there are %d conditions and times of %d", len(seen.Conditions), len(s.updated))
	}
	for i, at := range s.updated {
		seen.Conditions[i].LastUpdatedTime = at
	}
	for i, again := range s.again {
		if i >= len(seen.Reports) {
			return fmt.Errorf("there are %d reports and times of report %d", len(seen.Reports), i)
		}
		seen.Reports[i] = seen.Reports[i].WithAgain(again)
		seen.texts[i] = nil
	}
	if d.Spec == nil && !d.IsPartial() {
		d.Status = seen.encode(len(d.Status) + 1024)
		return nil
	}
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	encodeStatus(d, spec, seen)
	return nil
}

const updatedMember = `"last_updated_time":"`

// observeTail returns the tail of a wire form with the times of a short form. The conditions are its first members with
// this name; in texts before them the quotes are escaped.
func observeTail(tail, form []byte) ([]byte, error) {
	s, err := scanShort(form)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(tail)+8*len(s.updated))
	for _, at := range s.updated {
		begin := bytes.Index(tail, []byte(updatedMember))
		if begin < 0 {
			return nil, errors.New("the wire form has fewer conditions than there are times")
		}
		begin += len(updatedMember) - 1
		b = jsonscan.AppendTime(append(b, tail[:begin]...), at)
		tail = tail[begin+1:]
		tail = tail[bytes.IndexByte(tail, '"')+1:]
	}
	return append(b, tail...), nil
}
