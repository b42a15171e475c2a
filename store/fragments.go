package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

// The form packedFragments is the block format of LZ4: sequences of literals and matches. A match copies earlier
// bytes of the text, or bytes of the dictionary, which stands before the text. A short text with known words
// becomes small within a few microseconds; packedDeflate needs longer to make its table of codes.
//
// A packed text is the form's byte, the length of the text (uvarint), and the sequences. A sequence is a token, the
// literals, and the distance of the match (two bytes, the lower one first). The token has four bits for the number
// of literals and four for the length of the match less minMatch. If these bits are 15, bytes follow that are added
// up, until and with the first byte that is not 255. The last sequence ends after its literals.
const (
	minMatch = 4
	// maxFragments is the longest text of the form: a distance has two bytes.
	maxFragments = 1<<16 - 1 - len(dictionary)
	hashBits     = 12
)

// dictionary has frequent words of the JSON of conditions and reports. Stored texts need these very bytes, so the
// dictionary never changes: another dictionary is another form.
const dictionary = `"deletion_repeated":"ended_with_child":true,"Unknown","status":"False",` +
	`"deleted_by":"deleted_time":""metadata":{"job_name":"job_namespace":"attempt":1,` +
	`"duration":"started_time":"completed_time":"received_time":"recent":["{"labels":{"spec":{"references":{"` +
	`owner":{"id":"kind":"ClusterNodePool","href":"/api/hyperfleet/v1/clusters//nodepools/"tenancy":{},` +
	`"created_by":"system@hyperfleet.local","updated_by":"system@hyperfleet.local",` +
	`"updated_time":"ReconciledWaitingForChildren","message":"AdapterReportedNotAvailable",` +
	`"message":"One or more required adapters report Available=False",` +
	`"observed_generation":AdaptersNotAtSameGeneration","message":"AdaptersMissingReports",` +
	`"message":"Required adapters have not yet reported status","observed_generation":1,` +
	`"created_time":"ReconciledMissingAdapters","message":"Required adapters not reporting Finalized=True: ` +
	`[Available=True: []. Currently reporting: []",,"status":{"awaiting":[{"adapter":"reported":"since":"Z"}]` +
	`,"conditions":[{"conditions":[{"type":"Reconciled","status":"True","reason":"ReconciledAll",` +
	`"message":"All required adapters reported Available=True or Finalized=True at the current generation",` +
	`"observed_generation":1,"created_time":"Z"},{"type":"LastKnownReconciled","status":"True",` +
	`"reason":"AllAdaptersReconciled","message":"All required adapters report Available=True for the tracked ` +
	`generation","observed_generation":1,"created_time":"Z"},{"type":"ValidationSuccessful","status":"True",` +
	`"reason":"message":"observed_generation":1,"created_time":"2026-Z","last_updated_time":"2026-Z",` +
	`"last_transition_time":"2026-,"reports":[{"adapter":"observed_generation":1,` +
	`"conditions":[{"type":"Finalized","status":"True"{"type":"Available","status":"True",` +
	`"reason":"message":"","last_transition_time":"2026-Z"},{"type":"Applied","status":"True",` +
	`"reason":"Applied","message":"","last_transition_time":"2026-Z"},{"type":"Health","status":"True",` +
	`"reason":"Healthy","message":"no errors","last_transition_time":"2026-Z"}],` +
	`"data":{"created_time":"2026-11-22T00:00:00.000000Z","last_report_time":"2026-Z"}]}`

type hashTable [1 << hashBits]uint16 // the position after which a hash was last seen, plus 1; 0 is none

// dictionaryHashes has the positions of the dictionary.
var dictionaryHashes = sync.OnceValue(func() *hashTable {
	t := &hashTable{}
	for i := 0; i+minMatch <= len(dictionary); i++ {
		t[hashOf(binary.LittleEndian.Uint32([]byte(dictionary[i:i+minMatch])))] = uint16(i + 1)
	}
	return t
})

func hashOf(v uint32) uint32 { return v * 2654435761 >> (32 - hashBits) }

// matcher has the memory of one packFragments.
type matcher struct {
	hashes hashTable
	text   []byte // the dictionary, and the text behind it
}

var matchers = sync.Pool{New: func() any { return &matcher{text: []byte(dictionary)} }}

