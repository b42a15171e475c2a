package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/store"
)

// CacheObserver observes the cache of key pairs. A nil func is not called.
type CacheObserver struct {
	// Unusable reports a key pair whose secret cannot be decrypted or whose
	// document is damaged. The error has no secret.
	Unusable func(accessKeyID string, err error)
}

// cache has the last known state of all key pairs and accounts. apply is its only
// writer; one goroutine calls it.
type cache struct {
	sealer   *Sealer
	observer CacheObserver

	mu        sync.RWMutex
	filled    bool
	state     cached
	followers followers
	changed   chan struct{}                // apply closes and replaces it
	readAt    time.Time                    // the state has every change that was committed before
	watchers  map[string]map[*watcher]bool // by access key id or watchedLink
	lapse     *time.Timer                  // ends the watchers when the state is too old; nil before the first read

	relist *cached // the state that a relist fills; only apply uses it
}

type cached struct {
	keys     map[string]cachedKey
	accounts map[cluster.Account]cachedAccount
	links    map[string]cachedLink
	codes    map[string]cachedCode
}

type cachedKey struct {
	version int64
	key     Key
	err     error // the key pair cannot be used
}

type cachedAccount struct {
	version    int64
	privileged bool
}

func (c *cache) init(s *Sealer, o CacheObserver) {
	c.sealer, c.observer = s, o
	c.state = newCached()
	c.changed = make(chan struct{})
	c.watchers = map[string]map[*watcher]bool{}
}

func newCached() cached {
	return cached{keys: map[string]cachedKey{}, accounts: map[cluster.Account]cachedAccount{},
		links: map[string]cachedLink{}, codes: map[string]cachedCode{}}
}

func (c *cache) lookup(id string) (Key, bool, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := c.usable(); err != nil {
		return Key{}, false, err
	}
	k, ok := c.state.keys[id]
	if !ok || k.err != nil {
		return Key{}, false, nil
	}
	k.key.Privileged = c.state.accounts[k.key.Account].privileged
	return k.key, true, nil
}

func (c *cache) isPrivileged(account cluster.Account) (bool, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.state.accounts[account].privileged, c.usable()
}

// apply writes a batch of the feed into the cache. A relist fills a state of its
// own, which replaces the known state when it is complete, versions included: the
// database may have been restored from a backup. So Lookup never sees a part of a
// relist.
func (c *cache) apply(_ context.Context, b store.Batch) error {
	opened := newCached()
	for _, d := range b.Documents {
		switch {
		case d.Removed:
		case d.Kind == KindKeyPair:
			opened.keys[d.ID] = c.open(d)
		case d.Kind == KindLink:
			opened.links[d.ID] = c.openLink(d)
		case d.Kind == KindLinkCode:
			opened.codes[d.ID] = c.openCode(d)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	target := &c.state
	if b.Relist {
		if b.First || c.relist == nil {
			fresh := newCached()
			c.relist = &fresh
		}
		target = c.relist
	}
	for _, d := range b.Documents {
		target.set(d, opened)
	}
	if b.Relist && b.Last {
		c.state, c.relist, c.filled = *c.relist, nil, true
	}
	close(c.changed)
	c.changed = make(chan struct{})
	c.endWatchers(c.refusalOf)
	return nil
}

// set takes one document of the feed. opened has the decrypted ones.
func (s *cached) set(d store.Document, opened cached) {
	switch {
	case d.Kind == KindKeyPair && d.Removed:
		delete(s.keys, d.ID)
	case d.Kind == KindKeyPair:
		s.keys[d.ID] = opened.keys[d.ID]
	case d.Kind == KindLink && d.Removed:
		delete(s.links, d.ID)
	case d.Kind == KindLink:
		s.links[d.ID] = opened.links[d.ID]
	case d.Kind == KindLinkCode && d.Removed:
		delete(s.codes, d.ID)
	case d.Kind == KindLinkCode:
		s.codes[d.ID] = opened.codes[d.ID]
	case d.Kind == KindAccount && d.Removed:
		delete(s.accounts, cluster.Account(d.ID))
	case d.Kind == KindAccount:
		var a Account
		// An account that cannot be read is not privileged.
		_ = json.Unmarshal(d.Spec, &a)
		s.accounts[cluster.Account(d.ID)] = cachedAccount{d.Version, a.Privileged && string(a.ID) == d.ID}
	}
}

// open decrypts the key pair of a document. A disabled key pair keeps its secret:
// only a caller who has the secret gets the error that the key is disabled.
func (c *cache) open(d store.Document) cachedKey {
	k := cachedKey{version: d.Version}
	var spec keyPairSpec
	if k.err = json.Unmarshal(d.Spec, &spec); k.err == nil {
		k.key = Key{
			AccessKeyID: d.ID,
			Account:     spec.Account,
			Principal:   spec.Principal,
			Disabled:    spec.Disabled || d.DeletedAt != nil,
		}
		var opened string
		opened, k.err = c.sealer.Open(spec.SealedSecret, Bound{d.ID, spec.Account, spec.Principal})
		if k.err == nil {
			k.err = k.key.setSecret(opened)
		}
	}
	c.report(d.ID, k.err)
	return k
}

func (c *cache) ready() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := c.usable(); err != nil {
		return fmt.Errorf("%w; is the database up?", err)
	}
	for _, k := range c.state.keys {
		// After the loss of a key file an operator disables its key pairs; they do
		// not keep the service from being ready.
		if errors.Is(k.err, ErrOtherKeyFile) && !k.key.Disabled {
			return k.err
		}
	}
	return nil
}

// awaitLimit bounds how long a change waits until the cache has it. When a
// notification is lost, the feed is polled every second.
const awaitLimit = 2 * time.Second

// await waits until the cache has the version of d. It returns at once when no
// follower keeps the cache up to date, and after awaitLimit at the latest.
func (c *cache) await(ctx context.Context, d store.Document) {
	c.awaitState(ctx, func(s *cached) bool { return s.version(d) >= d.Version })
}

// awaitRemoval is await for a key pair that was removed.
func (c *cache) awaitRemoval(ctx context.Context, accessKeyID string) {
	c.awaitState(ctx, func(s *cached) bool {
		_, known := s.keys[accessKeyID]
		return !known
	})
}

func (c *cache) awaitState(ctx context.Context, holds func(*cached) bool) {
	ctx, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	for {
		c.mu.RLock()
		isCached := c.followers.count.Load() == 0 || holds(&c.state)
		changed := c.changed
		c.mu.RUnlock()
		if isCached {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (s *cached) version(d store.Document) int64 {
	if d.Kind == KindKeyPair {
		return s.keys[d.ID].version
	}
	return s.accounts[cluster.Account(d.ID)].version
}
