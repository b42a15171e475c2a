package region

import (
	"cmp"
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
	"atoll.dev/envelope"
)

// ErrNoCopy is the error of a region of which the store has no base backup.
var ErrNoCopy = errors.New("the store has no copy of the region")

// Window is a period: the region can be restored to every moment from From to To, by its server's clock.
type Window struct {
	Region string    `json:"region"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
}

// Dirs are the directories that Fetch makes.
type Dirs struct {
	Data  string // data of the server, to be recovered
	WAL   string // segments of the WAL
	Files string // the files, as of the moment
}

// Fetched describes the base backup and the WAL that Fetch has written.
type Fetched struct {
	Manifest Manifest  // of the base backup
	End      LSN       // of the WAL
	Covered  time.Time // recovery to End has every transaction acknowledged before this time
}

// DirectoryLister is the part of a store that finds regions. *backup.S3 is one.
type DirectoryLister interface {
	// ListDirectories returns the text between prefix, which ends with a slash, and the next slash of each name, once
	// for all names with the same text, in the order of their bytes. It leaves out names without another slash.
	ListDirectories(ctx context.Context, prefix string) ([]string, error)
}

// Regions returns the names of the regions that the store has copies of.
func Regions(ctx context.Context, store DirectoryLister) ([]string, error) {
	return store.ListDirectories(ctx, allRegions)
}

// Windows returns the periods to which a region can be restored, the oldest archive first. It skips damaged base
// backups; when all are damaged, it returns the error of one of them.
func Windows(ctx context.Context, store backup.Store, kms envelope.KMS, region string) (all []Window, err error) {
	names, err := store.List(ctx, regionPrefix(region))
	if err != nil {
		return nil, err
	}
	archives, _ := sortContents(region, names)
	r := &restorer{store: store, opener: envelope.NewOpener(kms), region: region}
	var damaged error
	for _, a := range archives {
		k, err := r.readMark(ctx, a)
		if err != nil {
			return nil, err
		}
		var w *Window
		for _, base := range a.bases {
			m, err := r.readManifest(ctx, a, base)
			if errors.Is(err, backup.ErrCorrupt) {
				damaged = err
				continue
			}
			if err != nil {
				return nil, err
			}
			end, covered := coverage(a.pieces, k, m)
			switch {
			case end < m.Complete.Position || covered.Before(m.Complete.Time):
			case w != nil && !m.Complete.Time.After(w.To):
				w.To = laterOf(w.To, covered)
			default:
				all = append(all, Window{region, m.Complete.Time, covered})
				w = &all[len(all)-1]
			}
		}
	}
	if len(all) == 0 {
		return nil, damaged
	}
	return all, nil
}

// readMark reads the mark of an archive. It returns a zero mark when the mark is missing or damaged: no transaction is
// lost without it.
func (r *restorer) readMark(ctx context.Context, a content) (k mark, err error) {
	name := r.prefixOf(a) + markObject
	object, err := r.store.Get(ctx, name)
	if errors.Is(err, backup.ErrNotFound) {
		return mark{}, nil
	}
	if err != nil {
		return mark{}, err
	}
	text, err := r.opener.Open(ctx, name, object)
	if err == nil && json.Unmarshal(text, &k) != nil {
		err = backup.ErrCorrupt
	}
	if errors.Is(err, backup.ErrCorrupt) {
		return mark{}, nil
	}
	return k, err
}

func (r *restorer) readManifest(ctx context.Context, a content, base string) (Manifest, error) {
	return readManifest(ctx, r.store, r.opener, r.prefixOf(a)+base+"/")
}

// prefixOf returns the prefix of the objects of an archive.
func (r *restorer) prefixOf(a content) string { return regionPrefix(r.region) + string(a.name) + "/" }

// coverage returns the end of the WAL that follows a base backup without a gap, and the latest moment to which that WAL
// restores.
func coverage(pieces []Piece, k mark, m Manifest) (end LSN, covered time.Time) {
	end = segmentStart(m.Start, m.SegmentSize)
	for _, p := range pieces {
		if p.Timeline == m.Timeline && p.Start <= end && p.End > end {
			end, covered = p.End, laterOf(covered, p.Covered)
		}
	}
	if k.Position <= end {
		covered = laterOf(covered, k.Time)
	}
	return end, covered
}

// hasAfter reports whether a piece has WAL after a position.
func hasAfter(pieces []Piece, position LSN) bool {
	return slices.ContainsFunc(pieces, func(p Piece) bool { return p.End > position })
}

// lastMoment returns the latest moment that the pieces and the mark of an archive name.
func lastMoment(pieces []Piece, k mark) time.Time {
	last := k.Time
	for _, p := range pieces {
		last = laterOf(last, p.Covered)
	}
	return last
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
func Fetch(ctx context.Context, store backup.Store, kms envelope.KMS, region string, at time.Time, dirs Dirs) (
	f Fetched, err error) {
	names, err := store.List(ctx, regionPrefix(region))
	if err != nil {
		return f, err
	}
	archives, files := sortContents(region, names)
	r := &restorer{store: store, opener: envelope.NewOpener(kms), region: region}
	if err := r.choose(ctx, archives, at); err != nil {
		return f, err
	}
	f = Fetched{Manifest: r.manifest, End: r.end, Covered: r.covered}
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
	if err := r.fetchFiles(ctx, files, at, dirs.Files); err != nil {
		return f, fmt.Errorf("files: %w", err)
	}
	return f, nil
}

// restorer reads the copies of a region. The method choose sets the fields from prefix on.
type restorer struct {
	store    backup.Store
	opener   *envelope.Opener
	region   string
	prefix   string // of the archive
	base     string // "base-TIME"
	pieces   []Piece
	manifest Manifest
	end      LSN // of the WAL
	covered  time.Time
}

// choose finds the latest base backup that restores to a moment; zero means the latest moment. It skips damaged base
// backups, and returns the error of one when no other restores to the moment.
func (r *restorer) choose(ctx context.Context, archives []content, at time.Time) error {
	var first, last time.Time
	var damaged error
	archives, marks, err := r.sortByMoment(ctx, archives)
	if err != nil {
		return err
	}
	for _, a := range archives {
		for _, base := range slices.Backward(a.bases) {
			m, err := r.readManifest(ctx, a, base)
			if errors.Is(err, backup.ErrCorrupt) {
				damaged = err
				continue
			}
			if err != nil {
				return err
			}
			end, covered := coverage(a.pieces, marks[a.name], m)
			if first.IsZero() || m.Complete.Time.Before(first) {
				first = m.Complete.Time
			}
			last = laterOf(last, covered)
			if end < m.Complete.Position { // its own WAL is not stored yet
				continue
			}
			if at.IsZero() && hasAfter(a.pieces, end) {
				return fmt.Errorf("%w: the WAL from %s on is missing, and the store has later WAL; name a moment before %s",
					backup.ErrCorrupt, end, covered.Format(time.RFC3339))
			}
			if at.IsZero() || !at.Before(m.Complete.Time) && !at.After(covered) {
				r.prefix, r.pieces = r.prefixOf(a), a.pieces
				r.base, r.manifest, r.end, r.covered = base, m, end, covered
				return nil
			}
		}
		if at.IsZero() && damaged != nil { // another archive would restore to an earlier moment than the latest
			break
		}
	}
	switch {
	case damaged != nil:
		return damaged
	case first.IsZero():
		return fmt.Errorf("%s: %w", r.region, ErrNoCopy)
	}
	return fmt.Errorf("%w: the copies of %s are from %s to %s, perhaps with gaps", backup.ErrOutside, r.region,
		first.Format(time.RFC3339), last.Format(time.RFC3339))
}

// sameMoment bounds the difference of the last moments of two archives that count as equal: two servers that still
// write do not store at the same second.
const sameMoment = time.Minute

// sortByMoment returns the archives sorted by their last moments, the latest first, and their marks. The time at which
// an archive began decides only between archives that end at the same moment (sameMoment): then the one that began last
// is first. So the short archive of a region that was restored for a test does not come before the region's own.
func (r *restorer) sortByMoment(ctx context.Context, archives []content) ([]content, map[archive]mark, error) {
	marks, moments := map[archive]mark{}, map[archive]time.Time{}
	var latest time.Time
	for _, a := range archives {
		k, err := r.readMark(ctx, a)
		if err != nil {
			return nil, nil, err
		}
		marks[a.name], moments[a.name] = k, lastMoment(a.pieces, k)
		latest = laterOf(latest, moments[a.name])
	}
	for name, moment := range moments {
		if latest.Sub(moment) < sameMoment {
			moments[name] = latest
		}
	}
	sorted := slices.Clone(archives)
	slices.SortFunc(sorted, func(a, b content) int {
		return cmp.Or(moments[b.name].Compare(moments[a.name]), strings.Compare(string(b.name), string(a.name)))
	})
	return sorted, marks, nil
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

// fetchWAL writes the segments of the WAL from the one in which the base backup begins.
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
			break // the WAL has a gap here; r.end is before it
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

// fetchFiles writes the files as of a moment, or the first stored files when those are later.
func (r *restorer) fetchFiles(ctx context.Context, names []string, at time.Time, dir string) error {
	chosen := ""
	for _, name := range names {
		stored, err := timeOf(name, regionPrefix(r.region)+filesPrefix)
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
