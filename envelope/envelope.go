// Package envelope encrypts content with data keys that a KMS wraps: backups, and the sensitive values of databases.
//
// A DataKey seals content under a name, and the result cannot be opened under another name. A Box makes results that
// carry their wrapped data key, so that an Opener needs nothing but the KMS. KeyFile is a KMS with its keys in a file,
// for a region without an external KMS.
//
// Tools and services import it; it imports api and internal packages alone.
package envelope

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
)

// ErrCorrupt is the error of a sealed object that is damaged, or that was sealed under another name.
var ErrCorrupt = errors.New("the sealed content is damaged")

// ErrWrongKey is, together with ErrCorrupt, the error of a wrapped data key that the KMS key with the named id does not
// decrypt: the data key is damaged, or another KMS key with the same id has wrapped it.
var ErrWrongKey = errors.New("the key does not fit")

// DataKey seals content. Its zero value has no key. Many goroutines may use one.
type DataKey struct {
	plain   []byte
	wrapped WrappedKey
}

// NewDataKey returns a new data key, which the KMS wraps with its current key.
func NewDataKey(ctx context.Context, kms KMS) (k DataKey, err error) {
	k.plain = make([]byte, keySize)
	if _, err = rand.Read(k.plain); err != nil {
		return k, err
	}
	k.wrapped, err = kms.Wrap(ctx, k.plain)
	return k, err
}

// OpenDataKey returns the data key that the KMS wrapped.
func OpenDataKey(ctx context.Context, kms KMS, wrapped WrappedKey) (DataKey, error) {
	plain, err := kms.Unwrap(ctx, wrapped)
	if err == nil && len(plain) != keySize {
		err = fmt.Errorf("%w: its data key has %d bytes", ErrCorrupt, len(plain))
	}
	return DataKey{plain: plain, wrapped: wrapped}, err
}

// Seal encrypts content under a name. The result does not have the wrapped key.
func (k DataKey) Seal(name string, content []byte) ([]byte, error) {
	return seal(k.plain, name, content)
}

// SealFrom does what Seal does with the next size bytes of a reader, and keeps no second copy of them in memory. The
// result overwrites into, where that has room for it. It returns the reader's error, which is io.EOF or
// io.ErrUnexpectedEOF when the reader has fewer bytes.
func (k DataKey) SealFrom(into []byte, name string, content io.Reader, size int) ([]byte, error) {
	return sealFrom(into, k.plain, name, content, size)
}

// Open decrypts the result of Seal for the same name. The error is ErrCorrupt when the result was changed or the name
// or the key is another one.
func (k DataKey) Open(name string, sealed []byte) ([]byte, error) { return open(k.plain, name, sealed) }
