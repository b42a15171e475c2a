package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"atoll.dev/envelope"
	"atoll.dev/envelope/kms"
)

// Order is the place of a chain in the order of its plane's chains. The name of an object of the chain has it, so that
// a list of names shows the order, and so has the manifest, which nobody can change.
type Order struct {
	// Generation is a counter: a follower that has the plane gives a chain a greater one than all chains before it have.
	// It never goes back, whatever clocks show. 0: an earlier version wrote the chain.
	Generation int `json:"generation,omitempty"`
	// Period is the time at which a period of the clock began: one follower ran, and the clock of its machine was not set
	// back. All times of the chain are of this period. Every chain with a greater generation and another Period began
	// after this period had ended. Zero: an earlier version wrote the chain.
	Period time.Time `json:"period,omitzero"`
}

const (
	// maxGeneration bounds generations: a chain each minute reaches it in 190 years.
	maxGeneration = 99_999_999
	// unsealedLimit is by how much the greatest generation in a name may exceed the greatest one in a manifest that can
	// be read, in addition to 1 for each chain between. More than that count only chains that expired or were deleted
	// while no manifest could be read: 700 in four weeks. A forged name just below it each hour uses up the generations
	// in a year.
	unsealedLimit = 10_000
)

var orderName = regexp.MustCompile(`^order-(\d{8})-(\d{8}T\d{6}\.\d{3}Z)$`)

// objectName returns the name of the chain's object that shows the order.
func (o Order) objectName() string {
	return fmt.Sprintf("%s%08d-%s", orderPrefix, o.Generation, o.Period.UTC().Format(chainTime))
}

// parseOrder returns the order that the name of an object shows.
func parseOrder(object string) (o Order, err error) {
	m := orderName.FindStringSubmatch(object)
	if m == nil {
		return o, fmt.Errorf("%q shows no order of chains", object)
	}
	if o.Generation, err = strconv.Atoi(m[1]); err != nil || o.Generation == 0 {
		return Order{}, fmt.Errorf("%q shows no generation", object)
	}
	o.Period, err = time.Parse(chainTime, m[2])
	return o, err
}

// orderOf returns the order that the names of a chain's objects show; the zero value when none shows one. prefix is
// that of the names in the store. The error, beside the zero value, is Chain.BadOrder.
func orderOf(prefix string, objects []string) (o Order, err error) {
	found := ""
	for _, name := range objects {
		if !strings.HasPrefix(name, orderPrefix) {
			continue
		}
		if found != "" {
			return Order{}, fmt.Errorf("%w: %s%s and %s show two orders of one chain: delete both, the manifest beside them "+
				"has the order", ErrCorrupt, prefix, found, name)
		}
		if o, err = parseOrder(name); err != nil {
			return Order{}, fmt.Errorf("%w: %s%s: %w: delete it, the manifest beside it has the order", ErrCorrupt, prefix,
				name, err)
		}
		found = name
	}
	return o, nil
}

// compareChains compares chains by their generations. Those of an earlier version come first, in the order of their
// names, which begin with their times: nothing else shows the order of these.
func compareChains(a, b Chain) int {
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), strings.Compare(a.Name, b.Name))
}

