package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"atoll.dev/backup"
)

// ErrNoCopy is the error of a region of which the store has no base backup.
var ErrNoCopy = errors.New("the store has no copy of the region")

// Window is the time to which a region can be restored, by its server's clock.
type Window struct {
	Region string    `json:"region"`
	From   time.Time `json:"from"` // every moment from From to To
	To     time.Time `json:"to"`
}

// Dirs are the directories that Fetch makes.
type Dirs struct {
	Data  string // data of the server, to be recovered
	WAL   string // segments of the WAL
	Files string // the files, as of the moment
}

// Fetched describes what Fetch has written.
type Fetched struct {
	Manifest Manifest  // of the base backup
	Covered  time.Time // recovery to the end of the WAL has every transaction acknowledged before
}

// Regions returns the names of the regions that the store has copies of.
func Regions(ctx context.Context, store backup.Store) (regions []string, err error) {
	names, err := store.List(ctx, allRegions)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		region, _, _ := strings.Cut(strings.TrimPrefix(name, allRegions), "/")
		if len(regions) == 0 || regions[len(regions)-1] != region {
			regions = append(regions, region)
		}
	}
	return regions, nil
}

// Windows returns the times to which a region can be restored, one for each archive, the oldest first.
func Windows(ctx context.Context, store backup.Store, kms backup.KMS, region string) (all []Window, err error) {
	names, err := store.List(ctx, regionPrefix(region))
	if err != nil {
		return nil, err
	}
	opener := backup.NewOpener(kms)
	archives, _ := sortContents(region, names)
	for _, a := range archives {
		if len(a.bases) == 0 {
			continue
		}
		prefix := regionPrefix(region) + string(a.name) + "/"
		m, err := readManifest(ctx, store, opener, prefix+a.bases[0]+"/")
		if err != nil {
			return nil, err
		}
		end, covered, err := coverage(ctx, store, opener, prefix, a.pieces, m)
		if err != nil {
			return nil, err
		}
		if end >= m.Complete.Position && !covered.Before(m.Complete.Time) {
			all = append(all, Window{region, m.Complete.Time, covered})
		}
	}
	return all, nil
}

// coverage returns how far the WAL reaches from a base backup on without a gap, and the moment that it covers.
func coverage(ctx context.Context, store backup.Store, opener *backup.Opener, prefix string, pieces []Piece,
	m Manifest) (end LSN, covered time.Time, err error) {
	end = segmentStart(m.Start, m.SegmentSize)
	for _, p := range pieces {
		if p.Timeline == m.Timeline && p.Start <= end && p.End > end {
			end, covered = p.End, laterOf(covered, p.Covered)
		}
	}
	object, err := store.Get(ctx, prefix+markObject)
	if errors.Is(err, backup.ErrNotFound) {
		return end, covered, nil
	}
	if err != nil {
		return 0, covered, err
	}
	text, err := opener.Open(ctx, prefix+markObject, object)
	if err != nil {
		return 0, covered, err
	}
	var k mark
	if err := json.Unmarshal(text, &k); err != nil {
		return 0, covered, fmt.Errorf("%s: %w: %w", prefix+markObject, backup.ErrCorrupt, err)
	}
	if k.Position <= end {
		covered = laterOf(covered, k.Time)
	}
	return end, covered, nil
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Fetch writes a base backup, the WAL after it and the files into directories that do not exist yet, for a restore to a
// moment; zero means the latest that is stored. Every object is checked: the error is backup.ErrCorrupt when one is
// damaged or missing, backup.ErrOutside when no base backup restores to the moment, and ErrNoCopy when there is none.
func Fetch(ctx context.Context, store backup.Store, kms backup.KMS, region string, at time.Time, dirs Dirs) (
	f Fetched, err error) {
	names, err := store.List(ctx, regionPrefix(region))
	if err != nil {
		return f, err
	}
	archives, files := sortContents(region, names)
	opener := backup.NewOpener(kms)
	r := &restorer{store: store, opener: opener}
	if err := r.choose(ctx, region, archives, at); err != nil {
		return f, err
	}
	f = Fetched{Manifest: r.manifest, Covered: r.covered}
	for _, d := range []string{dirs.Data, dirs.WAL, dirs.Files} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return f, err
		}
	}
	if err := r.fetchBase(ctx, dirs.Data); err != nil {
		return f, fmt.Errorf("base backup: %w", err)
	}
	if err := r.fetchWAL(ctx, dirs.WAL); err != nil {
		return f, fmt.Errorf("WAL: %w", err)
	}
	if err := r.fetchFiles(ctx, region, files, at, dirs.Files); err != nil {
		return f, fmt.Errorf("files: %w", err)
	}
	return f, nil
}

