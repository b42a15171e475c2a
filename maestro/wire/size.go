package wire

import (
	"fmt"

	"atoll.dev/api/work"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// sizeHeadroom is the largest number of bytes by which a later event of a bundle exceeds
// the first: with a higher generation, as a deletion, as an answer to a resync.
const sizeHeadroom = 256

// CheckSize refuses a bundle whose event the broker would refuse: the bundle would be
// stored and never arrive. CheckSize encodes data and metadata only when the event comes
// close to a limit.
func CheckSize(r bundle.Spec, sourceID, topic string, limit int) error {
	d := store.Document{ID: string(r.ID), Scope: string(r.Consumer), Generation: 1}
	m := specHeader(r, d, sourceID)
	m.Data = r.Data
	if size, err := m.Size(topic); err == nil && len(r.Metadata) <= maxExtension &&
		size+escapes(r.Data)+metadataBound(r)+sizeHeadroom <= limit {
		return nil
	}
	m, err := specEvent(r, d, sourceID)
	if err != nil {
		return err
	}
	m.Data = r.Data
	size, err := m.Size(topic)
	if err != nil {
		return apierror.Invalid("the bundle cannot be a message to its agent: %s", err)
	}
	if m.Data, err = canonical(r.Data); err != nil {
		return fmt.Errorf("the data of bundle %s: %w", r.ID, err)
	}
	size += len(m.Data) - len(r.Data)
	if size+sizeHeadroom > limit {
		return apierror.Invalid(
			"the bundle takes %d bytes as a message to its agent, and the message broker takes %d; make it smaller, "+
				"or make several of it", size+sizeHeadroom, limit)
	}
	return nil
}

// metadataBound returns an upper bound of the bytes that the metadata adds to a bundle's event: the
// member name is added or replaced by the id, keys are escaped, and the property has a name and two lengths.
func metadataBound(r bundle.Spec) int {
	if len(r.Metadata) == 0 {
		return 0
	}
	return len(r.Metadata) + escapes(r.Metadata) + len(`"name":"",`) + len(r.ID) + len("ce-"+work.ExtMetadata) + 16
}

// escapes returns the largest number of bytes by which canonical makes data longer: it writes <, >
// and & as six bytes, and the two line separators of Unicode, which begin with
// 0xe2, as six instead of three.
func escapes(data []byte) (n int) {
	for _, c := range data {
		switch c {
		case '<', '>', '&':
			n += 5
		case 0xe2:
			n += 3
		}
	}
	return n
}