// nextOrder returns the order of the chain that a plane begins now. Its generation is one more than the greatest of all
// chains in the store, also of those that were never finished.
//
// unordered has the names of the chains whose generations nothing shows: neither the name of an object, nor the
// manifest. Earlier versions wrote most of them. The manifest of the new chain lists them as older (see arrange).
//
// It reads the manifest of the newest chain, and those of the chains whose names show no order, except the ones that
// the newest chain lists already.
//
// Somebody who can store objects and has no keys can make a name with a great generation. A new chain with a greater
// one would repeat it in its sealed manifest for ever, until no generation is left. So it is an error that names the
// chain and the next step when its generation is the greatest possible one, or no chain can have got so far since the
// newest one whose manifest can be read.
func nextOrder(ctx context.Context, store Store, keys envelope.KMS, plane Plane, period time.Time) (next Order,
	unordered []string, err error) {
	list, err := listChains(ctx, store, plane)
	if err != nil {
		return Order{}, nil, err
	}
	var last Chain                            // with the greatest generation
	sealed := 0                               // the greatest generation in a manifest
	unsealed := 0                             // the number of chains whose names show a greater one
	older := map[string]bool{}                // chains that the newest one lists
	for _, o := range slices.Backward(list) { // those whose names show no order come last
		e := evidence{chain: o.chain}
		isShown := e.chain.Generation > 0
		isNeeded := isShown && sealed == 0 || !isShown && !older[e.chain.Name]
		hasManifest := slices.Contains(o.names, manifestObject)
		if isNeeded && hasManifest {
			r := newReader(store, keys, plane, o.chain)
			if err := e.read(ctx, r); err != nil {
				return Order{}, nil, err
			}
			for _, name := range r.manifest.Unordered {
				older[name] = true
			}
		}
		switch {
		case e.chain.Generation == 0:
			unordered = append(unordered, e.chain.Name)
		case isNeeded && hasManifest && e.damage == nil:
			sealed = max(sealed, e.chain.Generation)
		case sealed == 0:
			unsealed++
		}
		if e.chain.Generation > last.Generation {
			last = e.chain
		}
	}
	slices.Sort(unordered)
	prefix := plane.prefix() + last.Name + "/"
	switch most := sealed + unsealed + unsealedLimit; {
	case last.Generation == maxGeneration:
		return Order{}, nil, fmt.Errorf("%s%s: %w: no generation is left after this one: delete the objects of the chain",
			prefix, last.objectName(), ErrCorrupt)
	case sealed > 0 && last.Generation > most:
		return Order{}, nil, fmt.Errorf("%s%s: %w: no chain can have a generation above %d: delete the objects below %s",
			prefix, last.objectName(), ErrCorrupt, most, prefix)
	}
	return Order{Generation: last.Generation + 1, Period: period}, unordered, nil
}

// evidence is what a store shows about the place of a chain.
type evidence struct {
	chain Chain
	// revision is the one with which the chain begins; 0: its manifest was not read.
	revision int64
	// isOlder: the manifest of a chain with a generation names it in Unordered.
	isOlder bool
	damage  error // of a manifest that cannot be read; nil when it was read, or need not be
}

// read reads the manifest of the chain. A chain whose order object is lost gets the order of its manifest. A manifest
// whose key is missing counts as damaged. The error is that of a store or a KMS that does not answer, or that ctx has
// ended: then the evidence is not changed.
func (e *evidence) read(ctx context.Context, r *chainReader) error {
	err := r.readManifest(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, kms.ErrUnavailable):
		return err
	case err != nil && (r.checksum != nil || errors.Is(err, ErrNotFound)):
		e.damage = err
		return nil
	case err != nil:
		return err
	}
	e.revision = r.manifest.Start.Revision
	if e.chain.Generation == 0 {
		e.chain.Order = r.manifest.Order
	}
	return nil
}

// arrange returns chains in the order in which they began. It is a pure function, and reads no clock:
//
//  1. A greater generation is later.
//  2. Of two chains with one generation the one that begins with the higher revision is later. An owner that was
//     superseded while it took its snapshot has the generation of the next owner at most, whose revisions are higher.
//  3. A chain without a generation is older than all others when the chain with the greatest generation names it. Else
//     an earlier version has written it since, and it is later: it begins with no lower revision.
//  4. Chains without a generation are in the order of their names among themselves.
//
// The error is ErrCorrupt when that leaves two chains of which each may be the newest. It names the next step.
func arrange(list []evidence) ([]evidence, error) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b evidence) int {
		if a.chain.Generation != b.chain.Generation || a.chain.Generation == 0 {
			return compareChains(a.chain, b.chain)
		}
		return cmp.Or(cmp.Compare(a.revision, b.revision), compareChains(a.chain, b.chain))
	})
	for _, e := range list {
		if e.damage != nil && e.chain.BadOrder != nil {
			return nil, fmt.Errorf("nothing shows the order of chain %s: its manifest cannot be read (%w), and %w: delete its "+
				"objects when the manifest is lost", e.chain.Name, e.damage, e.chain.BadOrder)
		}
	}
	if len(list) == 0 || list[len(list)-1].chain.Generation == 0 {
		return list, nil
	}
	newest := list[len(list)-1]
	for _, e := range list {
		if e.damage != nil && e.chain.Name != newest.chain.Name && e.chain.Generation == newest.chain.Generation {
			return nil, fmt.Errorf("chains %s and %s have the same generation, and the manifest of the first cannot be read: "+
				"delete the objects of the first if the second is newer: %w", e.chain.Name, newest.chain.Name, e.damage)
		}
	}
	var older, ordered, later []evidence
	for _, e := range list {
		switch {
		case e.chain.Generation > 0:
			ordered = append(ordered, e)
		case e.isOlder:
			older = append(older, e)
		case e.damage != nil:
			return nil, fmt.Errorf("chain %s shows no order, and its manifest cannot be read: delete its objects if chain %s "+
				"is newer: %w", e.chain.Name, newest.chain.Name, e.damage)
		case e.revision < newest.revision:
			return nil, fmt.Errorf("%w: chain %s of an earlier version began with revision %d, and chain %s, which does not "+
				"name it, with %d: delete the objects of the older one", ErrCorrupt, e.chain.Name, e.revision, newest.chain.Name,
				newest.revision)
		default:
			later = append(later, e)
		}
	}
	return slices.Concat(older, ordered, later), nil
}

