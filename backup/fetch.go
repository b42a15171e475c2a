package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"atoll.dev/envelope"
)

// Fetched describes the files that Fetch has written.
type Fetched struct {
	Chain    string
	Snapshot string   // file, for atoll-kube restore
	Log      string   // file, for atoll-kube restore
	Sample   Sample   // the files have every write that etcd acknowledged before Sample.Time
	Keys     Keys     // of the plane, as of the snapshot; nil when the chain has none
	Restores []string // orders that the plane had executed when the snapshot was taken
	Release  string   // Manifest.Release
	// Damage has the errors of the other chains that cover the moment and cannot be restored, and of the chains that have
	// no place in the order (see arrange). For the latest moment it has those of later chains whose manifests cannot be
	// opened. nil: there were no such errors. DamagedChains returns the names of the chains.
	Damage error
}

// ChainError is the error of one chain.
type ChainError struct {
	Chain string // its name
	Err   error
}

func (e *ChainError) Error() string { return "chain " + e.Chain + ": " + e.Err.Error() }

// Unwrap returns the error without the name.
func (e *ChainError) Unwrap() error { return e.Err }

// DamagedChains returns the names of the chains that an error of Fetch, or Fetched.Damage, says are damaged. After an
// error of Fetch, too, Fetched.Damage has the chains that it left out.
func DamagedChains(err error) (names []string) {
	if e, ok := err.(*ChainError); ok { //nolint:errorlint // all errors of the tree are looked at
		if errors.Is(e.Err, ErrCorrupt) || errors.Is(e.Err, ErrNotFound) {
			return []string{e.Chain}
		}
		return nil
	}
	switch e := err.(type) { //nolint:errorlint // the same
	case interface{ Unwrap() error }:
		return DamagedChains(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			names = append(names, DamagedChains(err)...)
		}
	}
	return names
}

// ErrOutside is the error of a moment to which no backup restores.
var ErrOutside = errors.New("no backup restores to that moment")

// errAfterChain is the error of a restore to a moment after the end of a chain's log.
var errAfterChain = fmt.Errorf("%w: it is later than the end of the chain's log", ErrOutside)

// Fetch writes the files from which "atoll-kube restore" makes the plane's data as of a moment, into dir. A zero at
// means the latest moment that is stored. Fetch checks each object that it reads.
//
// The latest moment is that of the last chain in the order of chains (see arrange), which no clock decides. Another
// moment is one that the clock of the plane's machine showed. When that clock was set back, or the plane moved to a
// machine whose clock is behind, the clock showed some moments twice: then the later one is restored, so that every
// write is there that was acknowledged while the clock showed an earlier time. Fetch returns ErrOutside when the
// later one is not stored.
//
// A list shows only the second in which a chain began; the chain's first sample is a little later. When no earlier
// chain restores to a moment between that second and the first sample, Fetch restores to the first sample.
//
// While a chain begins, the chain before it goes on, so two chains restore to some moments. Fetch tries these, the
// newest first, and returns the errors of damaged ones in Fetched.Damage. When all fail, the error is ErrCorrupt or
// ErrNotFound, or ErrOutside when the moment is after the end of a log. Any other error, such as that of a store that
// does not answer or of a missing key, ends Fetch at once.
//
// For the latest moment Fetch takes the last chain whose manifest opens, and names the later ones: somebody who can
// store objects and has no keys can make a chain that looks like the last one. When that chain opens and its data is
// damaged or incomplete, Fetch returns the error and takes no older chain: writes would be missing. It also takes none
// when the key of a later chain is missing here, because the chain may be good.
//
// A damaged chain that has no place in the order is left out, for every moment, and named in Fetched.Damage or in the
// error. When only its key is missing here, Fetch returns that error: the chain may be good.
func Fetch(ctx context.Context, store Store, kms envelope.KMS, plane Plane, at time.Time, dir string) (Fetched, error) {
	readers, leftOut, err := openChains(ctx, store, kms, plane)
	if err != nil {
		return Fetched{}, fmt.Errorf("plane %s: %w", plane, err)
	}
	for _, err := range leftOut {
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotFound) {
			return Fetched{}, fmt.Errorf("plane %s: %w", plane, err)
		}
	}
	got, err := fetchFrom(ctx, readers, plane, at, dir)
	switch {
	case len(leftOut) == 0:
		return got, err
	case err != nil && len(readers) == 0:
		return Fetched{}, fmt.Errorf("plane %s: no chain of its backup can be restored: %w", plane, errors.Join(leftOut...))
	case err != nil: // the chains that are left out say nothing about the kind of err
		err = fmt.Errorf("%w (left out: %v)", err, errors.Join(leftOut...))
	}
	got.Damage = errors.Join(got.Damage, errors.Join(leftOut...))
	return got, err
}

