package envelope

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

const (
	sealMagic = "ATOLLBK1"
	saltSize  = 32
	keySize   = 32
	chunkSize = 64 << 10 // of plain text
	tagSize   = 16
)

// seal encrypts the content of the object name: magic, salt, then chunks of AES-256-GCM. The key of an object is
// derived from the data key, the salt and the name. The nonce of a chunk has its number and a flag for the last chunk:
// so open detects a chunk that was removed, repeated, or moved within an object or from another one.
func seal(dataKey []byte, name string, content []byte) ([]byte, error) {
	return sealFrom(nil, dataKey, name, bytes.NewReader(content), len(content))
}

// sealFrom reads size bytes and does what seal does. It needs no more memory than the result: it reads each chunk into
// its place there, and encrypts it there. The result is in the memory of into when that has room.
func sealFrom(into, dataKey []byte, name string, content io.Reader, size int) ([]byte, error) {
	salt := make([]byte, saltSize)
	if _, err := rand.Read(salt); err != nil {
		return nil, err
	}
	aead, err := objectCipher(dataKey, salt, name)
	if err != nil {
		return nil, err
	}
	chunks := max(1, (size+chunkSize-1)/chunkSize)
	out := slices.Grow(into[:0], len(sealMagic)+saltSize+size+chunks*tagSize)
	out = append(append(out, sealMagic...), salt...)
	for i := range chunks {
		chunk := out[len(out):][:min(chunkSize, size)]
		if _, err := io.ReadFull(content, chunk); err != nil {
			return nil, err
		}
		at := inner
		if i == chunks-1 {
			at = last
		}
		out = aead.Seal(out, nonce(i, at), chunk, nil)
		size -= len(chunk)
	}
	return out, nil
}

// open decrypts the result of seal for the same name. The error is ErrCorrupt when the result was changed or the name
// or the key is another one.
func open(dataKey []byte, name string, sealed []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(sealed, []byte(sealMagic))
	if !ok || len(rest) < saltSize+tagSize {
		return nil, fmt.Errorf("%s: %w: it is no sealed object", name, ErrCorrupt)
	}
	aead, err := objectCipher(dataKey, rest[:saltSize], name)
	if err != nil {
		return nil, err
	}
	rest = rest[saltSize:]
	out := make([]byte, 0, len(rest))
	for i := 0; ; i++ {
		n, at := chunkSize+tagSize, inner
		if n >= len(rest) {
			n, at = len(rest), last
		}
		if out, err = aead.Open(out, nonce(i, at), rest[:n], nil); err != nil {
			return nil, fmt.Errorf("%s: %w: chunk %d", name, ErrCorrupt, i)
		}
		if rest = rest[n:]; at == last {
			return out, nil
		}
	}
}

func objectCipher(dataKey, salt []byte, name string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, dataKey, salt, "atoll backup object\x00"+name, keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// chunkPosition is the place of a chunk in its object.
type chunkPosition byte

const (
	inner chunkPosition = 0
	last  chunkPosition = 1
)

func nonce(chunk int, at chunkPosition) []byte {
	n := make([]byte, 12)
	binary.BigEndian.PutUint64(n[3:], uint64(chunk))
	n[11] = byte(at)
	return n
}
