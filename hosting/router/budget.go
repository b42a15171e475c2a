package router

import (
	"hash/maphash"
	"net/netip"
	"time"
)

// rate is how many tokens a bucket gets in a second, and how many it can hold at most.
type rate struct {
	perSecond float64
	burst     float64
}

// bucket is a token bucket. The zero value is full.
type bucket struct {
	tokens float64
	filled int64 // nanoseconds since 1970; 0: never used
}

// takeToken takes a token. It returns false when there is none.
func (b *bucket) takeToken(r rate, now time.Time) bool {
	if !b.refill(r, now) {
		return false
	}
	b.tokens--
	return true
}

// refill adds the tokens of the time since the last call, and reports whether the bucket then has a token.
func (b *bucket) refill(r rate, now time.Time) bool {
	at := now.UnixNano()
	switch passed := at - b.filled; {
	case b.filled == 0:
		b.tokens, b.filled = r.burst, at
	case passed < 0: // the clock was set back: the time until the old one is reached must not count as none
		b.filled = at
	default:
		b.tokens = min(r.burst, b.tokens+time.Duration(passed).Seconds()*r.perSecond)
		b.filled = at
	}
	return b.tokens >= 1
}

// sourceSlots is how many buckets the sources share. Two sources that share one have one rate
// together; a stranger cannot choose the slot, because the hash has a random seed.
const sourceSlots = 16 << 10

// sourceBuckets are the token buckets of all sources. Their memory is fixed: 256 KiB, whatever
// number of sources there is. The caller synchronizes the calls.
type sourceBuckets struct {
	rate  rate
	seed  maphash.Seed
	slots [sourceSlots]bucket
}

func newSourceBuckets(r rate) *sourceBuckets {
	return &sourceBuckets{rate: r, seed: maphash.MakeSeed()}
}

// takeToken takes a token of a source. It returns false when the source has none.
func (s *sourceBuckets) takeToken(source netip.Prefix, now time.Time) bool {
	return s.bucketOf(source).takeToken(s.rate, now)
}

// bucketOf returns the bucket of a source.
func (s *sourceBuckets) bucketOf(source netip.Prefix) *bucket {
	return &s.slots[maphash.Comparable(s.seed, source)%sourceSlots]
}
