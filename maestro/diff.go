package maestro

import (
	"slices"
	"strings"

	"atoll.dev/api/work"
)

// held is one bundle of a consumer as the server has it, for comparison with
// what its agent says it holds.
type held struct {
	id         string
	generation int64
	deleting   bool

	unacknowledged bool // no status of its agent has acknowledged this generation
}

// A comparison says what a spec resync request comes to.
type comparison struct {
	send     []held   // the agent lacks these, holds them older, or they are to go
	received []held   // the agent holds these as they are wanted
	pending  []held   // those of received that are not acknowledged, at the generation that is wanted
	unknown  []string // the agent holds these and the server has no record of them
}

// compareSpecs compares a consumer's bundles with its agent's list. An empty
// list asks for everything, as in the original; an agent that holds nothing
// wants just that.
//
// What the server does not know is listed, not ordered away: absence is never
// a deletion (I8).
func compareSpecs(ours []held, theirs []work.SpecVersion) comparison {
	versions := make(map[string]int64, len(theirs))
	for _, v := range theirs {
		versions[v.ID] = v.Version
	}
	var c comparison
	for _, h := range ours {
		version, has := versions[h.id]
		delete(versions, h.id)
		switch {
		case h.deleting, !has, version < h.generation:
			c.send = append(c.send, h)
		default:
			c.received = append(c.received, held{id: h.id, generation: version})
			if h.unacknowledged {
				c.pending = append(c.pending, h)
			}
		}
	}
	for id := range versions {
		c.unknown = append(c.unknown, id)
	}
	slices.Sort(c.unknown)
	slices.SortFunc(c.send, func(a, b held) int { return strings.Compare(a.id, b.id) })
	return c
}

// Limits of one status resync request, for brokers that take more. A broker that
// does not say what it takes may take 128 KB.
const (
	hashesPerRequest = 1000
	bytesPerRequest  = 96 << 10
)

// batchHashes cuts a list of hashes into requests of at most limit bytes of data
// each; a hash that exceeds the limit is a request of its own. No bundle makes no
// request, since an empty one would ask for everything.
func batchHashes(hashes []work.StatusHash, limit int) [][]work.StatusHash {
	const overhead = len(`{"resourceID":"","statusHash":""},`)
	const frame = len(`{"statusHashes":[]}`)
	var batches [][]work.StatusHash
	start, size := 0, frame
	for i, h := range hashes {
		n := len(h.ID) + len(h.Hash) + overhead
		if i > start && (i-start == hashesPerRequest || size+n > limit) {
			batches = append(batches, hashes[start:i])
			start, size = i, frame
		}
		size += n
	}
	if start < len(hashes) {
		batches = append(batches, hashes[start:])
	}
	return batches
}
