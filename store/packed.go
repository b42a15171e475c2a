package store

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"sync"
)

// What the history keeps of a status is packed: compressed here, because PostgreSQL compresses only
// rows above 2 KB, and stored as bytes, because nobody searches it and jsonb is parsed at each
// write. The first byte is the form.
const (
	packedPlain   = 0
	packedDeflate = 1
)

// packFrom is the length from which compression is tried.
const packFrom = 256

var deflaters = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // the level is one that exists
	return w
}}

// pack returns the stored form of a text; nil of nil.
func pack(text []byte) []byte {
	if text == nil {
		return nil
	}
	if len(text) >= packFrom {
		var b bytes.Buffer
		b.Grow(len(text) / 2)
		b.WriteByte(packedDeflate)
		w := deflaters.Get().(*flate.Writer)
		w.Reset(&b)
		_, err := w.Write(text)
		if err == nil {
			err = w.Close()
		}
		deflaters.Put(w)
		if err == nil && b.Len() <= len(text) {
			return b.Bytes()
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
