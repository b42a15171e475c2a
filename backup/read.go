package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"atoll.dev/envelope"
)

// Chain is a chain as its objects show it.
type Chain struct {
	Name  string
	Taken time.Time // the time in its name, by the clock of the machine that wrote it
	// Order is as the name of an object shows it. The zero value: an earlier version wrote the chain, or the object is
	// lost, or BadOrder is set. Then only the manifest shows which of these it is.
	Order
	// BadOrder is an error when an object of the chain shows no order that can be read, or several objects show one. Its
	// text names them, and the next step. Somebody may have stored such objects who has no keys.
	BadOrder error
	// Segments is the number of segments of the log, from the first one up to the first gap.
	Segments int
	// Whole is false when the log was deleted or its deletion has begun. Then the chain restores only to the second of
	// Taken.
	Whole bool
}

// Chains lists a plane's chains in the order in which they began, as their names show it: those without an order come
// first. Times are in another order when the clock was set back between two chains, or the plane has moved to a machine
// whose clock is behind. Chains without a manifest are left out: they were never finished. Chains reads names only, and
// notices no damage of objects.
func Chains(ctx context.Context, store Store, plane Plane) ([]Chain, error) {
	objects, err := listChains(ctx, store, plane)
	if err != nil {
		return nil, err
	}
	var list []Chain
	for _, o := range objects {
		if !slices.Contains(o.names, manifestObject) {
			continue
		}
		c := o.chain
		for _, name := range o.names { // in order
			if name == segmentName(c.Segments+1) {
				c.Segments++
			}
		}
		// DeleteExpired deletes the mark first, and the first segment before the others.
		c.Whole = c.Segments > 0 || slices.Contains(o.names, markObject)
		list = append(list, c)
	}
	return list, nil
}

// chainObjects are the names of a chain's objects.
type chainObjects struct {
	chain Chain    // without Segments and Whole
	names []string // of the objects, in order
}

// listChains lists the objects of a plane by chain, in the order in which the chains began, as their names show it.
func listChains(ctx context.Context, store Store, plane Plane) (list []chainObjects, err error) {
	names, err := store.List(ctx, plane.prefix())
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		chain, object, ok := splitName(name)
		if !ok {
			continue // not ours
		}
		if n := len(list); n == 0 || list[n-1].chain.Name != chain.Name {
			list = append(list, chainObjects{chain: chain})
		}
		last := &list[len(list)-1]
		last.names = append(last.names, object)
	}
	for i, o := range list {
		c := &list[i].chain
		c.Order, c.BadOrder = orderOf(plane.prefix()+c.Name+"/", o.names)
	}
	slices.SortFunc(list, func(a, b chainObjects) int { return compareChains(a.chain, b.chain) })
	return list, nil
}

// chainReader reads one chain.
type chainReader struct {
	store    Store
	kms      envelope.KMS
	chain    Chain
	prefix   string // of its objects
	manifest Manifest
	key      envelope.DataKey
	checksum []byte // of the manifest's object; nil before it was read
}

func newReader(store Store, keys envelope.KMS, plane Plane, c Chain) *chainReader {
	return &chainReader{store: store, kms: keys, chain: c, prefix: plane.prefix() + c.Name + "/"}
}

// readManifest reads the manifest and the data key; other methods need them.
func (r *chainReader) readManifest(ctx context.Context) error {
	name := r.prefix + manifestObject
	object, err := r.store.Get(ctx, name)
	if err != nil {
		return err
	}
	r.checksum = sha256Of(object)
	if r.manifest, r.key, err = openManifest(ctx, r.kms, name, object); err != nil {
		return err
	}
	if listed, has := r.chain.Order, r.manifest.Order; listed.Generation > 0 && (listed.Generation != has.Generation ||
		!listed.Period.Equal(has.Period)) {
		return fmt.Errorf("%s%s: %w: the chain's manifest has generation %d and period %s: delete the object if nobody "+
			"knows why it is there", r.prefix, listed.objectName(), ErrCorrupt, has.Generation, has.Period.Format(chainTime))
	}
	return nil
}

