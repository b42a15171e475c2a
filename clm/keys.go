package clm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
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

// errKeys is the error of a verification for which no keys could be loaded.
var errKeys = errors.New("no keys")

// keyCache holds the keys of one issuer. It decides when to load them; jwkset stores them and keyfunc finds the
// key of a token. It loads nothing before the first token. Its methods may be called from several goroutines.
type keyCache struct {
	jwkset.Storage // the known keys
	load           func(context.Context) ([]jwkset.JWK, error)

	mu      sync.Mutex
	loaded  time.Time // the end of the last successful load; zero: no keys are known
	tried   time.Time // the start of the last load
	running *keyLoad  // nil: no load runs
}

// keyLoad is one attempt to load an issuer's keys.
type keyLoad struct {
	done chan struct{} // closed at the end of the load, after err was set
	err  error
}

func newKeyCache(load func(context.Context) ([]jwkset.JWK, error)) *keyCache {
	return &keyCache{Storage: jwkset.NewMemoryStorage(), load: load}
}

// KeyRead returns the key with an id. It loads the keys if the key is unknown or the known keys are old. The
// error is errKeys if no keys are known and they cannot be loaded, and jwkset.ErrKeyNotFound if the issuer has
// no such key.
func (k *keyCache) KeyRead(ctx context.Context, id string) (jwkset.JWK, error) {
	err := k.ensure(ctx, func() bool {
		_, err := k.Storage.KeyRead(ctx, id)
		return err == nil
	})
	if err != nil {
		return jwkset.JWK{}, err
	}
	return k.Storage.KeyRead(ctx, id)
}

// KeyReadAll returns at most maxTried keys. It loads the keys if none is known or the known keys are old.
func (k *keyCache) KeyReadAll(ctx context.Context) ([]jwkset.JWK, error) {
	if err := k.ensure(ctx, k.hasKeys); err != nil {
		return nil, err
	}
	keys, err := k.Storage.KeyReadAll(ctx)
	return keys[:min(len(keys), maxTried)], err
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
	if err == nil {
		err = k.KeyReplaceAll(ctx, keys)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil:
		k.loaded = time.Now()
	case !k.hasKeys():
		k.tried = time.Time{} // without keys every token fails, so the next caller loads again at once
	}
	l.err, k.running = err, nil
	close(l.done)
}

// loadFile returns the keys in a file.
func loadFile(name string) ([]jwkset.JWK, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseKeys(data)
}

// loadURL returns the keys that an issuer serves.
func loadURL(ctx context.Context, client *http.Client, url string) ([]jwkset.JWK, error) {
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

// parseKeys returns the RSA keys for signatures in a JWK set (RFC 7517). It skips other keys and keys that jwkset
// refuses, because they must not lock out the holders of tokens with good keys. A set without usable key is an
// error.
func parseKeys(data []byte) ([]jwkset.JWK, error) {
	var set jwkset.JWKSMarshal
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("reading a key set: %w", err)
	}
	var keys []jwkset.JWK
	var refused error
	for _, m := range set.Keys {
		isForSignatures := m.USE == "" || m.USE == jwkset.UseSig
		if m.KTY != jwkset.KtyRSA || !isForSignatures || m.ALG != "" && m.ALG != jwkset.AlgRS256 {
			continue
		}
		key, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			refused = fmt.Errorf("key %q: %w", m.KID, err)
			continue
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.Join(errors.New("the key set has no RSA key for signatures"), refused)
	}
	return keys, nil
}
