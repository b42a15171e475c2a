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

// Order is the place of a chain in the order of its plane's chains. A chain is a snapshot of a plane's etcd and the log
// of the changes after it. The order is stored twice: in the name of an object of the chain, so that a list of names
// shows the order of all chains, and in the chain's manifest, which is encrypted and cannot be forged without the keys.
type Order struct {
	// Generation is a counter: each new chain of a plane gets a greater one than all chains that the store has. It does
	// not depend on a clock. 0: a version of Atoll without generations wrote the chain.
	Generation int `json:"generation,omitempty"`
	// Period names a period of the clock by the time that the clock showed when the period began. A period begins when a
	// follower, the process that writes chains, starts, and each time the clock of its machine was set back. So within a
	// period the clock never shows a time twice.
	//
	// The chains of a period have the same value here, and all times in a chain are of its period. Periods of one plane
	// do not overlap: when a chain has another Period and a greater generation than this one, this one's period has
	// ended before that chain began. Zero: a version of Atoll without generations wrote the chain.
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

// orderOf returns the order that the names of a chain's objects show; the zero value when none shows one. objects are
// the names without the prefix that they have in the store; an error shows both. The caller keeps it in Chain.BadOrder.
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

// compareChains orders chains by their generations. Chains without a generation come first. Chains with the same
// generation, or with none, are in the order of their names, which begin with the time at which the chain began.
func compareChains(a, b Chain) int {
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), strings.Compare(a.Name, b.Name))
}

// nextOrder returns what the manifest of the chain that a plane begins now says about the order of chains:
//
//   - next is the order of the new chain. Its generation is one more than the greatest of all chains in the store, also
//     of those that were never finished. Its Period is the given one.
//   - unordered has the names of the chains in the store that have no generation, neither in the name of an object nor
//     in a manifest that can be read. All of them are older than the new chain. A version of Atoll without generations
//     wrote most of them.
//
// nextOrder reads the manifest of the newest chain, and those of the chains whose object names show no order, except
// the ones that the newest chain's manifest lists as unordered.
//
// Somebody who can store objects and has no keys can store a name with a great generation. The sealed manifest of the
// new chain would repeat it, and so would all later ones, until no generation is left. So nextOrder returns an error
// that names the objects to delete, when a chain has the greatest possible generation, or one that no chain can have
// reached since the newest chain whose manifest can be read.
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

// evidence has the facts from which arrange computes the place of a chain.
type evidence struct {
	chain Chain
	// revision is that of etcd with which the chain begins. 0: its manifest was not read.
	revision int64
	// isOlder: the chain has no generation, and the manifest of a chain with one lists it.
	isOlder bool
	damage  error // of a manifest that cannot be read; nil when it was read, and when nobody has read it
}

// read reads the manifest of the chain, and sets revision or damage. When the names of objects show no order of the
// chain, it sets the order that the manifest has. A manifest whose key is missing counts as damaged. The error is that
// of a store or a KMS that does not answer, or that ctx has ended: then the evidence is not changed.
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