// chainsAt returns the range of the chains, which are in order, that may restore to a moment: those of the last period
// of the clock that began before it, and of these the ones that began in the second of the moment or before. It is a
// pure function.
//
// A period that began before the moment hides all earlier periods. When the clock showed the moment in one of them,
// too, the plane has changed since, and a restore from there would lose acknowledged writes. A later period whose first
// chain began in the second of the moment hides nothing: its chain is in the range as the last one.
//
// from and to are equal when no chain began so early. ok shows that a period did: from is then its first chain.
func chainsAt(chains []Chain, at time.Time) (from, to int, ok bool) {
	isAfter := func(c Chain) bool { return c.Taken.Truncate(time.Second).After(at) }
	last := len(chains) - 1
	for ; last >= 0; last-- {
		c := chains[last]
		if c.Period.IsZero() && !isAfter(c) || !c.Period.IsZero() && !c.Period.After(at) {
			break
		}
	}
	from, to = max(last, 0), last+1
	for from > 0 && chains[from-1].Period.Equal(chains[from].Period) {
		from--
	}
	for to > from && isAfter(chains[to-1]) {
		to--
	}
	if to == last+1 {
		for to < len(chains) && !isAfter(chains[to]) {
			to++
		}
	}
	return from, to, last >= 0
}

// Until returns the moment from which on later chains restore, instead of chain i of a list in order; zero when there
// is none. A moment that is not after Chain.Taken shows that the chain restores to no chosen moment any more: the clock
// was set back, and later chains have all its moments.
func Until(chains []Chain, i int) (until time.Time) {
	for _, c := range chains[i+1:] {
		begun := c.Period
		if c.Period.IsZero() || c.Period.Equal(chains[i].Period) {
			begun = c.Taken
		}
		if until.IsZero() || begun.Before(until) {
			until = begun
		}
	}
	return until
}

// clock notices when the clock of the machine was set back. The caller serializes calls.
type clock struct {
	now    func() (wall, mono time.Time) // reads both clocks, see bothClocks
	wall   time.Time                     // the last reading of the wall clock
	mono   time.Time                     // the same of the monotonic clock
	period time.Time                     // Order.Period; zero: the next reading begins a period
}

// bothClocks reads the wall clock and the monotonic clock.
func bothClocks() (wall, mono time.Time) {
	now := time.Now()
	return now.UTC().Round(0), now
}

// reading is a time, and the period to which it belongs.
type reading struct{ now, period time.Time }

const (
	// unseen bounds the step of a clock that is not noticed.
	unseen = time.Millisecond
	// readTries bounds the readings until the two clocks agree. They are read one after the other, and when the thread
	// does not run in between, the wall clock seems to be late.
	readTries = 3
)

// read reads the clocks. The wall clock was set back when it has advanced by less than the monotonic clock since the
// last reading. The new period can have begun right after that reading, and so much before now.
func (c *clock) read() reading {
	wall, mono := c.now()
	for try := 1; try < readTries && c.isSetBack(wall, mono); try++ {
		wall, mono = c.now()
	}
	switch {
	case c.period.IsZero():
		c.period = wall.Truncate(time.Millisecond)
	case c.isSetBack(wall, mono):
		c.period = wall.Add(-mono.Sub(c.mono)).Truncate(time.Millisecond)
	}
	c.wall, c.mono = wall, mono
	return reading{now: wall, period: c.period}
}

func (c *clock) isSetBack(wall, mono time.Time) bool {
	return wall.Before(c.wall) || wall.Sub(c.wall) < mono.Sub(c.mono)-unseen
}
