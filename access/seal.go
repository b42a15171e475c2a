package access

import (
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
	"strings"
	"syscall"

	"atoll.dev/cluster"
	"atoll.dev/internal/atomicfile"
)

// Errors of Open.
var (
	// ErrOtherKeyFile: the secret was sealed with another key file.
	ErrOtherKeyFile = errors.New("sealed with another key file")
	// ErrSealBroken: the sealed secret was changed, or belongs to another key pair.
	ErrSealBroken = errors.New("sealed secret is damaged")
)

// Sealer encrypts secrets at rest with AES-256-GCM. A secret that was sealed for
// one key pair cannot be opened for another.
type Sealer struct {
	path string
	id   string // of the key; no secret
	aead cipher.AEAD
}

const keyFileHeader = "atoll key file v1: "

// OpenSealer reads the key file, which only its owner may read, and creates it when
// there is none. A crash meanwhile leaves no file or a complete one; several
// processes that start together use the same. Without the file the region's key
// pairs are lost: it belongs into a backup, apart from the database's.
func OpenSealer(path string) (*Sealer, error) {
	key, err := readKeyFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKeyFile(path); err == nil {
			key, err = readKeyFile(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening key file: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("opening key file %s: %w", path, err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("opening key file %s: %w", path, err)
	}
	sum := sha256.Sum256(append([]byte("atoll key file id\x00"), key...))
	return &Sealer{path: path, id: hex.EncodeToString(sum[:6]), aead: aead}, nil
}

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

func readKeyFile(path string) ([]byte, error) {
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
	text, ok := strings.CutPrefix(strings.TrimSpace(string(b)), keyFileHeader)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) != 32 {
		return nil,
			fmt.Errorf("%s is not a key file; restore it from a backup, or move it away to begin with new key pairs",
				path)
	}
	return key, nil
}

// makeKeyFile creates a key file with a new key. It changes nothing when the file
// exists.
func makeKeyFile(path string) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	text := keyFileHeader + base64.StdEncoding.EncodeToString(key) + "\n"
	if err := atomicfile.Create(path, []byte(text), 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// ID identifies the key file; it is not secret.
func (s *Sealer) ID() string { return s.id }

// Seal encrypts the secret of the key pair bound. The result names the key file:
// v1.<id>.<nonce and ciphertext>.
func (s *Sealer) Seal(secret string, bound Bound) (string, error) {
	nonce := make([]byte, s.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return "", fmt.Errorf("sealing the secret of %s: %w", bound.AccessKeyID, err)
	}
	sealed := s.aead.Seal(nonce, nonce, []byte(secret), bound.data())
	return "v1." + s.id + "." + base64.StdEncoding.EncodeToString(sealed), nil
}

// Open decrypts a result of Seal. Its errors are ErrOtherKeyFile and ErrSealBroken.
func (s *Sealer) Open(sealed string, bound Bound) (string, error) {
	version, rest, _ := strings.Cut(sealed, ".")
	id, text, _ := strings.Cut(rest, ".")
	if version == "v1" && id != s.id {
		return "",
			fmt.Errorf("the secret of %s was sealed with key file %s, and %s is key file %s; restore the right one: %w",
				bound.AccessKeyID, quoted(id), s.path, s.id, ErrOtherKeyFile)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if version != "v1" || err != nil || len(b) < s.aead.NonceSize() {
		return "", fmt.Errorf("opening the secret of %s: %w", bound.AccessKeyID, ErrSealBroken)
	}
	secret, err := s.aead.Open(nil, b[:s.aead.NonceSize()], b[s.aead.NonceSize():], bound.data())
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
	Principal   string
}

func (b Bound) data() []byte {
	return []byte("atoll key pair v1\x00" + b.AccessKeyID + "\x00" + string(b.Account) + "\x00" + b.Principal)
}
