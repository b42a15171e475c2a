package ledger

import (
	"fmt"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
)

// BucketSQL is the bucket of an id among all 1<<digest.MaxBits, as digest.Bucket
// computes it: the first 12 bits of the id's SHA-256.
const BucketSQL = `(('x' || substr(encode(sha256(replace(id, '\', '\\')::bytea), 'hex'), 1, 3))::bit(12)::int)`

// BucketSchema lets the works in some buckets be read without the others.
const BucketSchema = `
create index ledger_bucket on ledger (consumer, ` + BucketSQL + `) where gone_at is null;
create index unknown_work_bucket on unknown_work (consumer, ` + BucketSQL + `);
`

// Scope is the ids that fall into some buckets; nil is all ids.
type Scope struct {
	bits int
	in   map[int]bool
}

// NewScope returns the scope of the ids that are in buckets, of 2^bits buckets.
func NewScope(bits int, buckets []int) *Scope {
	b := &Scope{bits: bits, in: make(map[int]bool, len(buckets))}
	for _, n := range buckets {
		b.in[n] = true
	}
	return b
}

// Has reports whether an id is in the scope. A nil scope has every id.
func (b *Scope) Has(id work.ID) bool { return b == nil || b.in[digest.Bucket(string(id), b.bits)] }

// all reports whether every id is in the scope, so that no condition is needed.
func (b *Scope) all() bool {
	if b == nil {
		return true
	}
	for n := range 1 << b.bits {
		if !b.in[n] {
			return false
		}
	}
	return true
}

// SQL is the condition on a row, whose argument has this number; args is the
// argument. Both are empty when every id is in the scope.
func (b *Scope) SQL(arg int) string {
	if b.all() {
		return ""
	}
	return fmt.Sprintf(" and %s = any($%d::int[])", BucketSQL, arg)
}

func (b *Scope) Args() []any {
	if b.all() {
		return nil
	}
	width := 1 << (digest.MaxBits - b.bits)
	finest := make([]int32, 0, len(b.in)*width)
	for n := range 1 << b.bits {
		if b.in[n] {
			for i := range width {
				finest = append(finest, int32(n*width+i))
			}
		}
	}
	return []any{finest}
}
