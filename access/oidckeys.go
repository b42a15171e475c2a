package access

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/time/rate"
)

const (
	keysPeriod  = 5 * time.Minute  // between two reads of the issuer's keys
	keysRetry   = 10 * time.Second // at least between two reads, however many callers need the keys
	keysTrusted = time.Hour        // how long the keys of the last read are used
	keysTimeout = 5 * time.Second  // of one request to the issuer

	maxIssuerAnswer = 256 << 10
	maxIssuerKeys   = 100
	minRSABits      = 2048
)

// issuerKeys are the keys of an issuer. One goroutine, run, reads them; a token with an unknown key makes it
// read them again, once in keysRetry, whatever the number of tokens.
type issuerKeys struct {
	issuer string
	http   *http.Client
	log    *slog.Logger
	often  rate.Sometimes
	wake   chan struct{}

	mu        sync.Mutex
	keys      map[string]jose.JSONWebKey // by key id
	readAt    time.Time                  // of the last read that succeeded
	triedAt   time.Time                  // of the last read
	isReading bool
	read      chan struct{} // closed and replaced after each read
}

func newIssuerKeys(o OIDCOptions) *issuerKeys {
	log := o.Log
	if log == nil {
		log = slog.Default()
	}
	return &issuerKeys{issuer: o.Issuer, log: log, often: rate.Sometimes{Interval: time.Minute},
		wake: make(chan struct{}, 1), read: make(chan struct{}), isReading: true,
		http: &http.Client{
			Timeout: keysTimeout,
			Transport: &http.Transport{
				TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
				TLSHandshakeTimeout:    keysTimeout,
				MaxResponseHeaderBytes: 64 << 10,
				DisableCompression:     true, // a small answer could become a large one
				DisableKeepAlives:      true, // one request in minutes
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
}

// run reads the keys until ctx ends, and returns its cause.
func (k *issuerKeys) run(ctx context.Context) error {
	for {
		keys, err := k.fetch(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		k.finish(keys, err)
		pause := keysPeriod
		if err != nil {
			pause = keysRetry
			k.often.Do(func() { k.log.Error("the keys of the issuer cannot be read", "issuer", k.issuer, "error", err) })
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-k.wake:
		}
		timer.Stop()
		k.begin()
	}
}

// begin records that a read begins.
func (k *issuerKeys) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isReading = true
	select {
	case <-k.wake: // a token has asked for this read, too
	default:
	}
}

// finish records the outcome of a read. Keys that the issuer does not publish any more are not accepted any more.
func (k *issuerKeys) finish(keys map[string]jose.JSONWebKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.triedAt, k.isReading = time.Now(), false
	if err == nil {
		k.keys, k.readAt = keys, k.triedAt
	}
	close(k.read)
	k.read = make(chan struct{})
}

// find returns the key of an id. For an unknown id it waits for a read of the keys if one runs, or may begin.
// Its errors are *rest.Error.
func (k *issuerKeys) find(ctx context.Context, id string) (jose.JSONWebKey, error) {
	key, read, err := k.lookup(id)
	if read == nil {
		return key, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*keysTimeout)
	defer cancel()
	select {
	case <-read:
	case <-ctx.Done():
	}
	key, _, err = k.lookup(id)
	return key, err
}

// lookup returns the key of an id. When it is unknown and a read may bring it, read is closed after that.
func (k *issuerKeys) lookup(id string) (key jose.JSONWebKey, read <-chan struct{}, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	isUsable := !k.readAt.IsZero() && time.Since(k.readAt) < keysTrusted
	if key, known := k.keys[id]; isUsable && known {
		return key, nil, nil
	}
	if k.isReading || time.Since(k.triedAt) >= keysRetry {
		if !k.isReading {
			k.isReading = true
			k.wake <- struct{}{} // it is empty: begin has emptied it since the last read
		}
		read = k.read
	}
	if !isUsable {
		return jose.JSONWebKey{}, read, refuse(IssuerUnavailable, "the region cannot read the keys of %s, so it cannot "+
			"verify the token; try again", k.issuer)
	}
	return jose.JSONWebKey{}, read, refuse(InvalidToken, "%s has no key %s; get a new token with: atoll login", k.issuer,
		quoted(id))
}

// fetch reads the keys that the issuer publishes.
func (k *issuerKeys) fetch(ctx context.Context) (map[string]jose.JSONWebKey, error) {
	var metadata struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	where := strings.TrimSuffix(k.issuer, "/") + "/.well-known/openid-configuration"
	if err := k.get(ctx, where, &metadata); err != nil {
		return nil, err
	}
	u, err := url.Parse(metadata.Keys)
	switch {
	case metadata.Issuer != k.issuer:
		return nil, fmt.Errorf("%s describes the issuer %s", where, quoted(metadata.Issuer))
	case err != nil || u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%s names the keys %s, which is no https URL", where, quoted(metadata.Keys))
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := k.get(ctx, metadata.Keys, &set); err != nil {
		return nil, err
	}
	return usableKeys(set.Keys)
}

// usableKeys returns the keys that can verify a signature. It leaves out keys of other uses and forms, and
// an id that two keys have.
func usableKeys(all []json.RawMessage) (map[string]jose.JSONWebKey, error) {
	if len(all) > maxIssuerKeys {
		return nil, fmt.Errorf("the issuer has %d keys, more than %d", len(all), maxIssuerKeys)
	}
	keys, twice := map[string]jose.JSONWebKey{}, []string{}
	for _, text := range all {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) != nil || !isUsable(key) {
			continue
		}
		if _, has := keys[key.KeyID]; has {
			twice = append(twice, key.KeyID)
		}
		keys[key.KeyID] = key
	}
	for _, id := range twice {
		delete(keys, id)
	}
	if len(keys) == 0 {
		return nil, errors.New("the issuer has no key that can verify a token")
	}
	return keys, nil
}

// isUsable reports whether a key is a public one with an id that verifies signatures.
func isUsable(key jose.JSONWebKey) bool {
	if of, isRSA := key.Key.(*rsa.PublicKey); isRSA && of.N.BitLen() < minRSABits {
		return false
	}
	isKnown := key.Algorithm == "" || slices.Contains(oidcAlgorithms, jose.SignatureAlgorithm(key.Algorithm))
	return key.Valid() && key.IsPublic() && key.KeyID != "" && (key.Use == "" || key.Use == "sig") && isKnown
}

// get reads a document of the issuer.
func (k *issuerKeys) get(ctx context.Context, where string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "application/json")
	answer, err := k.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxIssuerAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading %s: %w", where, err)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answered %s", where, answer.Status)
	case len(body) > maxIssuerAnswer:
		return fmt.Errorf("%s answered with more than %d bytes", where, maxIssuerAnswer)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading %s: %w", where, err)
	}
	return nil
}
