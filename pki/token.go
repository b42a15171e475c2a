package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	tokenExt = ".json"
	claimExt = ".claim"
)

var (
	// ErrTokenUnknown means that there is no such token, or none any more.
	ErrTokenUnknown = errors.New("join token is unknown or expired")
	// ErrTokenUsed means that another key redeemed the token.
	ErrTokenUsed = errors.New("join token was already used by another key")
)

// tokenRecord is a token at rest. Its text is not in it: the file is named by
// the text's hash, so that who can read the directory can redeem nothing.
type tokenRecord struct {
	Identity Name      `json:"identity"`
	Expires  time.Time `json:"expires"`
}

// CreateToken makes a one-time join token: for the next ttl, who presents its
// text gets a certificate with the given name, for one key.
func (ca *CA) CreateToken(name Name, ttl time.Duration) (string, error) {
	if err := name.Validate(); err != nil {
		return "", fmt.Errorf("creating a join token: %w", err)
	}
	if ttl <= 0 {
		return "", fmt.Errorf("creating a join token for %s: a life of %s is over before it begins", name, ttl)
	}
	if err := ca.SweepTokens(); err != nil {
		return "", err
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(raw)
	data, err := json.Marshal(tokenRecord{Identity: name, Expires: time.Now().Add(ttl).UTC()})
	if err != nil {
		return "", err
	}
	if err := createFile(ca.tokenPath(text)+tokenExt, data, 0o600); err != nil {
		return "", fmt.Errorf("creating a join token for %s: %w", name, err)
	}
	return text, nil
}

// redeem exchanges a token's text for its identity, on behalf of the key with
// the given hash. Of any number of concurrent calls with different keys one
// succeeds; the rest are [ErrTokenUsed]. The same key may redeem again until
// the token expires, because an answer can be lost.
func (ca *CA) redeem(text, keyHash string) (Name, error) {
	path := ca.tokenPath(text)
	rec, err := readToken(path + tokenExt)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrTokenUnknown
	}
	if err != nil {
		return "", err
	}
	if !time.Now().Before(rec.Expires) {
		return "", errors.Join(ErrTokenUnknown, ca.SweepTokens())
	}
	err = createFile(path+claimExt, []byte(keyHash), 0o600)
	if errors.Is(err, fs.ErrExist) {
		have, err := os.ReadFile(path + claimExt)
		switch {
		case errors.Is(err, fs.ErrNotExist): // swept: it has expired meanwhile
			return "", ErrTokenUnknown
		case err != nil:
			return "", err
		case string(have) != keyHash:
			return "", ErrTokenUsed
		}
		return rec.Identity, nil
	}
	if err != nil {
		return "", err
	}
	return rec.Identity, nil
}

// SweepTokens removes the tokens that have expired.
func (ca *CA) SweepTokens() error {
	dir := filepath.Join(ca.dir, tokenDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("sweeping join tokens: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		base, isToken := strings.CutSuffix(path, tokenExt)
		if claimed, ok := strings.CutSuffix(path, claimExt); ok {
			if _, err := os.Stat(claimed + tokenExt); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			base = claimed
		} else if !isToken {
			continue
		} else if rec, err := readToken(path); err == nil && time.Now().Before(rec.Expires) {
			continue
		} else if err != nil {
			continue // swept by another, or damaged: redeem names it
		}
		// The token goes first: a claim without its token redeems nothing.
		for _, p := range []string{base + tokenExt, base + claimExt} {
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("sweeping join tokens: %w", err)
			}
		}
	}
	return nil
}

func (ca *CA) tokenPath(text string) string {
	sum := sha256.Sum256([]byte(text))
	return filepath.Join(ca.dir, tokenDir, hex.EncodeToString(sum[:]))
}

func readToken(path string) (tokenRecord, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return tokenRecord{}, err
	}
	var rec tokenRecord
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err = dec.Decode(&rec); err == nil {
		err = rec.Identity.Validate()
	}
	if err != nil {
		return tokenRecord{}, fmt.Errorf("join token file %s is damaged: %w; remove it and make a new token", path, err)
	}
	return rec, nil
}

func newSerial() (*big.Int, error) {
	limit := new(big.Int).Lsh(big.NewInt(1), 126)
	n, err := rand.Int(rand.Reader, limit)
	if err != nil {
		return nil, err
	}
	return n.SetBit(n, 126, 1), nil // never short, always positive
}
