package ledger

import (
	"slices"
	"strings"

	"atoll.dev/api/work"
)

// Work is one bundle of a consumer in the ledger, for comparison with its agent's list.
type Work struct {
	ID         work.ID
	Generation int64
	Deleting   bool

	Unacknowledged bool // no status of its agent has acknowledged this generation
}

// Comparison is how the works that an agent holds differ from its bundles.
type Comparison struct {
	Send     []Work    // works that the agent lacks, has at an older generation, or must delete
	Received []Work    // works that the agent holds at the wanted generation
	Pending  []Work    // unacknowledged works of Received, at the wanted generation
	Unknown  []work.ID // ids of works that the agent holds and the ledger does not have
}

// Compare compares a consumer's bundles with its agent's list. An empty list is a request
// for all works, as in the original: the agent holds none.
//
// Compare lists works without a bundle and deletes none: absence is never a deletion (I8).
func Compare(ours []Work, theirs []work.SpecVersion) Comparison {
	versions := make(map[work.ID]int64, len(theirs))
	for _, v := range theirs {
		versions[v.ID] = v.Version
	}
	var c Comparison
	for _, h := range ours {
		version, has := versions[h.ID]
		delete(versions, h.ID)
		switch {
		case h.Deleting, !has, version < h.Generation:
			c.Send = append(c.Send, h)
		default:
			c.Received = append(c.Received, Work{ID: h.ID, Generation: version})
			if h.Unacknowledged {
				c.Pending = append(c.Pending, h)
			}
		}
	}
	for id := range versions {
		c.Unknown = append(c.Unknown, id)
	}
	slices.Sort(c.Unknown)
	slices.SortFunc(c.Send, func(a, b Work) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return c
}

// WithoutTombstones returns the unknown works that have no tombstone among these.
func (c *Comparison) WithoutTombstones(tombstones []Work) []work.ID {
	deleted := make(map[work.ID]bool, len(tombstones))
	for _, g := range tombstones {
		deleted[g.ID] = true
	}
	unknown := []work.ID{}
	for _, id := range c.Unknown {
		if !deleted[id] {
			unknown = append(unknown, id)
		}
	}
	return unknown
}