// restorer reads one base backup and the WAL after it.
type restorer struct {
	store    backup.Store
	opener   *backup.Opener
	prefix   string // of the archive
	base     string // "base-TIME"
	pieces   []Piece
	manifest Manifest
	end      LSN // of the WAL
	covered  time.Time
}

// choose finds the latest base backup that restores to a moment.
func (r *restorer) choose(ctx context.Context, region string, archives []content, at time.Time) error {
	var first, last time.Time
	for _, a := range slices.Backward(archives) {
		r.prefix, r.pieces = regionPrefix(region)+string(a.name)+"/", a.pieces
		for _, base := range slices.Backward(a.bases) {
			m, err := readManifest(ctx, r.store, r.opener, r.prefix+base+"/")
			if err != nil {
				return err
			}
			end, covered, err := coverage(ctx, r.store, r.opener, r.prefix, a.pieces, m)
			if err != nil {
				return err
			}
			first, last = m.Complete.Time, laterOf(last, covered)
			if end < m.Complete.Position { // its own WAL is not stored yet
				continue
			}
			if at.IsZero() || !at.Before(m.Complete.Time) && !at.After(covered) {
				r.base, r.manifest, r.end, r.covered = base, m, end, covered
				return nil
			}
		}
	}
	if first.IsZero() {
		return fmt.Errorf("%s: %w", region, ErrNoCopy)
	}
	return fmt.Errorf("%w: the copies of %s are from %s to %s, perhaps with gaps", backup.ErrOutside, region,
		first.Format(time.RFC3339), last.Format(time.RFC3339))
}

// fetchBase writes the data of the base backup.
func (r *restorer) fetchBase(ctx context.Context, dir string) error {
	read, write := io.Pipe()
	go func() { write.CloseWithError(r.writeParts(ctx, write)) }()
	defer read.Close()
	d, err := zstd.NewReader(read, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer d.Close()
	return extract(d, dir)
}

func (r *restorer) writeParts(ctx context.Context, w io.Writer) error {
	for n := range r.manifest.Parts {
		text, err := readObject(ctx, r.store, r.opener, r.prefix+r.base+"/"+partName(n))
		if err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// fetchWAL writes the segments from the beginning of the base backup's first one to the end of the WAL.
func (r *restorer) fetchWAL(ctx context.Context, dir string) error {
	size, timeline := r.manifest.SegmentSize, r.manifest.Timeline
	at := segmentStart(r.manifest.Start, size)
	w := &segmentWriter{dir: dir, timeline: timeline, size: size, at: at}
	defer w.abort()
	for _, p := range r.pieces {
		if p.Timeline != timeline || p.End <= w.at {
			continue
		}
		if p.Start > w.at {
			break // after a gap; choose has taken the end before it
		}
		packed, err := readObject(ctx, r.store, r.opener, r.prefix+p.name())
		if err != nil {
			return err
		}
		text, err := decompress(packed)
		if err != nil || LSN(len(text)) != p.End-p.Start {
			return fmt.Errorf("%s: %w: it has %d bytes", r.prefix+p.name(), backup.ErrCorrupt, len(text))
		}
		if err := w.write(text[w.at-p.Start:]); err != nil {
			return err
		}
	}
	if w.at < r.end {
		return fmt.Errorf("%w: the WAL ends at %s, not at %s", backup.ErrCorrupt, w.at, r.end)
	}
	return w.close()
}

// fetchFiles writes the files as of a moment, or the first that were stored when those came later.
func (r *restorer) fetchFiles(ctx context.Context, region string, names []string, at time.Time, dir string) error {
	chosen := ""
	for _, name := range names {
		stored, err := timeOf(name, regionPrefix(region)+filesPrefix)
		if err != nil {
			return fmt.Errorf("%w: %s", backup.ErrCorrupt, name)
		}
		if chosen == "" || at.IsZero() || !stored.After(at) {
			chosen = name
		}
	}
	if chosen == "" {
		return nil
	}
	packed, err := readObject(ctx, r.store, r.opener, chosen)
	if err != nil {
		return err
	}
	text, err := decompress(packed)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", chosen, backup.ErrCorrupt, err)
	}
	return extract(strings.NewReader(string(text)), dir)
}
