package store

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// ObservationForm is the short form of statuses that differ from the stored one only in times of observation
// (ObservedLater). The store keeps it in a column of its own, beside the status and the wire form that it had before,
// and applies it to each document that it reads. The next other change of the document stores all in full again.
type ObservationForm struct {
	// Of returns the short form of after, with which Status and Tail make after from the stored status and wire form.
	// short is the short form of before; nil: before is stored in full. The result is nil if after has no short form;
	// then the store writes it in full. It must be shorter than 4 KB.
	Of func(before, after Document, short []byte) []byte
	// Status sets the times in the status of a document. The document may be partial (see GetStatus), and Spec is nil in
	// a list without specs (see Query.WithoutSpec). Status may set Decoded.
	Status func(d *Document, short []byte) error
	// Tail returns the part of a wire form after its head with the times.
	Tail func(tail, short []byte) ([]byte, error)
}

// tokenLength is how many bytes the token has with which the column observed begins. A constraint compares it with the
// column token: a process of the release before, which would leave the times of another state in the row, can then not
// write the document.
const tokenLength = 8

// observation is the write of a short form.
type observation struct {
	kind    Kind
	id      string
	version int64
	before  int64  // the token of the state from which it was composed
	token   int64  // of the write
	column  []byte // the content of the column observed
}

// complete returns a document that was read with the contents of its columns observed and sealed: with the later times
// of observation, and with the sensitive values (see unseal).
func (s *Store) complete(d Document, observed, sealed []byte) (Document, error) {
	if kind := s.kinds[d.Kind]; len(observed) > tokenLength && kind != nil && kind.Observations != nil {
		if err := kind.applyObservation(&d, observed[tokenLength:]); err != nil {
			return d, fmt.Errorf("reading the times of observation of %s %s: %w", d.Kind, d.ID, err)
		}
	}
	return s.sealer.unseal(d, sealed)
}

// applyObservation sets the times of a short form in a document.
func (k *KindSpec) applyObservation(d *Document, short []byte) error {
	tail, err := k.Observations.Tail(d.tail(), short)
	if err != nil {
		return err
	}
	if d.Status != nil {
		if err := k.Observations.Status(d, short); err != nil {
			return err
		}
	}
	d.observation = short
	d.setTail(tail)
	return nil
}

// setTail replaces the wire form after its head.
func (d *Document) setTail(tail []byte) {
	if d.isPartial {
		d.Wire = tail
		return
	}
	d.Wire = slices.Concat(d.Wire[:d.head], tail)
}

// composeShort composes the write of the short form of next, which has the version of cur. ok is false if there is no
// short form.
func (k *KindSpec) composeShort(next *Document, cur Document, token int64) (w write, ok bool, err error) {
	if k.Observations == nil || cur.head == 0 {
		return w, false, nil
	}
	short := k.Observations.Of(cur, *next, cur.observation)
	if short == nil {
		return w, false, nil
	}
	tail, err := k.Observations.Tail(cur.tail(), short)
	if err != nil {
		return w, false, err
	}
	status, decoded := next.Status, next.Decoded
	*next = cur
	next.Status, next.Decoded, next.token, next.observation = status, decoded, token, short
	next.setTail(tail)
	column := append(binary.BigEndian.AppendUint64(make([]byte, 0, tokenLength+len(short)), uint64(token)), short...)
	w = write{kind: next.Kind, id: next.ID, version: next.Version, isSilent: true, sql: observeShortSQL,
		args: []any{string(next.Kind), next.ID, next.Version, cur.token, token, column},
		observed: &observation{kind: next.Kind, id: next.ID, version: next.Version, before: cur.token, token: token,
			column: column}}
	return w, true, nil
}

// observeShortSQL writes one short form, and waits for the lock of its row.
const observeShortSQL = `update document set observed = $6::bytea, token = $5
	where kind = $1 and id = $2 and version = $3 and token = $4 and removed_at is null returning pg_current_xact_id()`
