package access

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"atoll.dev/internal/atomicfile"
)

const (
	keyFileHeader = "atoll key file v1: "
	maxSealKeys   = 8 // of a file
)

// sealKey is one key of a key file.
type sealKey struct {
	id      string      // no secret
	line    string      // of the file
	aead    cipher.AEAD // nil of a wrapped key that was not unwrapped yet
	wrapped *wrappedSealKey
}

// sealKeyIDSize is the length of the id of a key.
const sealKeyIDSize = 12

// isPrivate reports whether only this process's user may read a file; or, of a file of root's, this process's group,
// which is how Kubernetes mounts a Secret for a process that is not root.
func isPrivate(perm fs.FileMode, owner, user int) bool {
	if owner == 0 && user != 0 {
		return perm&0o037 == 0
	}
	return perm&0o077 == 0
}

func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// readKeyFile returns the keys of a file, one a line. The first one seals, and all open, wrapped keys after
// withSealKeys.
func readKeyFile(path string) ([]sealKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || !isPrivate(info.Mode().Perm(), ownerOf(info), os.Geteuid()) {
		return nil,
			fmt.Errorf(
				"%s has mode %s; it must be a file that only its owner may read: chmod 600 it, and think about who "+
					"read it", path, info.Mode())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseKeyFile(path, b)
}

func parseKeyFile(path string, content []byte) (keys []sealKey, err error) {
	for line := range strings.SplitSeq(strings.TrimSpace(string(content)), "\n") {
		key, ok := parseSealKey(strings.TrimSpace(line))
		if !ok {
			key, ok = parseWrappedKey(strings.TrimSpace(line))
		}
		if !ok {
			return nil, fmt.Errorf("%s is not a key file; restore it from a backup, or move it away to begin with new key "+
				"pairs", path)
		}
		if isSealKey(keys, key.id) {
			return nil, fmt.Errorf("%s has key %s twice; remove one of the lines", path, key.id)
		}
		keys = append(keys, key)
	}
	if len(keys) > maxSealKeys {
		return nil, fmt.Errorf("%s has %d keys, at most %d are possible; see `atoll key seal drop`", path, len(keys),
			maxSealKeys)
	}
	return keys, nil
}

func parseSealKey(line string) (sealKey, bool) {
	text, ok := strings.CutPrefix(line, keyFileHeader)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) != 32 {
		return sealKey{}, false
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealKey{}, false
	}
	aead, err := cipher.NewGCM(block)
	sum := sha256.Sum256(append([]byte("atoll key file id\x00"), key...))
	return sealKey{hex.EncodeToString(sum[:sealKeyIDSize/2]), line, aead, nil}, err == nil
}

func isSealKey(keys []sealKey, id string) bool {
	_, isKnown := findSealKey(keys, id)
	return isKnown
}

func findSealKey(keys []sealKey, id string) (sealKey, bool) {
	at := slices.IndexFunc(keys, func(k sealKey) bool { return k.id == id })
	if at < 0 {
		return sealKey{}, false
	}
	return keys[at], true
}

// newSealKey returns a new key.
func newSealKey() sealKey {
	key := make([]byte, 32)
	rand.Read(key) // it never returns an error
	made, _ := parseSealKey(keyFileHeader + base64.StdEncoding.EncodeToString(key))
	return made
}

// makeKeyFile creates a key file with a new key. It changes nothing when the file
// exists.
func makeKeyFile(path string) error {
	err := atomicfile.Create(path, []byte(newSealKey().line+"\n"), 0o600)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Errors of changes of a key file.
var (
	// ErrRotating: the file has more than one key already.
	ErrRotating = errors.New("another rotation is not completed")
	// ErrNoSealKey: the file has no such key.
	ErrNoSealKey = errors.New("no such key")
	// ErrSeals: the key is the one that seals.
	ErrSeals = errors.New("the key seals")
)

// KeyPlace is where the key of a line of a key file is: in the file, or, wrapped, with the KMS plugin at an endpoint
// (unix:///PATH).
type KeyPlace string

// Places of keys that are no endpoints.
const (
	PlaceOfFirst KeyPlace = ""     // the place of the first key of the file
	PlaceInFile  KeyPlace = "file" // in clear
)

// place returns where a key is.
func (k sealKey) place() KeyPlace {
	if k.wrapped == nil {
		return PlaceInFile
	}
	return KeyPlace(k.wrapped.endpoint)
}

// newSealKeyAt returns a new key for a key file. The error is kms.ErrUnavailable when the plugin of the place does not
// wrap the key.
func newSealKeyAt(ctx context.Context, path string, place KeyPlace) (k sealKey, err error) {
	if place == PlaceOfFirst {
		keys, err := readKeyFile(path)
		if err != nil {
			return k, err
		}
		place = keys[0].place()
	}
	if place == PlaceInFile {
		return newSealKey(), nil
	}
	return wrapSealKey(ctx, string(place))
}

// addSealKey adds a key behind the one key of a file. Processes that have read the file open with the new key;
// promoteSealKey makes them seal with it. The error is ErrRotating when the file has several keys.
func addSealKey(path string, added sealKey) error {
	return changeSealKeys(path, func(keys []sealKey) ([]sealKey, error) {
		if len(keys) > 1 {
			return nil, fmt.Errorf("%s has %d keys: %w; see `atoll key seal status` and `atoll key seal drop`", path,
				len(keys), ErrRotating)
		}
		return append(keys, added), nil
	})
}

// promoteSealKey makes a key of a key file the first, which seals. It is idempotent. The error is ErrNoSealKey.
func promoteSealKey(path, id string) error {
	return changeSealKeys(path, func(keys []sealKey) ([]sealKey, error) {
		at := slices.IndexFunc(keys, func(k sealKey) bool { return k.id == id })
		if at < 0 {
			return nil, fmt.Errorf("%s: key %s: %w", path, quoted(id), ErrNoSealKey)
		}
		return append([]sealKey{keys[at]}, slices.Delete(slices.Clone(keys), at, at+1)...), nil
	})
}

// dropSealKey removes a key that does not seal from a key file. The errors are ErrNoSealKey and ErrSeals.
func dropSealKey(path, id string) error {
	return changeSealKeys(path, func(keys []sealKey) ([]sealKey, error) {
		switch at := slices.IndexFunc(keys, func(k sealKey) bool { return k.id == id }); {
		case at < 0:
			return nil, fmt.Errorf("%s: key %s: %w", path, quoted(id), ErrNoSealKey)
		case at == 0:
			return nil, fmt.Errorf("%s: key %s: %w; make another one first: `atoll key seal rotate`", path, id, ErrSeals)
		default:
			return slices.Delete(slices.Clone(keys), at, at+1), nil
		}
	})
}

// changeSealKeys replaces the keys of a key file. Of several processes that do so, each waits for the one before.
func changeSealKeys(path string, change func([]sealKey) ([]sealKey, error)) error {
	return atomicfile.Change(path, 0o600, func([]byte) ([]byte, error) {
		keys, err := readKeyFile(path)
		if err == nil {
			keys, err = change(keys)
		}
		if err != nil {
			return nil, err
		}
		var content strings.Builder
		for _, k := range keys {
			content.WriteString(k.line + "\n")
		}
		return []byte(content.String()), nil
	})
}
