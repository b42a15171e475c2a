// Package digest compares two sets of items over a slow connection: first by one
// hash of all items, then by one hash for each bucket of items, and only then, for
// the buckets that differ, item by item.
//
// An item is an id and a value, the text that must be equal on both sides. An
// item's bucket depends only on its id, so both sides use the same bucket. A hash
// covers the whole content in the order of ids; it is not a sum of hashes, so a
// choice of ids cannot make two different sets look equal.
package digest

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
)

// Item is one element of a compared set.
type Item struct{ ID, Value string }

// MaxBits bounds the number of buckets: 4096 of them, in 32 KB.
const MaxBits = 12

// bucketItems is the intended number of items in a bucket: smaller buckets cost more
// hashes, larger ones more listed items that do not differ.
const bucketItems = 16

// Bits returns the binary logarithm of the number of buckets for n items.
func Bits(n int) int {
	bits := 0
	for bits < MaxBits && n > bucketItems<<bits {
		bits++
	}
	return bits
}

// Bucket returns the bucket of an id, from 0 to 1<<bits - 1.
func Bucket(id string, bits int) int {
	sum := sha256.Sum256([]byte(id))
	return int(binary.BigEndian.Uint16(sum[:2]) >> (16 - bits))
}

// Root returns the hash of all items, 32 hex digits. It sorts items in place.
func Root(items []Item) string {
	h := sha256.New()
	sortByID(items)
	var buf []byte
	for _, it := range items {
		buf = it.append(buf[:0])
		h.Write(buf)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// hashSize is the number of bytes of a bucket's hash that are sent. Equal hashes of
// different buckets do no harm: Root differs, and then all buckets are listed.
const hashSize = 8

// Buckets returns the hashes of all 1<<bits buckets, one after the other; the hash of an
// empty bucket is zero. It sorts items in place.
func Buckets(items []Item, bits int) []byte {
	sortByID(items)
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

// ErrForm means that the hashes given to Differing are not those of 1<<bits buckets.
var ErrForm = errors.New("not the hashes of so many buckets")

// Differing returns the buckets in which two results of Buckets differ. When none
// differs it returns all buckets: it is called when the roots differ, so some bucket
// must differ.
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

// sortByID sorts items in place.
func sortByID(items []Item) {
	slices.SortFunc(items, func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
}

// append appends an item's encoding. Different lists of items have different encodings.
func (it Item) append(buf []byte) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(it.ID)))
	buf = append(buf, it.ID...)
	buf = binary.AppendUvarint(buf, uint64(len(it.Value)))
	return append(buf, it.Value...)
}
