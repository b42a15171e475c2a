package access

import (
	"maps"
	"slices"
	"strings"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/internal/rest"
)

// TrustLimit is how long a process accepts its key pairs after its last read of the database. A process
// that is cut off from the database cannot learn that a key was disabled (decision 092).
const TrustLimit = 15 * time.Minute

// usable returns ErrNotReady when the key pairs were never read, and ErrTooOld when the last read is
// older than TrustLimit. The caller holds mu.
func (c *cache) usable() error {
	switch {
	case !c.filled:
		return ErrNotReady
	case !c.readAt.IsZero() && time.Since(c.readAt) >= TrustLimit:
		return ErrTooOld
	}
	return nil
}

// confirm records that the state has every change that was committed before a time.
func (c *cache) confirm(readAt time.Time) {
	if readAt.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readAt = readAt
	left := TrustLimit - time.Since(readAt)
	if c.lapse == nil {
		c.lapse = time.AfterFunc(left, c.endAll)
		return
	}
	c.lapse.Reset(left)
}

// stopLapse stops the timer that ends the watchers.
func (c *cache) stopLapse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lapse != nil {
		c.lapse.Stop()
	}
}

// watcher is one call of OnInvalid.
type watcher struct{ end func(cause error) }

// watchedLink returns the id under which the cache has the watchers of a link to a principal. An identity that is
// linked anew has the same link id, and perhaps another principal.
func watchedLink(link string, principal policy.Principal) string {
	return link + " " + string(principal)
}

// onInvalid calls end when the key pair of an access key id is disabled or deleted, the link of a watchedLink is
// removed or leads to another principal, or the state is too old; at once when that has happened. A caller whom
// something else than a key pair or a link has proved has the id "", for which only the age of the state counts.
func (c *cache) onInvalid(id string, end func(cause error)) (stop func()) {
	w := &watcher{end}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.usable() != nil {
		end(keysTooOld())
		return func() {}
	}
	if refusal := c.refusalOf(id); refusal != nil {
		end(refusal)
		return func() {}
	}
	if c.watchers[id] == nil {
		c.watchers[id] = map[*watcher]bool{}
	}
	c.watchers[id][w] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers[id], w)
		if len(c.watchers[id]) == 0 {
			delete(c.watchers, id)
		}
	}
}

// refusalOf returns why the key pair of an access key id, or a watchedLink, is not accepted any more, or nil. The
// caller holds mu.
func (c *cache) refusalOf(id string) *rest.Error {
	if link, principal, isLink := strings.Cut(id, " "); isLink {
		if l, known := c.state.links[link]; !known || l.err != nil || string(l.link.Principal) != principal {
			return refuse(NotLinked, "the link of the identity was removed; get a code for a new one from an administrator of "+
				"your account")
		}
		return nil
	}
	k, known := c.state.keys[id]
	switch {
	case id == "":
		return nil
	case !known || k.err != nil:
		return refuse(DeletedKey, "the access key %s was deleted", quoted(id))
	case k.key.Disabled:
		return refuse(DisabledKey, "the access key %s is disabled; use another", quoted(id))
	}
	return nil
}

// endWatchers ends the watchers of key pairs for which refusal returns an error. The caller holds mu.
func (c *cache) endWatchers(refusal func(id string) *rest.Error) {
	for _, id := range slices.Collect(maps.Keys(c.watchers)) {
		cause := refusal(id)
		if cause == nil {
			continue
		}
		for w := range c.watchers[id] {
			w.end(cause)
		}
		delete(c.watchers, id)
	}
}

// endAll ends all watchers, because the state is too old.
func (c *cache) endAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.usable() != nil {
		c.endWatchers(func(string) *rest.Error { return keysTooOld() })
	}
}

func keysTooOld() *rest.Error {
	return refuse(KeysNotReady, "the region could not read its key pairs for %s, so it cannot decide whether one was "+
		"disabled; try again", TrustLimit)
}