// fetchFrom fetches a moment, or the latest one, from chains in the order in which they began.
func fetchFrom(ctx context.Context, readers []*chainReader, plane Plane, at time.Time, dir string) (Fetched, error) {
	if len(readers) == 0 {
		return Fetched{}, fmt.Errorf("plane %s: no backup of it is in the store: %w", plane, ErrOutside)
	}
	if at.IsZero() {
		return fetchLatest(ctx, readers, dir)
	}
	chains := make([]Chain, len(readers))
	for i, r := range readers {
		chains[i] = r.chain
	}
	from, to, ok := chainsAt(chains, at)
	switch {
	case from == to && !ok:
		oldest := slices.MinFunc(chains, func(a, b Chain) int { return a.Taken.Compare(b.Taken) })
		return Fetched{}, fmt.Errorf("plane %s: the oldest backup is of %s: %w", plane,
			oldest.Taken.Format(time.RFC3339), ErrOutside)
	case from == to:
		return Fetched{}, fmt.Errorf("plane %s: the backup began again at %s, and its first snapshot since is of %s: name "+
			"that moment, or one before the beginning: %w", plane, chains[from].Period.Format(time.RFC3339),
			chains[from].Taken.Format(time.RFC3339), ErrOutside)
	}
	got, err := fetchMoment(ctx, readers[from:to], at, dir)
	if err != nil {
		return Fetched{}, fmt.Errorf("plane %s: %w", plane, err)
	}
	return got, nil
}

// openChains returns the readers of a plane's chains in the order in which they began, and why it has left out others
// (see arrange). It reads only the manifests that arrange needs: none when the names show a generation of each chain,
// and no two chains have the same.
func openChains(ctx context.Context, store Store, kms envelope.KMS, plane Plane) (ordered []*chainReader, left []error,
	err error) {
	chains, err := Chains(ctx, store, plane)
	if err != nil || len(chains) == 0 {
		return nil, nil, err
	}
	readers, known := map[string]*chainReader{}, make([]evidence, len(chains))
	for i, c := range chains {
		readers[c.Name] = newReader(store, kms, plane, c)
		known[i].chain = c
	}
	older := map[string]bool{} // names in the list Unordered of another chain
	read := func(e *evidence) error {
		r := readers[e.chain.Name]
		err := e.read(ctx, r)
		for _, name := range r.manifest.Unordered {
			older[name] = true
		}
		return err
	}
	// When the object names of a chain show no generation, its manifest may have one. Otherwise the list Unordered in the
	// manifest of the newest readable chain may have the name of the chain. So both are read.
	lacksGeneration, needsNewest := chains[0].Generation == 0, true
	for i := range slices.Backward(known) {
		if e := &known[i]; lacksGeneration && (needsNewest || e.chain.Generation == 0) {
			if err := read(e); err != nil {
				return nil, nil, err
			}
			needsNewest = needsNewest && e.damage != nil
		}
	}
	slices.SortFunc(known, func(a, b evidence) int { return compareChains(a.chain, b.chain) })
	for i := range known {
		e := &known[i]
		if isRead := e.revision > 0 || e.damage != nil; !isRead && sharesGeneration(known, i) {
			if err := read(e); err != nil {
				return nil, nil, err
			}
		}
	}
	for i := range known {
		known[i].isOlder = older[known[i].chain.Name]
	}
	known, left = arrange(known)
	for _, e := range known {
		r := readers[e.chain.Name]
		r.chain.Order = e.chain.Order
		ordered = append(ordered, r)
	}
	return ordered, left, nil
}

// sharesGeneration reports whether another chain of the list has the generation of chain i. The list must be sorted by
// generations.
func sharesGeneration(list []evidence, i int) bool {
	generation := list[i].chain.Generation
	return i > 0 && list[i-1].chain.Generation == generation ||
		i+1 < len(list) && list[i+1].chain.Generation == generation
}

// fetchLatest fetches the latest moment that is stored: that of the last chain whose manifest opens.
func fetchLatest(ctx context.Context, chains []*chainReader, dir string) (Fetched, error) {
	var skipped []error
	for _, r := range slices.Backward(chains) {
		err := r.readManifest(ctx)
		if err == nil {
			got, err := fetchEnd(ctx, chains, dir)
			got.Damage = errors.Join(skipped...)
			return got, err
		}
		if !errors.Is(err, errNotOpened) {
			return Fetched{}, &ChainError{r.chain.Name, err}
		}
		skipped = append(skipped, r.damage(err))
		chains = chains[:len(chains)-1]
	}
	return Fetched{}, errors.Join(skipped...)
}

