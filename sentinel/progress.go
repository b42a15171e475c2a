package sentinel

import (
	"math/bits"
	"strconv"
	"strings"

	"atoll.dev/internal/jsonscan"
	"atoll.dev/store"
)

// progressHash returns a hash of a document's status without its times: a report that differs
// only in times is no progress. The order of an object's members does not count.
func progressHash(d *store.Document) uint64 {
	scan := jsonscan.New(d.Status)
	mark := hashValue(scan)
	if scan.End() != nil {
		return hashText(d.Status)
	}
	return mark
}

// hashValue returns the hash of the scanner's next value.
func hashValue(scan *jsonscan.Scanner) uint64 {
	switch scan.Next() {
	case '{':
		sum := uint64(1)
		scan.Object(func(name string) {
			if strings.HasSuffix(name, "_time") {
				scan.Skip()
				return
			}
			sum += spreadBits(hashText(name) ^ bits.RotateLeft64(hashValue(scan), 1))
		})
		return spreadBits(sum)
	case '[':
		sum := uint64(2)
		scan.Array(func() { sum = spreadBits(sum ^ bits.RotateLeft64(hashValue(scan), 1)) })
		return sum
	case '"':
		return hashText(scan.Text())
	case 't', 'f':
		return hashText(strconv.FormatBool(scan.Bool())) + 3
	case 'n':
		scan.Null()
		return hashText("null") + 3
	}
	var digits [32]byte // 1 and 1.0 are one number
	return hashText(strconv.AppendFloat(digits[:0], scan.Float(), 'g', -1, 64)) + 3
}

// hashText is FNV-1a.
func hashText[T ~string | ~[]byte](s T) uint64 {
	sum := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		sum = (sum ^ uint64(s[i])) * 0x100000001b3
	}
	return sum
}
