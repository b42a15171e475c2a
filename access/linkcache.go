package access

import "atoll.dev/store"

// cachedLink is a Link as the cache has it.
type cachedLink struct {
	version int64
	link    Link
	err     error // the link cannot be used
}

// cachedCode is a LinkCode as the cache has it.
type cachedCode struct {
	version int64
	code    LinkCode
	err     error // the code cannot be used
}

// link returns the link of an external identity.
func (c *cache) link(issuer, subject string) (Link, bool, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := c.usable(); err != nil {
		return Link{}, false, err
	}
	l, known := c.state.links[linkID(issuer, subject)]
	if !known || l.err != nil || l.link.Issuer != issuer || l.link.Subject != subject {
		return Link{}, false, nil
	}
	l.link.Privileged = c.state.accounts[l.link.Account].privileged
	return l.link, true, nil
}

// linkCode returns the description of a code.
func (c *cache) linkCode(code string) (LinkCode, bool, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := c.usable(); err != nil {
		return LinkCode{}, false, err
	}
	found, known := c.state.codes[linkCodeID(code)]
	if !known || found.err != nil {
		return LinkCode{}, false, nil
	}
	found.code.Privileged = c.state.accounts[found.code.Account].privileged
	return found.code, true, nil
}

// openLink decrypts the link of a document.
func (c *cache) openLink(d store.Document) cachedLink {
	link, err := openLink(c.sealer, d)
	c.report(d.ID, err)
	return cachedLink{d.Version, link, err}
}

// openCode decrypts the link code of a document.
func (c *cache) openCode(d store.Document) cachedCode {
	code, err := openLinkCode(c.sealer, d)
	c.report(d.ID, err)
	return cachedCode{d.Version, code, err}
}

// report gives the observer a document that cannot be used.
func (c *cache) report(id string, err error) {
	if err != nil && c.observer.Unusable != nil {
		c.observer.Unusable(id, err)
	}
}
