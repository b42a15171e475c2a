package store

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"sync"
)

// A packed text is one that no search reads, in compressed form. The process compresses it, because PostgreSQL
// compresses only rows above 2 KB and knows no dictionary. It is stored as bytes, because PostgreSQL parses jsonb at
// each write and prints it at each read. The first byte is the form.
const (
	packedPlain        = 0
	packedDeflate      = 1 // of earlier releases
	packedByDictionary = 3 // 2 was a form of a few hours, of no release
)

// minPackLength is the length from which compression is tried.
const minPackLength = 32

// pack returns the stored form of a text; nil of nil.
func pack(text []byte) []byte {
	if text == nil {
		return nil
	}
	if len(text) >= minPackLength && len(text) <= maxPacked {
		if b := packByDictionary(text); len(b) <= len(text) {
			return b
		}
	}
	return append([]byte{packedPlain}, text...)
}

var inflaters = sync.Pool{New: func() any { return flate.NewReader(nil) }}

// unpack appends the text of a stored form to b.
func unpack(b, packed []byte) ([]byte, error) {
	if len(packed) == 0 {
		return b, nil
	}
	switch packed[0] {
	case packedPlain:
		return append(b, packed[1:]...), nil
	case packedByDictionary:
		return unpackByDictionary(b, packed[1:])
	case packedDeflate:
	default:
		return b, fmt.Errorf("%w: packed text of form %d", ErrNewer, packed[0])
	}
	r := inflaters.Get().(io.ReadCloser)
	defer inflaters.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(packed[1:]), nil); err != nil {
		return b, fmt.Errorf("unpacking: %w", err)
	}
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, fmt.Errorf("unpacking: %w", err)
		}
	}
}