// damage returns the error of a chain that does not restore to a moment that it should have. Of a chain whose manifest
// cannot be opened it says the next step: somebody without the keys may have planted it.
func (r *chainReader) damage(err error) error {
	if errors.Is(err, errNotOpened) {
		err = fmt.Errorf("%w; delete the objects below %s if nobody knows why they are there", err, r.prefix)
	}
	return &ChainError{r.chain.Name, err}
}

// fetchEnd fetches the latest moment of the chains. The caller has read the manifest of the last chain.
func fetchEnd(ctx context.Context, chains []*chainReader, dir string) (Fetched, error) {
	last := len(chains) - 1
	got, err := chains[last].fetch(ctx, time.Time{}, dir)
	if err != nil {
		return Fetched{}, &ChainError{chains[last].chain.Name, err}
	}
	// When the last chain was interrupted soon after its beginning, the newest earlier chain with a log may end later
	// than it. Chains of an earlier period cannot: they had ended when this period began.
	for _, earlier := range slices.Backward(chains[:last]) {
		if !earlier.chain.Period.Equal(chains[last].chain.Period) {
			return got, nil
		}
		if !earlier.chain.Whole {
			continue
		}
		end, err := earlier.readEnd(ctx)
		if err != nil && !chains[last].chain.Whole { // the end of the earlier chain is unknown and may be later
			return Fetched{}, &ChainError{earlier.chain.Name, err}
		}
		if err != nil || !end.Time.After(got.Sample.Time) {
			return got, nil
		}
		return earlier.fetch(ctx, time.Time{}, dir)
	}
	return got, nil
}

// fetchMoment fetches a moment. The chains are the result of chainsAt, the oldest first. fetchMoment tries those
// whose snapshot was complete at the moment, the newest first. When none of them restores to the moment, it tries
// those whose snapshot was complete only later, the oldest first, and restores to their first sample.
func fetchMoment(ctx context.Context, chains []*chainReader, at time.Time, dir string) (Fetched, error) {
	var beginnings []*chainReader // chains that are complete only after the moment, the newest first
	var f failures
search:
	for _, r := range slices.Backward(chains) {
		hasFailures := f.any()
		if hasFailures && !r.chain.Whole { // a chain without a log restores only to its own second
			continue
		}
		to, err := at, r.readManifest(ctx)
		isNamedSecond := !r.chain.Whole && r.chain.Taken.Truncate(time.Second).Equal(at.Truncate(time.Second))
		switch {
		case err != nil:
		case isNamedSecond: // lists show the second of the chain's name as its moment
			to = r.manifest.Complete.Time
		case r.manifest.Complete.Time.After(at):
			beginnings = append(beginnings, r)
			continue
		case hasFailures:
			var end Sample
			if end, err = r.readEnd(ctx); err == nil && end.Time.Before(at) {
				break search // all earlier chains end before the moment, too
			}
		}
		var got Fetched
		if err == nil {
			got, err = r.fetch(ctx, to, dir)
		}
		if err == nil {
			got.Damage = errors.Join(f.damage...)
			return got, nil
		}
		if err := f.note(r, err); err != nil {
			return Fetched{}, err
		}
	}
	for _, r := range slices.Backward(beginnings) {
		got, err := r.fetch(ctx, r.manifest.Complete.Time, dir)
		if err == nil {
			got.Damage = errors.Join(f.damage...)
			return got, nil
		}
		if err := f.note(r, err); err != nil {
			return Fetched{}, err
		}
		f.isTooLate = false
	}
	return Fetched{}, f.err()
}

// failures are the errors of the chains that do not restore to a moment.
type failures struct {
	damage    []error // of chains that may have the moment
	outside   error   // of the newest chain that ends before the moment; nil when none does
	isTooLate bool    // outside is of a chain with a log, and no chain failed that begins after the moment
}

func (f *failures) any() bool { return f.outside != nil || len(f.damage) > 0 }

// note keeps the error of a chain as damage or as outside. It keeps nothing and returns the error when that shows
// nothing about the chain, such as that of a store that does not answer.
func (f *failures) note(r *chainReader, err error) error {
	switch {
	case errors.Is(err, errAfterChain):
		if f.outside == nil {
			f.outside, f.isTooLate = err, r.chain.Whole
		}
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrNotFound):
		f.damage = append(f.damage, r.damage(err))
	default:
		return &ChainError{r.chain.Name, err}
	}
	return nil
}

// err returns outside when no chain is damaged, or when isTooLate is true; otherwise the damage.
func (f *failures) err() error {
	if len(f.damage) == 0 || f.isTooLate {
		return f.outside
	}
	return errors.Join(f.damage...)
}
