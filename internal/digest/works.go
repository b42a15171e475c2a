package digest

import (
	"strconv"

	"atoll.dev/api/work"
)

// statusDigits is how much of a status hash is compared.
const statusDigits = 16

// Status shortens a status hash to what WorkState carries.
func Status(hash string) string { return hash[:min(len(hash), statusDigits)] }

// Works returns the items of works: what server and agent must agree on.
func Works(states []work.WorkState) []Item {
	items := make([]Item, len(states))
	for i, w := range states {
		value := strconv.FormatInt(w.Version, 10) + " " + w.Life + " " + w.Status
		if w.Deleting {
			value = strconv.FormatInt(w.Version, 10) + " deleting"
		}
		items[i] = Item{w.ID, value}
	}
	return items
}

// pieceBytes is what a message of works holds at most, well below what the
// smallest broker takes (AWS IoT Core: 128 KB).
const pieceBytes = 96 << 10

// Pieces sorts the works that are in the buckets into messages. All of a
// bucket are in one message; a bucket of which there is nothing is in one, too.
func Pieces(states []work.WorkState, bits int, buckets []int) []work.BucketWorks {
	in := make(map[int][]work.WorkState, len(buckets))
	for _, b := range buckets {
		in[b] = nil
	}
	for _, w := range states {
		b := Bucket(w.ID, bits)
		if _, wanted := in[b]; wanted {
			in[b] = append(in[b], w)
		}
	}
	const overhead = len(`{"id":"","v":12345678,"d":true,"l":"01234567","s":"0123456789abcdef"},`)
	var pieces []work.BucketWorks
	piece, size := work.BucketWorks{Bits: bits}, 0
	for _, b := range buckets {
		n := 8
		for _, w := range in[b] {
			n += len(w.ID) + overhead
		}
		if len(piece.Buckets) > 0 && size+n > pieceBytes {
			pieces = append(pieces, piece)
			piece, size = work.BucketWorks{Bits: bits}, 0
		}
		piece.Buckets = append(piece.Buckets, b)
		piece.Works = append(piece.Works, in[b]...)
		size += n
	}
	if len(piece.Buckets) > 0 {
		pieces = append(pieces, piece)
	}
	return pieces
}
