package envelope

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

// rereadAfter is how long a KeyFile uses the keys that it has read before it reads the file again.
const rereadAfter = time.Second

// ErrReplacedKey means that a key file has another key under the name of an earlier one. Data keys that the earlier key
// has wrapped could not be unwrapped after a restart, so a KeyFile wraps nothing until the earlier line is back.
var ErrReplacedKey = errors.New("another key has the name of an earlier one")

// watchEvery is the pause between two reads of Watch.
const watchEvery = time.Minute

// Problem returns the reason why the keys in use are not those of the file: the file cannot be read, is invalid, or has
// another key under an earlier name. A process that started with this file would fail, or could not open sealed
// content. Problem reads the file again as Wrap does. It returns nil while the file is valid.
func (k *KeyFile) Problem() error {
	_, _ = k.currentKeys()
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.unreadable, k.refused)
}

// Watch logs when the file becomes invalid and when it is valid again, until ctx ends. It reads the file every
// watchEvery, also while no caller uses the keys.
func (k *KeyFile) Watch(ctx context.Context, log *slog.Logger) {
	isInvalid := false
	for {
		switch err := k.Problem(); {
		case err != nil && !isInvalid:
			isInvalid = true
			log.Error("the key file is invalid; the keys that it had are used until this process ends, and a restart "+
				"needs a valid file", "file", k.path, "error", err)
		case err == nil && isInvalid:
			isInvalid = false
			log.Info("the key file is valid again", "file", k.path)
		}
		if !pause.For(ctx, watchEvery) {
			return
		}
	}
}

// currentKeys returns all keys, and reads the file again when its keys are older than rereadAfter. After an
// ErrReplacedKey, and while the file is invalid, it returns the last valid keys: they still unwrap.
func (k *KeyFile) currentKeys() (keyList, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path != "" && time.Since(k.readAt) > rereadAfter {
		keys, err := readKeys(k.path)
		if k.unreadable = err; err == nil {
			k.replace(keys)
		}
		k.readAt = time.Now()
	}
	return k.keys, k.refused
}

// replace uses the keys of a file that was read again, unless one of them has the name of an earlier key. The caller
// holds the lock.
func (k *KeyFile) replace(keys keyList) {
	k.refused = nil
	for name, digest := range keys.digests {
		if earlier, isKnown := k.seen[name]; isKnown && earlier != digest {
			k.refused = fmt.Errorf("key file %s: %w: put the earlier line of %s back, and give the new key another name",
				k.path, ErrReplacedKey, name)
			return
		}
	}
	maps.Copy(k.seen, keys.digests)
	k.keys = keys
}

// ParseKeys returns the keys that a key file with this content has.
func ParseKeys(content []byte) (*KeyFile, error) {
	keys, err := parseKeys(content)
	if err != nil {
		return nil, err
	}
	return &KeyFile{keys: keys}, nil
}

// NewKeyLine returns the line of a key file for a new key. The name has no space and does not begin with #.
func NewKeyLine(name string) []byte {
	key := make([]byte, keySize)
	rand.Read(key) // it never returns an error
	return fmt.Appendf(nil, "%s %s\n", name, base64.StdEncoding.EncodeToString(key))
}

// NewKeyName returns a name that no other key has.
func NewKeyName() string {
	random := make([]byte, 4)
	rand.Read(random) // it never returns an error
	return "k-" + hex.EncodeToString(random)
}

// EnsureKeyFile makes a key file with one key, for its owner alone, and its directory. It changes nothing when the
// file exists. The key has a name of its own, so that content that was sealed with a lost file is reported as sealed
// with a missing key, not as damaged.
func EnsureKeyFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	err := atomicfile.Create(path, NewKeyLine(NewKeyName()), 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// AddKey appends a new key with a name, which is the result of NewKeyName, to a key file. Processes that read the file
// can unwrap with the new key; Promote makes them wrap with it.
func AddKey(path, name string) error {
	return changeKeyFile(path, func(content []byte) ([]byte, error) {
		if n := len(content); n > 0 && content[n-1] != '\n' {
			content = append(content, '\n')
		}
		return append(content, NewKeyLine(name)...), nil
	})
}

// Promote moves the line of a key before the others, so that new data keys are wrapped with this key.
func Promote(path, name string) error {
	return changeKeyFile(path, func(content []byte) ([]byte, error) {
		var first, others []byte
		for line := range bytes.Lines(content) {
			if bytes.HasPrefix(line, []byte(name+" ")) {
				first = append(first, line...)
			} else {
				others = append(others, line...)
			}
		}
		if first == nil {
			return nil, fmt.Errorf("key file %s has no key %s", path, name)
		}
		return append(bytes.TrimRight(first, "\n"), append([]byte("\n"), others...)...), nil
	})
}

// changeKeyFile replaces the content of a key file by the result of change. It refuses to change an invalid file, and
// a result that is invalid. Two processes that change the file at the same time lose no key.
func changeKeyFile(path string, change func([]byte) ([]byte, error)) error {
	return atomicfile.Change(path, 0o600, func([]byte) ([]byte, error) {
		if _, err := readKeys(path); err != nil {
			return nil, err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if content, err = change(content); err != nil {
			return nil, err
		}
		_, err = parseKeys(content)
		return content, err
	})
}
