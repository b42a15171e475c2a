package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// mark is the content of the object "mark": etcd did not change between the end of a chain's last segment and the time
// of To. A follower replaces the object every few seconds while etcd is idle: without it, a restore to an idle second
// could not tell that second from one whose segment is missing. A mark of an earlier segment is stale and proves
// nothing; one of a later segment proves that the last segments are missing.
type mark struct {
	Number   int    `json:"number"`   // of the last segment; 0: there is none
	Previous []byte `json:"previous"` // SHA-256 of the last segment's object, or of the manifest's when there is none
	To       Sample `json:"to"`
}

// storeMark stores that etcd did not change between the end of the stored log and a sample with the same revision.
func (c *chain) storeMark(to Sample) error {
	plain, err := json.Marshal(mark{Number: c.number - 1, Previous: c.previous, To: to})
	if err != nil {
		return err
	}
	name := c.prefix + markObject
	object, err := c.key.Seal(name, plain)
	if err != nil {
		return err
	}
	if err := c.f.put(c.ctx, name, object); err != nil {
		return err
	}
	c.f.recordStored(c.period, to.Time)
	return nil
}

// readMark returns the chain's mark; the zero value when there is none.
func (r *chainReader) readMark(ctx context.Context) (m mark, err error) {
	name := r.prefix + markObject
	object, err := r.store.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return mark{}, nil
	}
	if err != nil {
		return mark{}, err
	}
	plain, err := r.key.Open(name, object)
	if err != nil {
		return mark{}, err
	}
	if err := json.Unmarshal(plain, &m); err != nil {
		return mark{}, fmt.Errorf("%s: %w: %w", name, ErrCorrupt, err)
	}
	return m, nil
}

// idleUntil returns the moment until which nothing changed after the segment with this number and checksum; zero when
// the mark is of an earlier segment. A mark of a later segment is an error: that segment is missing.
func (m mark) idleUntil(number int, checksum []byte) (time.Time, error) {
	switch {
	case m.Number > number:
		return time.Time{}, fmt.Errorf("%w: segment %d %w", ErrCorrupt, m.Number, errMissing)
	case m.Number < number, m.Previous == nil:
		return time.Time{}, nil
	case !bytes.Equal(m.Previous, checksum):
		return time.Time{}, fmt.Errorf("%w: its mark follows another segment %d", ErrCorrupt, number)
	}
	return m.To.Time, nil
}