// fetch writes snapshot and log up to the first sample at or after the moment.
func (r *chainReader) fetch(ctx context.Context, at time.Time, dir string) (got Fetched, err error) {
	c := r.chain
	got = Fetched{Chain: c.Name, Snapshot: filepath.Join(dir, "snapshot"), Log: filepath.Join(dir, "log"),
		Restores: r.manifest.Restores, Release: r.manifest.Release}
	if got.Keys, err = r.readKeys(ctx); err != nil {
		return Fetched{}, err
	}
	objects := newReadAhead(ctx, r.store, r.contentNames())
	defer objects.close()
	if err := r.fetchSnapshot(ctx, objects, got.Snapshot); err != nil {
		return Fetched{}, err
	}
	log, err := os.OpenFile(got.Log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return Fetched{}, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	last, checksum := r.manifest.Start, r.checksum
	for n := 1; ; n++ {
		var m mark
		if n > c.Segments {
			// A follower may store segments meanwhile, which make the mark stale: the mark is read before the segment
			// that may follow.
			if m, err = r.readMark(ctx); err != nil {
				return Fetched{}, err
			}
		}
		s, sealed, err := r.readSegment(ctx, objects, n)
		if errors.Is(err, errMissing) && n > c.Segments {
			until, err := m.idleUntil(n-1, checksum)
			if err != nil {
				return Fetched{}, fmt.Errorf("%s%s: %w", r.prefix, markObject, err)
			}
			if until.After(got.Sample.Time) {
				got.Sample = Sample{Time: until, Revision: last.Revision}
			}
			break
		}
		if err != nil {
			return Fetched{}, err
		}
		if err := s.checkFollows(n, last, checksum); err != nil {
			return Fetched{}, fmt.Errorf("%s%s: %w", r.prefix, segmentName(n), err)
		}
		last, checksum = s.To, sha256Of(sealed)
		got.Sample = s.To
		i := slices.IndexFunc(s.Samples, func(x Sample) bool {
			return !x.Time.Before(at) && !x.Time.Before(r.manifest.Complete.Time)
		})
		found := !at.IsZero() && i >= 0
		if found {
			got.Sample = s.Samples[i]
		}
		events, err := cutEvents(s.events, got.Sample.Revision)
		if err != nil {
			return Fetched{}, fmt.Errorf("%s%s: %w", r.prefix, segmentName(n), err)
		}
		if _, err := log.Write(events); err != nil {
			return Fetched{}, err
		}
		if found {
			return got, nil
		}
	}
	if got.Sample.Time.Before(r.manifest.Complete.Time) { // the log ends before the snapshot, which has later changes
		got.Sample = r.manifest.Complete
	}
	if at.After(got.Sample.Time) {
		return Fetched{Sample: got.Sample}, fmt.Errorf("chain %s restores to %s at the latest, which is before %s: "+
			"name that moment, or none for the latest of all chains: %w", c.Name,
			got.Sample.Time.Format(time.RFC3339Nano), at.Format(time.RFC3339), errAfterChain)
	}
	return got, nil
}

// readEnd reads the manifest and returns the last sample to which the chain restores. When the end of the log cannot be
// read, the sample is the one with which the snapshot is complete, beside the error.
func (r *chainReader) readEnd(ctx context.Context) (Sample, error) {
	c := r.chain
	if err := r.readManifest(ctx); err != nil {
		return Sample{}, err
	}
	end, checksum := r.manifest.Complete, r.checksum
	if c.Segments > 0 {
		s, sealed, err := r.readSegment(ctx, r.store, c.Segments)
		if err != nil {
			return end, err
		}
		end, checksum = later(end, s.To), sha256Of(sealed)
	}
	m, err := r.readMark(ctx)
	if err != nil {
		return end, err
	}
	until, err := m.idleUntil(c.Segments, checksum)
	if errors.Is(err, errMissing) { // the follower has stored more since the list
		err = nil
	}
	if until.After(end.Time) {
		end.Time = until
	}
	return end, err
}

// later returns the sample with the later time and the higher revision of two.
func later(a, b Sample) Sample {
	if b.Time.After(a.Time) {
		a.Time = b.Time
	}
	a.Revision = max(a.Revision, b.Revision)
	return a
}

// readSegment returns a segment and its sealed object. A missing segment is errMissing.
func (r *chainReader) readSegment(ctx context.Context, objects getter, n int) (segment, []byte, error) {
	name := r.prefix + segmentName(n)
	object, err := objects.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return segment{}, nil, fmt.Errorf("%w: %s %w", ErrCorrupt, name, errMissing)
	}
	if err != nil {
		return segment{}, nil, err
	}
	plain, err := r.key.Open(name, object)
	if err != nil {
		return segment{}, nil, err
	}
	s, err := decodeSegment(plain)
	if err != nil {
		return segment{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, object, nil
}

// contentNames returns the names of the parts of the snapshot and of the listed segments, in the order in which fetch
// reads them.
func (r *chainReader) contentNames() []string {
	names := make([]string, 0, len(r.manifest.Parts)+r.chain.Segments)
	for i := range r.manifest.Parts {
		names = append(names, r.prefix+partName(i))
	}
	for n := range r.chain.Segments {
		names = append(names, r.prefix+segmentName(n+1))
	}
	return names
}

// fetchSnapshot writes the snapshot, uncompressed.
func (r *chainReader) fetchSnapshot(ctx context.Context, objects getter, path string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	parts := &partReader{ctx: ctx, store: objects, key: r.key, prefix: r.prefix, parts: r.manifest.Parts, name: partName}
	z, err := zstd.NewReader(parts, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	n, err := io.Copy(f, z)
	if err != nil {
		return err
	}
	if n != r.manifest.Size {
		return fmt.Errorf("%ssnapshot: %w: %d bytes, not %d", r.prefix, ErrCorrupt, n, r.manifest.Size)
	}
	return nil
}

// partReader reads the parts of a snapshot, or of a handover, one after the other.
type partReader struct {
	ctx    context.Context
	store  getter
	key    envelope.DataKey
	prefix string
	parts  []Part
	name   func(int) string // of a part
	next   int
	rest   []byte
}

func (p *partReader) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.next == len(p.parts) {
			return 0, io.EOF
		}
		name := p.prefix + p.name(p.next)
		object, err := p.store.Get(p.ctx, name)
		if errors.Is(err, ErrNotFound) {
			return 0, fmt.Errorf("%w: %s is missing", ErrCorrupt, name)
		}
		if err != nil {
			return 0, err
		}
		if !bytes.Equal(sha256Of(object), p.parts[p.next].SHA256) {
			return 0, fmt.Errorf("%s: %w: its checksum differs", name, ErrCorrupt)
		}
		if p.rest, err = p.key.Open(name, object); err != nil {
			return 0, err
		}
		p.next++
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}
