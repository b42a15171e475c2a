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

	"atoll.dev/internal/atomicfile"
)

const (
	// TokenLife is the default life of a join token.
	TokenLife = 15 * time.Minute
	// tokenKeep is how long the CA keeps a token after its expiry: so long the error is
	// that the token has expired, and so long the key that redeemed it in time may
	// repeat the request, when it did not get the answer.
	tokenKeep = 24 * time.Hour

	tokenExt = ".json"
	claimExt = ".claim"
)

var (
	// ErrTokenUnknown means that the CA has no such token, or has removed it.
	ErrTokenUnknown = errors.New("join token is unknown")
	// ErrTokenExpired means that the token was not redeemed in time.
	ErrTokenExpired = errors.New("join token has expired")
	// ErrTokenUsed means that another key redeemed the token.
	ErrTokenUsed = errors.New("join token was already used by another key")
	// ErrWrongName means that the token or certificate is for another name than the
	// request.
	ErrWrongName = errors.New("request is for another name")
)

// tokenRecord is the file of a join token. It does not hold the token's text: the
// file's name is the hash of the text, so that a reader of the directory cannot redeem
// the token.
type tokenRecord struct {
	Identity Name      `json:"identity"`
	Expires  time.Time `json:"expires"`

	used bool // whether removeTokens found a claim
}

// CreateToken makes a one-time join token: for the next ttl, its text obtains a
// certificate with the given name, for one key. It fails with [ErrRevoked] when the name
// was revoked and not allowed since.
func (ca *CA) CreateToken(name Name, ttl time.Duration) (string, error) {
	text, err := ca.createToken(name, ttl)
	if err != nil {
		return "", fmt.Errorf("creating a join token for %s: %w", name, err)
	}
	return text, nil
}

func (ca *CA) createToken(name Name, ttl time.Duration) (string, error) {
	if err := name.Validate(); err != nil {
		return "", err
	}
	if ttl <= 0 {
		return "", fmt.Errorf("a life of %s is over before it begins", ttl)
	}
	unlock, err := ca.lock() // else a concurrent Revoke could miss the token
	if err != nil {
		return "", err
	}
	defer unlock()
	revoked, err := readRecord[revokedRecord](ca.dir, revokedDir, name)
	if err != nil {
		return "", err
	}
	if revoked.Barred {
		return "", fmt.Errorf("%s was %w at %s; `atoll mc allow %s` lets it join again", name, ErrRevoked,
			revoked.At.UTC().Format(time.RFC3339), name)
	}
	if err := ca.sweepTokens(); err != nil {
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
	return text, atomicfile.Create(ca.tokenPath(text)+tokenExt, data, 0o600)
}

// redeem returns the identity of a token and binds the token to the key with the given
// hash. Of concurrent calls with different keys one succeeds; the others fail with
// [ErrTokenUsed]. The same key may redeem the token again until the CA removes it,
// because an answer can be lost. When want is not empty and not the token's name,
// redeem fails with [ErrWrongName] and the token stays usable.
func (ca *CA) redeem(text, keyHash string, want Name) (Name, error) {
	path := ca.tokenPath(text)
	rec, err := readToken(path + tokenExt)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrTokenUnknown
	}
	if err != nil {
		return "", err
	}
	if want != "" && want != rec.Identity {
		return "", fmt.Errorf("%w: the token is that of %q, not of %q", ErrWrongName, rec.Identity, want)
	}
	have, err := os.ReadFile(path + claimExt)
	if errors.Is(err, fs.ErrNotExist) {
		if !time.Now().Before(rec.Expires) {
			return "", fmt.Errorf("%w: at %s", ErrTokenExpired, rec.Expires.Format(time.RFC3339))
		}
		if err = atomicfile.Create(path+claimExt, []byte(keyHash), 0o600); err == nil {
			return rec.Identity, nil
		}
		if errors.Is(err, fs.ErrExist) {
			have, err = os.ReadFile(path + claimExt)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // swept meanwhile
		return "", ErrTokenUnknown
	case err != nil:
		return "", err
	case string(have) != keyHash:
		return "", ErrTokenUsed
	}
	return rec.Identity, nil
}

// sweepTokens removes the tokens that expired more than tokenKeep ago.
func (ca *CA) sweepTokens() error {
	now := time.Now()
	_, err := ca.removeTokens(func(t tokenRecord) bool { return !now.Before(t.Expires.Add(tokenKeep)) })
	if err != nil {
		return fmt.Errorf("sweeping join tokens: %w", err)
	}
	return nil
}

// withdrawTokens removes a name's tokens and returns the number of those that were
// neither redeemed nor expired.
func (ca *CA) withdrawTokens(name Name) (open int, err error) {
	now := time.Now()
	removed, err := ca.removeTokens(func(t tokenRecord) bool { return t.Identity == name })
	for _, t := range removed {
		if !t.used && now.Before(t.Expires) {
			open++
		}
	}
	return open, err
}

// removeTokens removes the tokens that choose selects, and claims without a token.
func (ca *CA) removeTokens(choose func(tokenRecord) bool) (removed []tokenRecord, err error) {
	dir := filepath.Join(ca.dir, tokenDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
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
		} else {
			rec, err := readToken(path)
			if err != nil || !choose(rec) {
				continue // removed by another process, damaged (an error of redeem), or not selected
			}
			_, err = os.Stat(base + claimExt)
			rec.used = err == nil
			removed = append(removed, rec)
		}
		// The token goes first: a claim without its token redeems nothing.
		for _, p := range []string{base + tokenExt, base + claimExt} {
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return removed, err
			}
		}
	}
	return removed, nil
}

// tokenPath returns the path of a token's files without their extension.
func (ca *CA) tokenPath(text string) string {
	return filepath.Join(ca.dir, tokenDir, tokenHash(text))
}

// tokenHash returns the hex sha256 of a token's text.
func tokenHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// readToken reads a token's file.
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

// newSerial returns a random serial number of 127 bits.
func newSerial() (*big.Int, error) {
	limit := new(big.Int).Lsh(big.NewInt(1), 126)
	n, err := rand.Int(rand.Reader, limit)
	if err != nil {
		return nil, err
	}
	return n.SetBit(n, 126, 1), nil // never short, always positive
}