// packFragments appends the sequences of a text, which has at most maxFragments bytes, to b.
func packFragments(b, text []byte) []byte {
	m := matchers.Get().(*matcher)
	defer matchers.Put(m)
	m.hashes = *dictionaryHashes()
	m.text = append(m.text[:len(dictionary)], text...)
	all := m.text
	literals, at := len(dictionary), len(dictionary)
	for at+minMatch <= len(all) {
		word := binary.LittleEndian.Uint32(all[at:])
		slot := &m.hashes[hashOf(word)]
		from := int(*slot) - 1
		*slot = uint16(at + 1)
		if from < 0 || binary.LittleEndian.Uint32(all[from:]) != word {
			at += 1 + (at-literals)>>6 // random text is passed faster and faster
			continue
		}
		for at > literals && from > 0 && all[at-1] == all[from-1] {
			at, from = at-1, from-1
		}
		n := minMatch + commonPrefix(all[at+minMatch:], all[from+minMatch:])
		b = appendSequence(b, all[literals:at], n, at-from)
		for i := at + 1; i < at+n && i+minMatch <= len(all); i += 2 {
			m.hashes[hashOf(binary.LittleEndian.Uint32(all[i:]))] = uint16(i + 1)
		}
		at += n
		literals = at
	}
	return appendSequence(b, all[literals:], 0, 0)
}

// commonPrefix returns how many bytes two texts begin with alike; a is not longer than b.
func commonPrefix(a, b []byte) (n int) {
	for ; n+8 <= len(a); n += 8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
	}
	for n < len(a) && a[n] == b[n] {
		n++
	}
	return n
}

// appendSequence appends a sequence; without a match, which is the last one, match is 0.
func appendSequence(b, literals []byte, match, distance int) []byte {
	token := byte(min(len(literals), 15)) << 4
	if match > 0 {
		token |= byte(min(match-minMatch, 15))
	}
	b = append(appendMore(append(b, token), len(literals)), literals...)
	if match == 0 {
		return b
	}
	return appendMore(append(b, byte(distance), byte(distance>>8)), match-minMatch)
}

// appendMore appends what a number has above the 15 that a token can say.
func appendMore(b []byte, n int) []byte {
	if n < 15 {
		return b
	}
	for n -= 15; n >= 255; n -= 255 {
		b = append(b, 255)
	}
	return append(b, byte(n))
}

var errFragments = errors.New("the sequences of a packed text are damaged")

// unpackFragments appends the text of packed, which is without the form's byte, to b.
func unpackFragments(b, packed []byte) ([]byte, error) {
	length, n := binary.Uvarint(packed)
	if n <= 0 || length > uint64(maxFragments) {
		return b, fmt.Errorf("unpacking: %w", errFragments)
	}
	begin, p := len(b), packed[n:]
	if cap(b)-begin < int(length) {
		b = append(make([]byte, 0, begin+int(length)), b...)
	}
	for len(p) > 0 {
		token := p[0]
		literals, rest, ok := readMore(p[1:], int(token>>4))
		if !ok || literals > len(rest) || len(b)-begin+literals > int(length) {
			return b[:begin], fmt.Errorf("unpacking: %w", errFragments)
		}
		b, p = append(b, rest[:literals]...), rest[literals:]
		if len(p) == 0 {
			break
		}
		if len(p) < 2 {
			return b[:begin], fmt.Errorf("unpacking: %w", errFragments)
		}
		distance := int(p[0]) | int(p[1])<<8
		match, rest, ok := readMore(p[2:], int(token&15))
		match += minMatch
		written := len(b) - begin
		if !ok || distance == 0 || distance > written+len(dictionary) || written+match > int(length) {
			return b[:begin], fmt.Errorf("unpacking: %w", errFragments)
		}
		p = rest
		if before := distance - written; before > 0 { // it begins in the dictionary
			known := min(before, match)
			at := len(dictionary) - before
			b = append(b, dictionary[at:at+known]...)
			match -= known
		}
		for match > 0 { // what it copies may overlap what it writes
			at := len(b) - distance
			some := min(match, distance)
			b = append(b, b[at:at+some]...)
			match -= some
		}
	}
	if len(b)-begin != int(length) {
		return b[:begin], fmt.Errorf("unpacking: %w", errFragments)
	}
	return b, nil
}

// readMore reads a number that begins in a token; rest is what follows it.
func readMore(p []byte, n int) (_ int, rest []byte, ok bool) {
	if n < 15 {
		return n, p, true
	}
	for i, c := range p {
		n += int(c)
		if c != 255 {
			return n, p[i+1:], true
		}
	}
	return n, nil, false
}
