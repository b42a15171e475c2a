package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/access/policy"
	"atoll.dev/client"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/postgres"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

const testRole = "arn:aws:iam::123456789012:role/deployer"

func TestASessionSignsAsItsRoleUntilItExpires(t *testing.T) {
	k := runKeys(t, openStore(t, pgtest.DSN(t), store.Hooks{}), filepath.Join(t.TempDir(), "key"), CacheObserver{})
	s, err := k.CreateSession(t.Context(), account, testRole, "ci", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const want = "arn:aws:sts::123456789012:assumed-role/deployer/ci"
	if s.Principal != want || !strings.HasPrefix(s.AccessKeyID, "ASIA") || s.ExpiresAt.IsZero() ||
		strings.Contains(fmt.Sprintf("%v %#v", s, s), s.Secret) {
		t.Errorf("made %v", s.KeyPair)
	}
	now := time.Now()
	v := &Verifier{Region: testRegion, Keys: k, Now: func() time.Time { return now }, Used: k.RecordUse}
	good := client.Credentials{AccessKeyID: s.AccessKeyID, SecretAccessKey: s.Secret, SessionToken: s.Token,
		Region: testRegion}
	with := func(change func(*client.Credentials)) client.Credentials {
		c := good
		change(&c)
		return c
	}
	identify := func(c client.Credentials) (Identity, error) {
		r := request(t, "GET", "/x", "")
		if err := client.Sign(r, nil, c, now); err != nil {
			t.Fatal(err)
		}
		id, _, err := v.Identify(r)
		return id, err
	}
	id, err := identify(good)
	wanted := Evidence{Method: BySignature, Credential: s.AccessKeyID, Session: "ci", Until: s.ExpiresAt}
	if diff := cmp.Diff(wanted, id.Evidence); err != nil || diff != "" || id.Principal != want {
		t.Errorf("%v %s %s", err, id.Principal, diff)
	}
	for name, tc := range map[string]struct {
		creds client.Credentials
		at    time.Time
		code  Code
	}{
		"without a token": {with(func(c *client.Credentials) { c.SessionToken = "" }), now, UnexpectedToken},
		"another token":   {with(func(c *client.Credentials) { c.SessionToken += "x" }), now, UnexpectedToken},
		"another secret":  {with(func(c *client.Credentials) { c.SecretAccessKey += "x" }), now, WrongSignature},
		"the last second": {good, s.ExpiresAt.Add(-time.Second), ""},
		"expired":         {good, s.ExpiresAt, ExpiredCredentials},
	} {
		now = tc.at
		if _, err := identify(tc.creds); codeOf(err) != tc.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := k.writeUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	pairs, err := k.List(t.Context())
	if err != nil || len(pairs) != 1 || !pairs[0].LastUsedAt.Equal(s.ExpiresAt.Add(-time.Second)) ||
		!pairs[0].ExpiresAt.Equal(s.ExpiresAt) {
		t.Errorf("listed %+v, %v", pairs, err)
	}
	if err := k.Delete(t.Context(), s.AccessKeyID); err != nil {
		t.Fatal(err)
	}
	now = time.Now()
	if _, err := identify(good); codeOf(err) != UnknownKey {
		t.Errorf("deleted: %v", err)
	}
	for _, tc := range []struct {
		principal, name string
		of              time.Duration
	}{
		{testRole, "", time.Hour}, {testRole, "a/b", time.Hour}, {testRole, "ci", time.Second},
		{testRole, "ci", 13 * time.Hour}, {principal, "ci", time.Hour},
		{"arn:aws:iam::123456789012:role/path/deployer", "ci", time.Hour},
		{"arn:aws:iam::999999999999:role/deployer", "ci", time.Hour},
	} {
		_, err := k.CreateSession(t.Context(), account, policy.Principal(tc.principal), tc.name, tc.of)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// A writer of the database who has no key file cannot extend a session.
func TestTheEndOfASessionIsSealed(t *testing.T) {
	db := openStore(t, pgtest.DSN(t), store.Hooks{})
	k := runKeys(t, db, filepath.Join(t.TempDir(), "key"), CacheObserver{})
	s, err := k.CreateSession(t.Context(), account, principal, "", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	later := s.ExpiresAt.Add(time.Hour)
	doc, _, err := db.Update(t.Context(), KindKeyPair, s.AccessKeyID, 0, func(d *store.Document) error {
		var spec keyPairSpec
		if err := json.Unmarshal(d.Spec, &spec); err != nil {
			return err
		}
		spec.Expires = &later
		var err error
		d.Spec, err = json.Marshal(spec)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	k.cache.await(t.Context(), doc)
	if key, known, err := k.Lookup(s.AccessKeyID); !known || err != nil || !key.Expires.Equal(s.ExpiresAt) {
		t.Errorf("%v %v %v", key.Expires, known, err)
	}
}

// A key is replaced without a gap: its principal has two for a while, and never three.
func TestAKeyIsRotatedWithoutAGap(t *testing.T) {
	k := runKeys(t, openStore(t, pgtest.DSN(t), store.Hooks{}), filepath.Join(t.TempDir(), "key"), CacheObserver{})
	var made sync.Map
	var wait sync.WaitGroup
	for range 6 {
		wait.Go(func() {
			pair, _, err := k.Create(t.Context(), account, principal)
			switch {
			case err == nil:
				made.Store(pair.AccessKeyID, true)
			case !errors.Is(err, ErrTooManyKeys):
				t.Error(err)
			}
		})
	}
	wait.Wait()
	var ids []string
	made.Range(func(id, _ any) bool { ids = append(ids, id.(string)); return true })
	if len(ids) != MaxKeys {
		t.Fatalf("six creations at the same time made %d keys", len(ids))
	}
	if _, err := k.Disable(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	third, _, err := k.Create(t.Context(), account, principal)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Enable(t.Context(), ids[0]); !errors.Is(err, ErrTooManyKeys) {
		t.Errorf("a third enabled key: %v", err)
	}
	if err := k.Delete(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if pair, err := k.Enable(t.Context(), ids[0]); err != nil || pair.Disabled {
			t.Errorf("enabled: %+v %v", pair, err)
		}
	}
	if _, _, err := k.Create(t.Context(), account, testRole); err != nil {
		t.Errorf("another principal: %v", err)
	}
	for _, id := range []string{third.AccessKeyID, ids[0]} {
		if key, known, err := k.Lookup(id); !known || key.Disabled || err != nil {
			t.Errorf("%s: %v %v %v", id, known, key.Disabled, err)
		}
	}
	for _, do := range []func() error{
		func() error { return k.Delete(t.Context(), ids[1]) },
		func() error { _, err := k.Enable(t.Context(), ids[1]); return err },
		func() error { _, err := k.Disable(t.Context(), otherID); return err },
	} {
		if err := do(); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("of no key: %v", err)
		}
	}
}

// A process that cannot read its database accepts its key pairs for TrustLimit, and then ends their watches.
func TestKeysAreTrustedForALimitedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		c.init(nil, CacheObserver{})
		c.state.keys[testID] = cachedKey{key: testKeys()[testID]}
		c.state.keys[otherID] = cachedKey{key: Key{AccessKeyID: otherID, Disabled: true}}
		c.filled = true
		c.confirm(time.Now())
		defer c.stopLapse()
		ended := make(chan error, 2)
		stop := c.onInvalid(testID, func(cause error) { ended <- cause })
		defer stop()
		<-time.After(TrustLimit - time.Second)
		c.confirm(time.Now()) // a read that changes nothing
		<-time.After(TrustLimit - time.Second)
		if _, known, err := c.lookup(testID); !known || err != nil {
			t.Errorf("trusted: %v %v", known, err)
		}
		if key, _, err := c.lookup(otherID); !key.Disabled || err != nil {
			t.Errorf("a disabled key: %v %v", key, err)
		}
		if len(ended) > 0 {
			t.Error("the watch has ended too early")
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if _, _, err := c.lookup(testID); !errors.Is(err, ErrTooOld) || !errors.Is(c.ready(), ErrTooOld) {
			t.Errorf("too old: %v, ready %v", err, c.ready())
		}
		if len(ended) != 1 || codeOf(<-ended) != KeysNotReady {
			t.Error("the watch goes on")
		}
		c.onInvalid(testID, func(cause error) { ended <- cause })
		if len(ended) != 1 {
			t.Error("a watch began without trust")
		}
		c.confirm(time.Now())
		if _, known, err := c.lookup(testID); !known || err != nil {
			t.Errorf("read again: %v %v", known, err)
		}
	})
}

// A disabled key stays disabled, and an unknown one unknown, while the database is down and after it is back.
func TestADisabledKeyStaysDisabledWithoutADatabase(t *testing.T) {
	db := pgtest.StartServer(t)
	k := runKeys(t, openStore(t, db.DSN("postgres", postgres.Superuser), store.Hooks{}), filepath.Join(t.TempDir(), "key"),
		CacheObserver{})
	pair, secret, err := k.Create(t.Context(), account, principal)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Disable(t.Context(), pair.AccessKeyID); err != nil {
		t.Fatal(err)
	}
	v := &Verifier{Region: testRegion, Keys: k}
	check := func(when string) {
		t.Helper()
		for id, want := range map[string]Code{pair.AccessKeyID: DisabledKey, otherID: UnknownKey} {
			r := request(t, "GET", "/x", "")
			if err := client.Sign(r, nil, client.Credentials{AccessKeyID: id, SecretAccessKey: secret,
				Region: testRegion}, time.Now()); err != nil {
				t.Fatal(err)
			}
			if _, _, err := v.Verify(r); codeOf(err) != want {
				t.Errorf("%s: %s: %v", when, id, err)
			}
		}
	}
	db.Kill()
	check("down")
	db.Start()
	back := time.Now()
	testsite.Eventually(t, "a read after the outage", func() error {
		k.cache.mu.RLock()
		defer k.cache.mu.RUnlock()
		if !k.cache.readAt.After(back) {
			return errors.New("not read yet")
		}
		return nil
	})
	check("back")
}

// The sessions of a role count together, whatever their names are; a role with a longer name counts by itself.
func TestTheSessionsOfARoleAreBounded(t *testing.T) {
	k := NewKeyStore(openStore(t, pgtest.DSN(t), store.Hooks{}), sealer(t, filepath.Join(t.TempDir(), "key")),
		CacheObserver{})
	var last Session
	for i := range maxSessions {
		s, err := k.CreateSession(t.Context(), account, testRole, fmt.Sprintf("ci-%d", i), time.Hour)
		if err != nil {
			t.Fatalf("session %d: %v", i, err)
		}
		last = s
	}
	if _, err := k.CreateSession(t.Context(), account, testRole, "another", time.Hour); !errors.Is(err, ErrTooManyKeys) {
		t.Errorf("a session more: %v", err)
	}
	for _, other := range []string{testRole + "-2", strings.TrimSuffix(testRole, "r")} {
		if _, err := k.CreateSession(t.Context(), account, policy.Principal(other), "ci", time.Hour); err != nil {
			t.Errorf("%s: %v", other, err)
		}
	}
	if err := k.Delete(t.Context(), last.AccessKeyID); err != nil {
		t.Fatal(err)
	}
	if _, err := k.CreateSession(t.Context(), account, testRole, "another", time.Hour); err != nil {
		t.Errorf("after one was deleted: %v", err)
	}
}

// A replica writes the use of a key after the key was deleted; the use is not stored.
func TestTheUseOfADeletedKeyIsNotStored(t *testing.T) {
	k := NewKeyStore(openStore(t, pgtest.DSN(t), store.Hooks{}), sealer(t, filepath.Join(t.TempDir(), "key")),
		CacheObserver{})
	var ids []string
	for range 2 {
		pair, _, err := k.Create(t.Context(), account, principal)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, pair.AccessKeyID)
		k.RecordUse(pair.AccessKeyID, time.Now())
	}
	if err := k.Delete(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if err := k.writeUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	uses, err := k.lastUses(t.Context())
	if err != nil || len(uses) != 1 || uses[ids[1]].IsZero() {
		t.Errorf("%v %v", uses, err)
	}
}
