package backup

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// errMissing is the error of a segment that is not in the store.
var errMissing = errors.New("is missing")

// Sample is a moment, and the revision of etcd after it.
type Sample struct {
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"`
}

// segment is one object of the log: all changes after revision From.Revision, up to To.Revision.
type segment struct {
	Number   int      `json:"number"`   // from 1
	Previous []byte   `json:"previous"` // SHA-256 of the object before: the manifest, then segment by segment
	From     Sample   `json:"from"`
	To       Sample   `json:"to"`
	Samples  []Sample `json:"samples"` // between From and To, To included, in order

	events []byte // each an mvccpb.Event behind its length as an unsigned varint
}

// maxSegment bounds the memory of a segment's decompression, in bytes. Only a defect of the writer can exceed it: an
// attacker without the data key cannot make a segment that opens.
const maxSegment = 64 << 20

// encode returns the plain text of the object: the length of the header, the header as JSON, and the events, all
// compressed.
func (s segment) encode(w *zstd.Encoder) ([]byte, error) {
	head, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w.Reset(&out)
	for _, part := range [][]byte{binary.AppendUvarint(nil, uint64(len(head))), head, s.events} {
		if _, err := w.Write(part); err != nil {
			return nil, err
		}
	}
	err = w.Close()
	w.Reset(nil) // keep no reference to out
	return out.Bytes(), err
}

func decodeSegment(compressed []byte) (s segment, err error) {
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSegment))
	if err != nil {
		return s, err
	}
	defer r.Close()
	plain, err := r.DecodeAll(compressed, nil)
	if err != nil {
		return s, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	size, n := binary.Uvarint(plain)
	if n <= 0 || size > uint64(len(plain)-n) {
		return s, fmt.Errorf("%w: its header is cut short", ErrCorrupt)
	}
	if err := json.Unmarshal(plain[n:n+int(size)], &s); err != nil {
		return s, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	s.events = plain[n+int(size):]
	return s, nil
}

// checkFollows returns an error unless s has this number, begins at the sample from, and names the checksum of the
// object before it.
func (s segment) checkFollows(number int, from Sample, checksum []byte) error {
	switch {
	case s.Number != number:
		return fmt.Errorf("%w: it has number %d, not %d", ErrCorrupt, s.Number, number)
	case !bytes.Equal(s.Previous, checksum):
		return fmt.Errorf("%w: it names another checksum than that of the object before it", ErrCorrupt)
	case s.From != from:
		return fmt.Errorf("%w: it begins at revision %d, and the one before it ends at %d", ErrCorrupt, s.From.Revision,
			from.Revision)
	case s.To.Revision < s.From.Revision || s.To.Time.Before(s.From.Time):
		return fmt.Errorf("%w: it ends before it begins", ErrCorrupt)
	}
	return nil
}

// appendEvent appends a change to b: its length as an unsigned varint, and the change.
func appendEvent(b []byte, e *mvccpb.Event) ([]byte, error) {
	data, err := e.Marshal()
	if err != nil {
		return b, err
	}
	return append(binary.AppendUvarint(b, uint64(len(data))), data...), nil
}

// cutEvents returns the beginning of events: the changes whose revisions are at most to.
func cutEvents(events []byte, to int64) ([]byte, error) {
	for at := 0; at < len(events); {
		size, n := binary.Uvarint(events[at:])
		if n <= 0 || size > uint64(len(events)-at-n) {
			return nil, fmt.Errorf("%w: a change is cut short", ErrCorrupt)
		}
		var e mvccpb.Event
		if err := e.Unmarshal(events[at+n : at+n+int(size)]); err != nil || e.Kv == nil {
			return nil, fmt.Errorf("%w: a change cannot be read", ErrCorrupt)
		}
		if e.Kv.ModRevision > to {
			return events[:at], nil
		}
		at += n + int(size)
	}
	return events, nil
}
