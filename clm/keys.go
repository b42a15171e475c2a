package clm

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
)

const (
	// The server loads an issuer's keys again after keysFresh, and for a token with an unknown key, but at
	// most once in keysPause.
	keysFresh = time.Hour
	keysPause = 10 * time.Second
	// loadTimeout bounds one request for an issuer's keys, and maxKeySet the bytes of its answer.
	loadTimeout = 5 * time.Second
	maxKeySet   = 1 << 20
	// maxTried bounds the keys that verify a token without key id.
	maxTried = 32
)

var (
	// errKeys is the error of a verification for which no keys could be loaded.
	errKeys = errors.New("no keys")
	// errUnknownKey is the error of a key id that the issuer does not publish.
	errUnknownKey = errors.New("the issuer has no such key")
)

// keyCache holds the keys of one issuer, and decides when to load them. It loads nothing before the first token. Its
// methods may be called from several goroutines.
type keyCache struct {
	load func(context.Context) ([]jose.JSONWebKey, error)

	mu      sync.Mutex
	keys    []jose.JSONWebKey // of the last successful load
	loaded  time.Time         // the end of the last successful load; zero: no keys are known
	tried   time.Time         // the start of the last load
	running *keyLoad          // nil: no load runs
}

// keyLoad is one attempt to load an issuer's keys.
type keyLoad struct {
	done chan struct{} // closed at the end of the load, after err was set
	err  error
}

func newKeyCache(load func(context.Context) ([]jose.JSONWebKey, error)) *keyCache {
	return &keyCache{load: load}
}

// keyOf returns the function that finds the key of a token for its verification: the key that the token names, or, for
// a token that names none, the keys that findAll returns.
func (k *keyCache) keyOf(ctx context.Context) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		if named, ok := token.Header["kid"]; ok {
			id, isText := named.(string)
			if !isText {
				return nil, errors.New("the key id of the token is no text")
			}
			key, err := k.find(ctx, id)
			return key.Key, err
		}
		keys, err := k.findAll(ctx)
		var set jwt.VerificationKeySet
		for _, key := range keys {
			set.Keys = append(set.Keys, key.Key)
		}
		return set, err
	}
}

// find returns the key with an id. It loads the keys if the key is unknown or the known keys are old. The
// error is errKeys if no keys are known and they cannot be loaded, and errUnknownKey if the issuer has no such
// key.
func (k *keyCache) find(ctx context.Context, id string) (jose.JSONWebKey, error) {
	if err := k.ensure(ctx, func() bool { return k.indexOf(id) >= 0 }); err != nil {
		return jose.JSONWebKey{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := k.indexOf(id); i >= 0 {
		return k.keys[i], nil
	}
	return jose.JSONWebKey{}, errUnknownKey
}

// indexOf returns the index of the key with an id, -1 if it is unknown. The caller holds k.mu.
func (k *keyCache) indexOf(id string) int {
	return slices.IndexFunc(k.keys, func(key jose.JSONWebKey) bool { return key.KeyID == id })
}

// findAll returns at most maxTried keys. It loads the keys if none is known or the known keys are old.
func (k *keyCache) findAll(ctx context.Context) ([]jose.JSONWebKey, error) {
	if err := k.ensure(ctx, k.hasKeys); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[:min(len(k.keys), maxTried)], nil
}

// reload loads the keys again, unless the last load began less than keysPause ago. Known keys stay if the load
// fails.
func (k *keyCache) reload(ctx context.Context) error {
	return k.ensure(ctx, func() bool { return false })
}

// hasKeys reports whether any keys are known. The caller holds k.mu.
func (k *keyCache) hasKeys() bool { return !k.loaded.IsZero() }

// ensure loads the keys if the known keys are old or not sufficient. One caller at a time loads. Other callers
// wait for the load only if the known keys are not sufficient for them, so that tokens with known keys are
// verified while the issuer does not answer. The error is errKeys if no keys are known afterwards.
func (k *keyCache) ensure(ctx context.Context, sufficient func() bool) error {
	k.mu.Lock()
	now, satisfied, running := time.Now(), sufficient(), k.running
	stale := !satisfied || now.Sub(k.loaded) > keysFresh
	start := running == nil && stale && now.Sub(k.tried) > keysPause
	if start {
		running = &keyLoad{done: make(chan struct{})}
		k.running, k.tried = running, now
	}
	k.mu.Unlock()
	switch {
	case start:
		k.run(ctx, running)
	case !satisfied && running != nil:
		select {
		case <-running.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.hasKeys() && running != nil && running.err != nil {
		return fmt.Errorf("%w: %w", errKeys, running.err)
	}
	return nil
}

// run performs a load and ends it. After an error the known keys stay.
func (k *keyCache) run(ctx context.Context, l *keyLoad) {
	keys, err := k.load(context.WithoutCancel(ctx)) // other callers wait for this load, too
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil:
		k.keys, k.loaded = keys, time.Now()
	case !k.hasKeys():
		k.tried = time.Time{} // without keys every token fails, so the next caller loads again at once
	}
	l.err, k.running = err, nil
	close(l.done)
}

// loadFile returns the keys in a file.
func loadFile(name string) ([]jose.JSONWebKey, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseKeys(data)
}

// loadURL returns the keys that an issuer serves.
func loadURL(ctx context.Context, client *http.Client, url string) ([]jose.JSONWebKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err != nil {
		return nil, fmt.Errorf("reading the keys of %s: %w", url, err)
	}
	if len(data) > maxKeySet {
		return nil, fmt.Errorf("the keys of %s have more than %d bytes", url, maxKeySet)
	}
	return parseKeys(data)
}

// parseKeys returns the RSA keys for signatures in a JWK set (RFC 7517). It skips other keys and keys that
// cannot be decoded, because they must not lock out the holders of tokens with good keys. A set without usable key is
// an error.
func parseKeys(data []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("reading a key set: %w", err)
	}
	var keys []jose.JSONWebKey
	var refused error
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(text); err != nil {
			refused = fmt.Errorf("a key cannot be decoded: %w", err)
			continue
		}
		_, isRSA := key.Key.(*rsa.PublicKey)
		isForSignatures := key.Use == "" || key.Use == "sig"
		isRS256 := key.Algorithm == "" || key.Algorithm == string(jose.RS256)
		if isRSA && key.Valid() && isForSignatures && isRS256 {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.Join(errors.New("the key set has no RSA key for signatures"), refused)
	}
	return keys, nil
}
