package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"atoll.dev/backup"
	"atoll.dev/envelope"
)

// Sample is a moment by the server's clock, and a position: every transaction that the server acknowledged before the
// moment is in the WAL up to the position.
type Sample struct {
	Time     time.Time `json:"time"`
	Position LSN       `json:"position"`
}

// Manifest describes a base backup.
type Manifest struct {
	Region      string `json:"region"`
	Version     int    `json:"version"` // major version of the server; another one cannot recover it
	Timeline    int32  `json:"timeline"`
	SegmentSize int64  `json:"segment_size"` // of the WAL, in bytes
	// Start is the position from which recovery reads the WAL.
	Start LSN `json:"start"`
	// Complete is a sample taken after pg_basebackup has ended: the base backup restores to any moment from then on.
	Complete Sample `json:"complete"`
	Size     int64  `json:"size"` // uncompressed
	Parts    int    `json:"parts"`
}

// readManifest reads the manifest of a base backup of an archive.
func readManifest(ctx context.Context, store backup.Store, opener *envelope.Opener, prefix string) (
	m Manifest, err error) {
	text, err := readObject(ctx, store, opener, prefix+manifestObject)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s: %w: %w", prefix+manifestObject, backup.ErrCorrupt, err)
	}
	if m.SegmentSize < 1<<20 || m.SegmentSize > 1<<30 || m.SegmentSize&(m.SegmentSize-1) != 0 || m.Timeline < 1 {
		return m, fmt.Errorf("%s: %w: segments of %d bytes on timeline %d", prefix+manifestObject, backup.ErrCorrupt,
			m.SegmentSize, m.Timeline)
	}
	return m, nil
}

// readObject reads and opens an object that must exist.
func readObject(ctx context.Context, store backup.Store, opener *envelope.Opener, name string) ([]byte, error) {
	object, err := store.Get(ctx, name)
	if errors.Is(err, backup.ErrNotFound) {
		return nil, fmt.Errorf("%w: %s is missing", backup.ErrCorrupt, name)
	}
	if err != nil {
		return nil, err
	}
	return opener.Open(ctx, name, object)
}

// segmentStart returns the beginning of the segment that has a position.
func segmentStart(p LSN, size int64) LSN { return p &^ LSN(size-1) }

// segmentFile returns the name that PostgreSQL gives the segment that begins at a position.
func segmentFile(timeline int32, start LSN, size int64) string {
	perID := uint64(1<<32) / uint64(size)
	number := uint64(start) / uint64(size)
	return fmt.Sprintf("%08X%08X%08X", timeline, number/perID, number%perID)
}
