package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"atoll.dev/envelope"
)

// A handover is the data of a stopped plane that moves to another management cluster, below
// NAMESPACE/NAME/move-ID/ in the store:
//
//	request          the target waits for the data
//	data-00000000    a part of the compressed data, of 1 MiB; earlier versions: 2 MiB
//	handover         the list of the parts; written when all are stored
//
// All objects are sealed as those of a chain are.

// HandoverRequest is the content of the object "request": the target of a move writes it and the source reads it.
type HandoverRequest struct {
	// Endpoint is HOST:PORT where customers reach the planes of the target. The source's router forwards to it.
	Endpoint string `json:"endpoint"`
}

// handover lists the parts of a plane's data.
type handover struct {
	Plane string `json:"plane"`
	Move  string `json:"move"`
	Parts []Part `json:"parts"`
}

func handoverPrefix(p Plane, move string) string { return p.prefix() + movePrefix + move + "/" }

// movePrefix is the beginning of the directory of a move.
const movePrefix = "move-"

func handoverPart(n int) string { return fmt.Sprintf("data-%08d", n) }

// putSealed stores a value as JSON, sealed with key. The object has the wrapped key, so that getSealed needs only the
// KMS.
func putSealed(ctx context.Context, store Store, name string, key envelope.DataKey, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	object, err := key.SealDescribed(name, body)
	if err != nil {
		return err
	}
	return store.Put(ctx, name, object)
}

// getSealed reads a value that putSealed has stored, and returns its data key.
func getSealed(ctx context.Context, store Store, kms envelope.KMS, name string, value any) (key envelope.DataKey,
	err error) {
	object, err := store.Get(ctx, name)
	if err != nil {
		return key, err
	}
	body, key, err := openDescribed(ctx, kms, name, object)
	if err != nil {
		return key, err
	}
	if err := json.Unmarshal(body, value); err != nil {
		return key, fmt.Errorf("%s: %w: %w", name, ErrCorrupt, err)
	}
	return key, nil
}

// PutHandoverRequest stores that the target of a move waits for the plane's data.
func PutHandoverRequest(ctx context.Context, store Store, kms envelope.KMS, p Plane, move string,
	r HandoverRequest) error {
	key, err := envelope.NewDataKey(ctx, kms)
	if err != nil {
		return err
	}
	return putSealed(ctx, store, handoverPrefix(p, move)+"request", key, r)
}

// GetHandoverRequest returns the request of a move's target, or ErrNotFound while there is none.
func GetHandoverRequest(ctx context.Context, store Store, kms envelope.KMS, p Plane, move string) (r HandoverRequest,
	err error) {
	_, err = getSealed(ctx, store, kms, handoverPrefix(p, move)+"request", &r)
	return r, err
}

// PutHandover stores the data of a stopped plane, compressed. GetHandover finds nothing before PutHandover has returned
// nil. It may be repeated with the same data, and then replaces what an interrupted call has stored.
func PutHandover(ctx context.Context, store Store, kms envelope.KMS, p Plane, move string, data io.Reader) error {
	key, err := envelope.NewDataKey(ctx, kms)
	if err != nil {
		return err
	}
	prefix, list := handoverPrefix(p, move), handover{Plane: p.String(), Move: move}
	put := func(plain []byte) error {
		name := prefix + handoverPart(len(list.Parts))
		object, err := key.Seal(name, plain)
		if err != nil {
			return err
		}
		list.Parts = append(list.Parts, Part{Size: len(object), SHA256: sha256Of(object)})
		return store.Put(ctx, name, object)
	}
	parts := &partWriter{put: put}
	compress, err := zstd.NewWriter(parts, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	_, err = io.Copy(compress, data)
	if err = errors.Join(err, compress.Close()); err != nil {
		return err
	}
	if err := parts.flush(); err != nil {
		return err
	}
	return putSealed(ctx, store, prefix+"handover", key, list)
}

// partWriter cuts a stream into parts.
type partWriter struct {
	put  func([]byte) error
	part bytes.Buffer
}

func (w *partWriter) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), partSize-w.part.Len())
		w.part.Write(rest[:n])
		rest = rest[n:]
		if w.part.Len() == partSize {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(b), nil
}

func (w *partWriter) flush() error {
	if w.part.Len() == 0 {
		return nil
	}
	defer w.part.Reset()
	return w.put(w.part.Bytes())
}

// GetHandover calls read with the data of a move, or returns ErrNotFound while it is not complete in the store. The
// reader returns ErrCorrupt at a damaged part: read must then discard all data that it has read before. sum identifies
// the data: a caller that has the data with this sum passes it as have, and GetHandover does not call read.
func GetHandover(ctx context.Context, store Store, kms envelope.KMS, p Plane, move, have string,
	read func(io.Reader) error) (sum string, err error) {
	prefix := handoverPrefix(p, move)
	var list handover
	key, err := getSealed(ctx, store, kms, prefix+"handover", &list)
	if err != nil {
		return "", err
	}
	if list.Plane != p.String() || list.Move != move {
		return "", fmt.Errorf("%shandover: %w: it belongs to another move", prefix, ErrCorrupt)
	}
	if sum = list.sum(); sum == have {
		return sum, nil
	}
	names := make([]string, len(list.Parts))
	for i := range names {
		names[i] = prefix + handoverPart(i)
	}
	objects := newReadAhead(ctx, store, names)
	defer objects.close()
	z, err := zstd.NewReader(&partReader{ctx: ctx, store: objects, key: key, prefix: prefix, parts: list.Parts,
		name: handoverPart}, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return "", err
	}
	defer z.Close()
	return sum, read(z)
}

// sum returns a checksum of the checksums of all parts.
func (h handover) sum() string {
	sums := sha256.New()
	for _, part := range h.Parts {
		sums.Write(part.SHA256)
	}
	return hex.EncodeToString(sums.Sum(nil))
}

// RemoveHandover removes the data and the request of a move, and leaves the decisions of both sides. It may be
// repeated.
func RemoveHandover(ctx context.Context, store Store, p Plane, move string) error {
	names, err := store.List(ctx, handoverPrefix(p, move))
	if err != nil {
		return err
	}
	for _, name := range names {
		switch moveDecision(strings.TrimPrefix(name, handoverPrefix(p, move))) {
		case claimed, withdrawn, declined:
			continue
		}
		if err := store.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
