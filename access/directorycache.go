package access

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// directoryCache has the last known documents of every account. Only apply changes them; one goroutine
// calls it. mu guards every field but relist.
type directoryCache struct {
	mu        sync.RWMutex
	filled    bool
	accounts  map[cluster.Account]*accountState
	followers followers
	changed   chan struct{} // apply closes and replaces it

	relist map[cluster.Account]*accountState // the state that a relist fills; only apply uses it
}

// accountState has the documents of an account and the view that is computed from them. Decisions read
// the view only. An accountState does not change once apply has published it.
type accountState struct {
	documents map[docKey]store.Document // without wire form
	parsed    map[string]parsedPolicy   // by id of the policy
	view      *accountView
}

type docKey struct {
	kind store.Kind
	id   string
}

// parsedPolicy is a compiled policy and the text that it was compiled from.
type parsedPolicy struct {
	text   string
	policy *policy.Policy
}

// accountView has the facts about an account by which decisions about its principals are made.
type accountView struct {
	isProvisioned, isPrivileged bool
	countsAdmins                bool // the account's status counts administrators
	admins                      map[policy.Principal]bool
	groupsOf                    map[policy.Principal][]string // ids of groups by ARN of a member
	policies                    *policy.Index
}

func (c *directoryCache) init() {
	c.accounts, c.changed = map[cluster.Account]*accountState{}, make(chan struct{})
}

// refuseAll stands for an attached policy that is missing or cannot be read, because that policy may
// have forbidden something.
var refuseAll = sync.OnceValue(func() *policy.Policy {
	p, err := policy.Parse(`forbid (principal, action, resource);`)
	if err != nil {
		panic(err)
	}
	return p
})

// apply adds a batch of the feed to the cache. A relist is collected in c.relist, which replaces
// c.accounts with its last batch.
func (c *directoryCache) apply(b store.Batch) {
	target := c.accounts
	if b.Relist {
		if b.First || c.relist == nil {
			c.relist = map[cluster.Account]*accountState{}
		}
		target = c.relist
	}
	next := map[cluster.Account]*accountState{}
	for _, d := range b.Documents {
		if !slices.Contains(directoryKinds, d.Kind) {
			continue
		}
		account := cluster.Account(d.Scope)
		if next[account] == nil {
			next[account] = target[account].clone()
		}
		key := docKey{d.Kind, d.ID}
		if d.Removed {
			delete(next[account].documents, key)
		} else {
			d.Wire = nil
			next[account].documents[key] = d
		}
	}
	for _, state := range next {
		state.rebuild()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for account, state := range next {
		if target[account] = state; len(state.documents) == 0 {
			delete(target, account)
		}
	}
	if b.Relist && b.Last {
		c.accounts, c.relist, c.filled = target, nil, true
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// clone returns a copy that apply may change; it shares the view.
func (s *accountState) clone() *accountState {
	n := &accountState{documents: map[docKey]store.Document{}, parsed: map[string]parsedPolicy{}}
	if s != nil {
		for k, d := range s.documents {
			n.documents[k] = d
		}
		for id, p := range s.parsed {
			n.parsed[id] = p
		}
	}
	return n
}

// rebuild computes the view of the documents. It compiles a policy only if the text has changed since
// the last time. An attachment of a policy that is missing or cannot be read refuses everything to its target.
func (s *accountState) rebuild() {
	v := &accountView{admins: map[policy.Principal]bool{}, groupsOf: map[policy.Principal][]string{}}
	parsed := map[string]parsedPolicy{}
	var attached []policy.Attached
	for key, d := range s.documents {
		switch key.kind {
		case KindAccount:
			var a Account
			v.isProvisioned = json.Unmarshal(d.Spec, &a) == nil && string(a.ID) == d.ID
			v.isPrivileged = v.isProvisioned && a.Privileged
			var count adminCount
			v.countsAdmins = json.Unmarshal(d.Status, &count) != nil || count.Admins > 0
		case KindAdmin:
			v.admins[policy.Principal(d.ID)] = true
		case KindGroup:
			var g groupSpec
			_ = json.Unmarshal(d.Spec, &g) // a group that cannot be read has no members
			for _, m := range g.Members {
				v.groupsOf[policy.Principal(m)] = append(v.groupsOf[policy.Principal(m)], d.ID)
			}
		case KindPolicy:
			parsed[d.ID] = s.parse(d)
		}
	}
	for key, d := range s.documents {
		if key.kind != KindAttachment {
			continue
		}
		var a attachmentSpec
		if json.Unmarshal(d.Spec, &a) != nil {
			continue // its target is not known
		}
		at := policy.Attached{PolicyID: a.PolicyID, Policy: parsed[a.PolicyID].policy}
		if m, isManaged := policy.FindManaged(a.PolicyID); isManaged {
			at.Policy = m.Policy
		}
		if at.Policy == nil {
			at.Policy = refuseAll()
		}
		if a.Type == TargetGroup {
			at.Group = a.Target
		} else {
			at.Principal = policy.Principal(a.Target)
		}
		attached = append(attached, at)
	}
	v.policies = policy.NewIndex(attached)
	s.parsed, s.view = parsed, v
}

// parse returns the compiled policy of a document: the last one if its text is the same, and refuseAll
// if it cannot be read.
func (s *accountState) parse(d store.Document) parsedPolicy {
	var spec policySpec
	if json.Unmarshal(d.Spec, &spec) != nil {
		return parsedPolicy{policy: refuseAll()}
	}
	if had, ok := s.parsed[d.ID]; ok && had.text == spec.Text {
		return had
	}
	p, err := policy.Parse(spec.Text)
	if err != nil {
		p = refuseAll()
	}
	return parsedPolicy{spec.Text, p}
}

var noView = &accountView{policies: policy.NewIndex(nil)}

// view returns the facts by which decisions about an account are made. isFilled is false until the first relist is
// complete.
func (c *directoryCache) view(account cluster.Account) (v *accountView, isFilled bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if s := c.accounts[account]; s != nil {
		return s.view, c.filled
	}
	return noView, c.filled
}

// hasVersion reports whether the cache has a document in a version at least as new, or, with the
// version 0, does not have it. Without followers it is always true, because nobody would bring it.
func (c *directoryCache) hasVersion(kind store.Kind, account cluster.Account, id string, version int64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.followers.count.Load() == 0 {
		return true
	}
	var known store.Document
	if s := c.accounts[account]; s != nil {
		known = s.documents[docKey{kind, id}]
	}
	if version == 0 {
		return known.Version == 0
	}
	return known.Version >= version
}

// await waits until the cache has a document in a version at least as new; 0 for a removed one. It
// returns at once when there are no followers, and when ctx ends or awaitLimit has passed.
func (c *directoryCache) await(ctx context.Context, kind store.Kind, account cluster.Account, id string,
	version int64) {
	ctx, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	for {
		c.mu.RLock()
		changed := c.changed
		c.mu.RUnlock()
		if c.hasVersion(kind, account, id, version) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
