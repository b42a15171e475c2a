// Package digest compares two sets of named things over a slow wire: first by
// one hash of everything, then by one hash for each of some buckets, and only
// then, for the buckets that differ, thing by thing.
//
// A thing is an id and whatever both sides must agree on about it, as text.
// Which bucket it falls into depends on its id alone, so that both sides put
// it into the same. Hashes are of the whole content in the order of ids, not
// sums of hashes, so nobody who chooses ids can make two sets look equal.
package digest

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
)

// Item is one thing.
type Item struct{ ID, Value string }

// MaxBits bounds the number of buckets: 4096 of them, in 32 KB.
const MaxBits = 12

// bucketItems is how many things share a bucket, about: fewer cost more
// hashes, more cost more things that are listed although they do not differ.
const bucketItems = 16

// Bits is the binary logarithm of the number of buckets that n things want.
func Bits(n int) int {
	bits := 0
	for bits < MaxBits && n > bucketItems<<bits {
		bits++
	}
	return bits
}

// Bucket is the bucket of an id among 1<<bits.
func Bucket(id string, bits int) int {
	sum := sha256.Sum256([]byte(id))
	return int(binary.BigEndian.Uint16(sum[:2]) >> (16 - bits))
}

// Root is the hash of all items, 32 hex digits. It reorders items.
func Root(items []Item) string {
	h := sha256.New()
	sorted(items)
	var buf []byte
	for _, it := range items {
		buf = it.append(buf[:0])
		h.Write(buf)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// hashSize is how much of a bucket's hash goes over the wire. Who forges one
// gains nothing: Root tells, and then everything is listed.
const hashSize = 8

// Buckets returns the hashes of all 1<<bits buckets, one after the other; that
// of an empty bucket is zero. It reorders items.
func Buckets(items []Item, bits int) []byte {
	sorted(items)
	content := make([][]byte, 1<<bits)
	for _, it := range items {
		b := Bucket(it.ID, bits)
		content[b] = it.append(content[b])
	}
	hashes := make([]byte, 0, hashSize<<bits)
	for _, c := range content {
		var sum [sha256.Size]byte
		if len(c) > 0 {
			sum = sha256.Sum256(c)
		}
		hashes = append(hashes, sum[:hashSize]...)
	}
	return hashes
}

// ErrForm is what Differing returns of hashes that are not those of 1<<bits
// buckets.
var ErrForm = errors.New("not the hashes of so many buckets")

// Differing returns the buckets in which two results of Buckets differ, or all
// when they do not: it is called when the roots differ, and then something
// does.
func Differing(a, b []byte, bits int) ([]int, error) {
	if bits < 0 || bits > MaxBits || len(a) != hashSize<<bits || len(b) != len(a) {
		return nil, ErrForm
	}
	var buckets, all []int
	for i := range 1 << bits {
		all = append(all, i)
		if at := i * hashSize; !slices.Equal(a[at:at+hashSize], b[at:at+hashSize]) {
			buckets = append(buckets, i)
		}
	}
	if len(buckets) == 0 {
		return all, nil
	}
	return buckets, nil
}

func sorted(items []Item) {
	slices.SortFunc(items, func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
}

// append writes an item so that no two lists of items are written alike.
func (it Item) append(buf []byte) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(it.ID)))
	buf = append(buf, it.ID...)
	buf = binary.AppendUvarint(buf, uint64(len(it.Value)))
	return append(buf, it.Value...)
}
