package clm

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var errKeys = errors.New("no keys")

// key returns a public key of the issuer by its id.
func (i *issuer) key(ctx context.Context, id string) (*rsa.PublicKey, error) {
	keys, err := i.keysWith(ctx, func(keys map[string]*rsa.PublicKey) bool { return keys[id] != nil })
	if err != nil {
		return nil, err
	}
	if keys[id] == nil {
		return nil, fmt.Errorf("the issuer has no key %q", id)
	}
	return keys[id], nil
}

// age is the required age of keys.
type age int

const (
	freshEnough age = iota // the known keys
	newest                 // the issuer's present keys; known ones if they were fetched just now
)

// maxTried bounds the keys that are tried for a token that names none.
const maxTried = 32

// allKeys returns the issuer's keys in the order of their ids.
func (i *issuer) allKeys(ctx context.Context, want age) (jwt.VerificationKeySet, error) {
	var set jwt.VerificationKeySet
	keys, err := i.keysWith(ctx, func(keys map[string]*rsa.PublicKey) bool {
		return want == freshEnough && len(keys) > 0
	})
	for _, id := range slices.Sorted(maps.Keys(keys)) {
		if len(set.Keys) < maxTried {
			set.Keys = append(set.Keys, keys[id])
		}
	}
	if err == nil && len(set.Keys) == 0 {
		err = errors.New("the issuer has no keys")
	}
	return set, err
}

// keysWith returns the issuer's keys, by id. It fetches them if the known keys are old or
// not enough. One caller at a time fetches. Other callers wait for the fetch only if the
// known keys are not enough for them, so that callers with known keys do not wait for an
// issuer that does not answer.
func (i *issuer) keysWith(ctx context.Context, enough func(map[string]*rsa.PublicKey) bool) (map[string]*rsa.PublicKey,
	error) {
	i.mu.Lock()
	now, known, f := time.Now(), enough(i.keys), i.fetching
	mine := f == nil && (!known || now.Sub(i.fetched) > keysFresh) && now.Sub(i.tried) > keysPause
	if mine {
		f = &fetch{done: make(chan struct{})}
		i.fetching, i.tried = f, now
	}
	i.mu.Unlock()
	switch {
	case mine:
		i.refresh(ctx, f)
	case !known && f != nil:
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.keys == nil && f != nil && f.err != nil {
		return nil, fmt.Errorf("%w: %w", errKeys, f.err)
	}
	return i.keys, nil // refresh replaces the map and never changes it
}

// refresh fetches the keys and ends the fetch f. After an error the known keys stay.
func (i *issuer) refresh(ctx context.Context, f *fetch) {
	keys, err := i.fetch(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case err == nil:
		i.keys, i.fetched = keys, time.Now()
	case i.keys == nil:
		i.tried = time.Time{} // without keys every token fails, so that the next caller tries again at once
	}
	f.err, i.fetching = err, nil
	close(f.done)
}

// fetch reads the keys from the issuer's file or URL.
func (i *issuer) fetch(ctx context.Context) (map[string]*rsa.PublicKey, error) {
	if i.JWKCertFile != "" {
		data, err := os.ReadFile(i.JWKCertFile)
		if err != nil {
			return nil, err
		}
		return parseKeys(data)
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, i.JWKCertURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", i.JWKCertURL, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxKeys))
	if err != nil {
		return nil, err
	}
	return parseKeys(data)
}

// parseKeys returns the RSA keys of a JWK set (RFC 7517) by id, and skips other keys.
func parseKeys(data []byte) (map[string]*rsa.PublicKey, error) {
	var set struct {
		Keys []struct{ Kty, Kid, N, E string }
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("reading a key set: %w", err)
	}
	keys := map[string]*rsa.PublicKey{}
	for _, k := range set.Keys {
		if k.Kty != "RSA" {
			continue
		}
		n, err := base64.RawURLEncoding.DecodeString(k.N)
		if err != nil {
			return nil, fmt.Errorf("key %q: n: %w", k.Kid, err)
		}
		e, err := base64.RawURLEncoding.DecodeString(k.E)
		if err != nil || len(e) == 0 || len(e) > 4 {
			return nil, fmt.Errorf("key %q: e is no exponent", k.Kid)
		}
		keys[k.Kid] = &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no RSA key")
	}
	return keys, nil
}
