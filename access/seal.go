package access

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
)

// Errors of Open.
var (
	// ErrOtherKeyFile: the secret was sealed with another key file.
	ErrOtherKeyFile = errors.New("sealed with another key file")
	// ErrSealBroken: the sealed secret was changed, or belongs to another key pair.
	ErrSealBroken = errors.New("sealed secret is damaged")
)

// Sealer encrypts secrets at rest with AES-256-GCM. A secret that was sealed for
// one key pair cannot be opened for another. It reads its key file again while it is
// used, so that a rotation needs no restart. Many goroutines may use a Sealer.
type Sealer struct {
	path string

	reading sync.Mutex // held while the file is read and KMS plugins are asked; taken before mu

	mu         sync.Mutex
	readAt     time.Time
	keys       []sealKey // the first one seals
	refused    error     // why nothing may be sealed; nil: keys[0] seals
	unreadable error     // of the last read; keys are then those of an earlier read
}

// sealReread is how long a Sealer uses the keys that it has read before it reads the file again.
const sealReread = time.Second

// OpenSealer reads the key file, which only its owner may read, and creates it when
// there is none. A crash meanwhile leaves no file or a complete one; several
// processes that start together use the same. Without the file the region's key
// pairs are lost: it belongs into a backup, apart from the database's. A key that is wrapped is unwrapped once, by the
// KMS plugin that the file names, and then stays in memory.
func OpenSealer(path string) (*Sealer, error) {
	keys, err := readKeyFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKeyFile(path); err == nil {
			keys, err = readKeyFile(path)
		}
	}
	if err == nil {
		keys, err = withSealKeys(keys, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("opening key file: %w", err)
	}
	return &Sealer{path: path, keys: keys, readAt: time.Now()}, nil
}

// current returns the keys, and reads the key file again when the last read is older than limit. When the file cannot
// be read, the keys in memory stay. With an error nothing may be sealed, and the keys in memory still open. The error
// is ErrOtherKeyFile when the file shares no key with the one before: it belongs to another region, and after a restart
// nothing could open the secrets of the keys in memory. Or it is the KMS plugin's error: see readUnlessRecent. When
// several callers find the read too old, one of them reads the file. The others get the keys in memory, because a KMS
// plugin may be slow.
func (s *Sealer) current(limit time.Duration) ([]sealKey, error) {
	if !s.isOlder(limit) || !s.reading.TryLock() {
		return s.latest()
	}
	defer s.reading.Unlock()
	return s.readUnlessRecent(limit)
}

// awaitCurrent is current, but waits while another caller reads the file.
func (s *Sealer) awaitCurrent(limit time.Duration) ([]sealKey, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.readUnlessRecent(limit)
}

// isOlder reports whether the last read is longer ago than a limit.
func (s *Sealer) isOlder(limit time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.readAt) > limit
}

// latest returns the keys that the last read of the file found, or its error.
func (s *Sealer) latest() ([]sealKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys, s.refused
}

// Problem returns why the keys in use are not those of the file; nil when they are. Until the file is right again, a
// restart would fail, or the process could not open the secrets that it has sealed meanwhile.
func (s *Sealer) Problem() error {
	_, _ = s.current(sealReread)
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.unreadable, s.refused)
}

