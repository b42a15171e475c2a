package ledger

import (
	"slices"
	"strings"

	"atoll.dev/api/work"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// WorkOf returns the order that a bundle means for its agent.
func WorkOf(d store.Document) delivery.Work {
	return delivery.Work{Consumer: work.Consumer(d.Scope), ID: work.ID(d.ID), Generation: d.Generation,
		Deleting: d.DeletedAt != nil}
}

// WantedWork is a work that an agent should have, for comparison with the agent's list.
type WantedWork struct {
	delivery.Work
	Unacknowledged bool // no status of its agent has acknowledged this generation
}

// Comparison is how the works that an agent holds differ from its bundles.
type Comparison struct {
	Send     []delivery.Work // works that the agent lacks, has at an older generation, or must delete
	Received []delivery.Work // works that the agent holds at the wanted generation
	Pending  []delivery.Work // unacknowledged works of Received, at the wanted generation
	Unknown  []work.ID       // ids of works that the agent holds and the ledger does not have
}

// Compare compares a consumer's bundles with its agent's list. An empty list is a request
// for all works, as in the original: the agent holds none.
//
// Compare lists works without a bundle and deletes none: absence is never a deletion (I8).
func Compare(ours []WantedWork, theirs []work.SpecVersion) Comparison {
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
			c.Send = append(c.Send, h.Work)
		default:
			c.Received = append(c.Received, delivery.Work{Consumer: h.Consumer, ID: h.ID, Generation: version})
			if h.Unacknowledged {
				c.Pending = append(c.Pending, h.Work)
			}
		}
	}
	for id := range versions {
		c.Unknown = append(c.Unknown, id)
	}
	slices.Sort(c.Unknown)
	slices.SortFunc(c.Send, func(a, b delivery.Work) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return c
}

// WithoutTombstones returns the unknown works that have no tombstone among these.
func (c *Comparison) WithoutTombstones(tombstones []delivery.Work) []work.ID {
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