// arrange returns chains in the order in which they began. It is a pure function, and compares no times of chains with
// generations:
//
//  1. A chain with a greater generation is later than one with a lesser.
//  2. Of two chains with one generation, the one that begins with the higher revision of etcd is later. Two management
//     clusters can choose one generation: when a plane moves or is recovered, the old one may be taking a snapshot
//     still. The new one goes on from the data of the old one, so its revisions are higher.
//  3. A chain without a generation is of a version of Atoll that wrote none. It is older than all chains with a
//     generation when evidence.isOlder says so. Otherwise such a version ran once more, after the newest chain with a
//     generation had begun: the chain is later than all of these, and begins with the same revision as the newest or a
//     higher one.
//  4. Several chains without a generation are in the order of their names, which begin with their times.
//  5. Chains whose manifests cannot be read, and whose generations are greater than all others, come last. Nothing but
//     their names proves that they are chains of the plane, so they decide nothing about the other chains.
//
// A chain for which these rules give no place is left out, so that it ends no restore: somebody who can store objects
// and has no keys can make such a chain. left has the reason of each, which names the next step. It is one whose
// manifest cannot be read and whose objects show no order, or the same generation as the newest chain, and one that
// contradicts rule 3.
func arrange(list []evidence) (ordered []evidence, left []error) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b evidence) int {
		if a.chain.Generation != b.chain.Generation || a.chain.Generation == 0 {
			return compareChains(a.chain, b.chain)
		}
		return cmp.Or(cmp.Compare(a.revision, b.revision), compareChains(a.chain, b.chain))
	})
	leave := func(e evidence, reason error) { left = append(left, &ChainError{e.chain.Name, reason}) }
	list = slices.DeleteFunc(list, func(e evidence) bool {
		if e.damage == nil || e.chain.BadOrder == nil {
			return false
		}
		leave(e, fmt.Errorf("nothing shows its order: its manifest cannot be read (%w), and %v: delete its objects when the "+
			"manifest is lost", e.damage, e.chain.BadOrder)) // whether the chain may be good is the manifest's error alone
		return true
	})
	end := len(list)
	for end > 0 && list[end-1].damage != nil && list[end-1].chain.Generation > 0 {
		end--
	}
	list, unread := list[:end], list[end:]
	if len(list) == 0 || list[len(list)-1].chain.Generation == 0 {
		return slices.Concat(list, unread), left
	}
	newest := list[len(list)-1]
	var older, numbered, later []evidence
	for _, e := range list {
		switch {
		case e.damage != nil && e.chain.Generation == newest.chain.Generation:
			leave(e, fmt.Errorf("it has the generation of chain %s, and its manifest cannot be read: delete its objects if "+
				"nobody knows why they are there: %w", newest.chain.Name, e.damage))
		case e.chain.Generation > 0:
			numbered = append(numbered, e)
		case e.isOlder:
			older = append(older, e)
		case e.damage != nil:
			leave(e, fmt.Errorf("it shows no order, and its manifest cannot be read: delete its objects if chain %s is newer, "+
				"or nobody knows why they are there: %w", newest.chain.Name, e.damage))
		case e.revision < newest.revision:
			leave(e, fmt.Errorf("%w: an earlier version began it with revision %d, and chain %s, which does not name it, began "+
				"with %d: delete the objects of the older one", ErrCorrupt, e.revision, newest.chain.Name, newest.revision))
		default:
			later = append(later, e)
		}
	}
	return slices.Concat(older, numbered, later, unread), left
}

// chainsAt returns which chains may restore to a moment: chains[from:to]. The chains are in the order in which they
// began. It is a pure function.
//
// The clock of a plane's machine shows a moment twice when it was set back, or when the plane moved to a machine whose
// clock is behind. The later time counts: the plane has changed since the earlier one, and a restore from there would
// lose acknowledged writes. So only the chains of one period (see Order.Period) restore to the moment: those of the
// last period that began at the moment or before. Chains without a Period count as those of one period. Of the chains
// of the period, those that began after the second of the moment are left out.
//
// Chains of the next period follow in the range when they began in the second of the moment, and their period after the
// moment: lists show only the second of a chain, so a caller may mean them.
//
// ok is false when no period began at the moment or before. The range then has chains that began in the second of the
// moment, or none. When ok is true and the range is empty, the period has no chain that began so early, and
// chains[from] is its first one.
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

// Until returns the end of the moments to which chain i of a list restores: later chains restore to that moment and to
// all after it. The list is in the order in which the chains began. Zero: no later chain does, chain i restores up to
// the end of its log.
//
// When the result is not after Chain.Taken, the chain restores to no moment that one can choose: the clock was set back
// after it, and later chains have all its moments. When Chain.BadOrder is set, the result means nothing.
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