// readUnlessRecent reads the file unless the last read is younger than limit. When a wrapped key of the file cannot be
// unwrapped, the keys in memory stay. If the file also has a new first key, the error forbids sealing: the old first
// key may be dropped soon, and its secrets would be lost. The caller holds reading.
func (s *Sealer) readUnlessRecent(limit time.Duration) ([]sealKey, error) {
	if !s.isOlder(limit) { // another caller has read it meanwhile
		return s.latest()
	}
	known, _ := s.latest()
	keys, err := readKeyFile(s.path)
	isNewFirst := err == nil && keys[0].line != known[0].line
	var locked error
	if err == nil {
		keys, locked = withSealKeys(keys, known)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readAt = time.Now()
	if s.unreadable = errors.Join(err, locked); s.unreadable != nil {
		if locked != nil {
			s.refused = nil
		}
		if locked != nil && isNewFirst {
			s.refused = fmt.Errorf("%s has a new first key, and a key of the file cannot be unwrapped; nothing is sealed: %w",
				s.path, locked)
		}
		return s.keys, s.refused
	}
	s.refused = nil
	if slices.ContainsFunc(keys, func(k sealKey) bool { return isSealKey(s.keys, k.id) }) {
		s.keys = keys
	} else {
		s.refused = fmt.Errorf("%s has no key of those it had, %s among them; restore it: %w", s.path, s.keys[0].id,
			ErrOtherKeyFile)
	}
	return s.keys, s.refused
}

// key returns the key of an id. It reads the file once more when the key is unknown: another process may seal with it.
func (s *Sealer) key(id string) (found sealKey, ids string, isKnown bool) {
	keys, _ := s.current(sealReread)
	if found, isKnown = findSealKey(keys, id); !isKnown {
		keys, _ = s.awaitCurrent(sealReread / 20)
		found, isKnown = findSealKey(keys, id)
	}
	for _, k := range keys {
		ids = strings.TrimPrefix(ids+", "+k.id, ", ")
	}
	return found, ids, isKnown
}

// keyIDs returns the ids of the keys, which are no secrets. The first one seals.
func (s *Sealer) keyIDs() []string {
	keys, _ := s.current(sealReread)
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = k.id
	}
	return ids
}

// ID identifies the key that seals; it is not secret.
func (s *Sealer) ID() string { return s.keyIDs()[0] }

// Seal encrypts the secret of the key pair bound. The result names the key:
// v1.<id>.<nonce and ciphertext>.
func (s *Sealer) Seal(secret string, bound Bound) (string, error) {
	keys, err := s.current(sealReread)
	if err != nil {
		return "", fmt.Errorf("sealing the secret of %s: %w", bound.AccessKeyID, err)
	}
	key := keys[0]
	nonce := make([]byte, key.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return "", fmt.Errorf("sealing the secret of %s: %w", bound.AccessKeyID, err)
	}
	sealed := key.aead.Seal(nonce, nonce, []byte(secret), bound.data())
	return "v1." + key.id + "." + base64.StdEncoding.EncodeToString(sealed), nil
}

// Open decrypts a result of Seal. Its errors are ErrOtherKeyFile and ErrSealBroken.
func (s *Sealer) Open(sealed string, bound Bound) (string, error) {
	version, rest, _ := strings.Cut(sealed, ".")
	id, text, _ := strings.Cut(rest, ".")
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if version != "v1" {
		return "", fmt.Errorf("opening the secret of %s: %w", bound.AccessKeyID, ErrSealBroken)
	}
	key, ids, isKnown := s.key(id)
	if !isKnown {
		return "", fmt.Errorf("the secret of %s was sealed with key %s, and %s has key %s; restore the right one: %w",
			bound.AccessKeyID, quoted(id), s.path, ids, ErrOtherKeyFile)
	}
	if err != nil || len(b) < key.aead.NonceSize() {
		return "", fmt.Errorf("opening the secret of %s: %w", bound.AccessKeyID, ErrSealBroken)
	}
	secret, err := key.aead.Open(nil, b[:key.aead.NonceSize()], b[key.aead.NonceSize():], bound.data())
	if err != nil {
		return "", fmt.Errorf("opening the secret of %s: %w", bound.AccessKeyID, ErrSealBroken)
	}
	return string(secret), nil
}

// Bound is the key pair that a sealed secret belongs to. A writer of the database
// without the key file cannot give a secret to another key pair, nor a key pair to
// another account or principal.
type Bound struct {
	AccessKeyID string
	Account     cluster.Account
	Principal   policy.Principal
}

func (b Bound) data() []byte {
	return []byte("atoll key pair v1\x00" + b.AccessKeyID + "\x00" + string(b.Account) + "\x00" + string(b.Principal))
}
