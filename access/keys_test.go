package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/client"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/postgres"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	account   = "123456789012"
	principal = "arn:aws:iam::123456789012:user/admin"
)

func openStore(t *testing.T, dsn string, hooks store.Hooks) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn, Kinds: StoreKinds(), Migrations: Migrations(),
		Hooks: hooks}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// runKeys runs the KeyStore of one process until the test ends.
func runKeys(t *testing.T, s *store.Store, keyFile string, o CacheObserver) *KeyStore {
	t.Helper()
	k := NewKeyStore(s, sealer(t, keyFile), o)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	k.cache.mu.Lock()
	changed := k.cache.changed
	k.cache.mu.Unlock()
	go func() { ran <- k.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	})
	<-changed // the first relist
	return k
}

// eventually waits until holds returns true, and checks it after each change of the
// cache.
func eventually(t *testing.T, k *KeyStore, want string, holds func() bool) {
	t.Helper()
	limit := time.After(testsite.HangLimit)
	for {
		k.cache.mu.RLock()
		changed := k.cache.changed
		k.cache.mu.RUnlock()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("not within %s: %s", testsite.HangLimit, want)
		}
	}
}

func TestAKeyPairSignsUntilItIsDisabled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	k := runKeys(t, openStore(t, pgtest.DSN(t), store.Hooks{}), file, CacheObserver{})
	if err := k.PutAccount(t.Context(), Account{account, true}); err != nil {
		t.Fatal(err)
	}
	pair, secret, err := k.Create(t.Context(), account, principal)
	if err != nil {
		t.Fatal(err)
	}
	if !keyIDPattern.MatchString(pair.AccessKeyID) || len(secret) != 40 || pair.Disabled || pair.CreatedAt.IsZero() {
		t.Errorf("made %+v with a secret of %d characters", pair, len(secret))
	}
	v := &Verifier{Region: testRegion, Keys: k}
	verify := func() (Key, error) {
		r := request(t, "GET", "/x", "")
		if err := client.Sign(r, nil, client.Credentials{AccessKeyID: pair.AccessKeyID, SecretAccessKey: secret,
			Region: testRegion}, time.Now()); err != nil {
			t.Fatal(err)
		}
		key, _, err := v.Verify(r)
		return key, err
	}
	key, err := verify()
	want := Key{AccessKeyID: pair.AccessKeyID, Secret: secret, Account: account, Principal: principal, Privileged: true}
	if diff := cmp.Diff(want, key); err != nil || diff != "" {
		t.Errorf("at once: %v %s", err, diff)
	}
	if err := k.PutAccount(t.Context(), Account{account, false}); err != nil {
		t.Fatal(err)
	}
	if key, err := verify(); err != nil || key.Privileged {
		t.Errorf("no longer privileged: %+v, %v", key, err)
	}
	for range 2 { // the second changes nothing
		if got, err := k.Disable(t.Context(), pair.AccessKeyID); err != nil || !got.Disabled {
			t.Fatal(got, err)
		}
		if _, err := verify(); codeOf(err) != DisabledKey {
			t.Errorf("disabled: %v", err)
		}
	}
	pairs, err := k.List(t.Context())
	pair.Disabled = true
	if diff := cmp.Diff([]KeyPair{pair}, pairs); err != nil || diff != "" {
		t.Error(err, diff)
	}
	shown, err := json.Marshal(pairs)
	if err != nil || strings.Contains(strings.ToLower(string(shown)), "secret") {
		t.Errorf("the list shows %s, %v", shown, err)
	}
}

func TestAnotherProcessFollows(t *testing.T) {
	for _, isNotified := range []bool{true, false} {
		t.Run(fmt.Sprintf("notified %v", isNotified), func(t *testing.T) {
			dsn, file := pgtest.DSN(t), filepath.Join(t.TempDir(), "key")
			here := runKeys(t, openStore(t, dsn, store.Hooks{BeforeNotify: func() bool { return isNotified }}), file,
				CacheObserver{})
			there := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{})
			pair, secret, err := here.Create(t.Context(), account, principal)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, there, "the key pair is known", func() bool {
				key, ok, err := there.Lookup(pair.AccessKeyID)
				return ok && err == nil && key.Secret == secret && !key.Disabled
			})
			if _, err := here.Disable(t.Context(), pair.AccessKeyID); err != nil {
				t.Fatal(err)
			}
			eventually(t, there, "the key pair is disabled", func() bool {
				key, ok, _ := there.Lookup(pair.AccessKeyID)
				return ok && key.Disabled
			})
			if err := here.PutAccount(t.Context(), Account{account, true}); err != nil {
				t.Fatal(err)
			}
			eventually(t, there, "the account is privileged", func() bool {
				key, _, _ := there.Lookup(pair.AccessKeyID)
				return key.Privileged
			})
		})
	}
}

func TestKeyPairsVerifyWhileTheDatabaseIsDown(t *testing.T) {
	db := pgtest.StartServer(t)
	file := filepath.Join(t.TempDir(), "key")
	s := openStore(t, db.DSN("postgres", postgres.Superuser), store.Hooks{})
	k := runKeys(t, s, file, CacheObserver{})
	pair, secret, err := k.Create(t.Context(), account, principal)
	if err != nil {
		t.Fatal(err)
	}
	empty := NewKeyStore(s, sealer(t, file), CacheObserver{}) // a process that never had them
	db.Kill()
	if key, ok, err := k.Lookup(pair.AccessKeyID); !ok || err != nil || key.Secret != secret {
		t.Errorf("known key: %v %v", ok, err)
	}
	if _, ok, err := k.Lookup(otherID); ok || err != nil {
		t.Errorf("unknown key: %v %v", ok, err)
	}
	if err := k.Ready(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if _, _, err := empty.Lookup(otherID); !errors.Is(err, ErrNotReady) {
		t.Errorf("never filled: %v", err)
	}
	if err := empty.Ready(t.Context()); !errors.Is(err, ErrNotReady) {
		t.Errorf("never filled, ready: %v", err)
	}
	if _, _, err := k.Create(t.Context(), account, principal); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("create: %v", err)
	}
	db.Start()
	if _, err := k.Disable(t.Context(), pair.AccessKeyID); err != nil {
		t.Fatal(err)
	}
	eventually(t, k, "it is disabled", func() bool {
		key, _, _ := k.Lookup(pair.AccessKeyID)
		return key.Disabled
	})
}

func TestAWrongKeyFileIsReported(t *testing.T) {
	dsn, dir := pgtest.DSN(t), t.TempDir()
	s := openStore(t, dsn, store.Hooks{})
	pair, _, err := NewKeyStore(s, sealer(t, filepath.Join(dir, "right")), CacheObserver{}).Create(t.Context(), account,
		principal)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	unusable := map[string]error{}
	k := runKeys(t, s, filepath.Join(dir, "wrong"), CacheObserver{Unusable: func(id string, err error) {
		mu.Lock()
		defer mu.Unlock()
		unusable[id] = err
	}})
	if err := k.Ready(t.Context()); !errors.Is(err, ErrOtherKeyFile) {
		t.Errorf("ready: %v", err)
	}
	if _, ok, err := k.Lookup(pair.AccessKeyID); ok || err != nil {
		t.Errorf("found: %v, %v", ok, err)
	}
	if _, err := k.Disable(t.Context(), pair.AccessKeyID); err != nil {
		t.Fatal(err)
	}
	if err := k.Ready(t.Context()); err != nil {
		t.Errorf("ready after the lost key pair was disabled: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if err := unusable[pair.AccessKeyID]; !errors.Is(err, ErrOtherKeyFile) {
		t.Errorf("the observer got %v", unusable)
	}
}

// A writer of the database without the key file cannot move a key pair to a privileged
// account.
func TestAKeyPairThatWasChangedInTheDatabaseIsUnusable(t *testing.T) {
	dsn, file := pgtest.DSN(t), filepath.Join(t.TempDir(), "key")
	s := openStore(t, dsn, store.Hooks{})
	k := runKeys(t, s, file, CacheObserver{})
	good, _, err := k.Create(t.Context(), account, principal)
	if err != nil {
		t.Fatal(err)
	}
	bad, _, err := k.Create(t.Context(), "000000000001", "arn:aws:iam::000000000001:user/mallory")
	if err != nil {
		t.Fatal(err)
	}
	doc, _, err := s.Update(t.Context(), KindKeyPair, bad.AccessKeyID, 0, func(d *store.Document) error {
		d.Spec = json.RawMessage(strings.ReplaceAll(string(d.Spec), "000000000001", account))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.cache.await(t.Context(), doc)
	if _, ok, _ := k.Lookup(bad.AccessKeyID); ok {
		t.Error("the changed key pair is accepted")
	}
	if _, ok, _ := k.Lookup(good.AccessKeyID); !ok || k.Ready(t.Context()) != nil {
		t.Errorf("one damaged key pair takes others with it: %v", k.Ready(t.Context()))
	}
}

func TestARelistReplacesWhatWasKnown(t *testing.T) {
	s := sealer(t, filepath.Join(t.TempDir(), "key"))
	var c cache
	c.init(s, CacheObserver{})
	doc := func(id string, version int64) store.Document {
		sealed, err := s.Seal("secret of "+id, Bound{id, account, principal})
		if err != nil {
			t.Fatal(err)
		}
		spec, err := json.Marshal(keyPairSpec{Account: account, Principal: principal, SealedSecret: sealed})
		if err != nil {
			t.Fatal(err)
		}
		return store.Document{Kind: KindKeyPair, ID: id, Version: version, Spec: spec}
	}
	known := func() string {
		var ids []string
		for _, id := range []string{"a", "b", "c"} {
			_, ok, err := c.lookup(id)
			if err != nil {
				return err.Error()
			}
			if ok {
				ids = append(ids, id)
			}
		}
		return strings.Join(ids, "")
	}
	removed := store.Document{Kind: KindKeyPair, ID: "a", Version: 9, Removed: true}
	for _, step := range []struct {
		batch store.Batch
		want  string
	}{
		{store.Batch{Relist: true, First: true, Documents: []store.Document{doc("a", 7)}}, ErrNotReady.Error()},
		{store.Batch{Relist: true, Last: true, Documents: []store.Document{doc("b", 1)}}, "ab"},
		{store.Batch{First: true, Last: true, Documents: []store.Document{removed, doc("c", 1)}}, "bc"},
		{store.Batch{Relist: true, First: true, Documents: []store.Document{doc("a", 3)}}, "bc"},
		// interrupted, and again
		{store.Batch{Relist: true, First: true, Documents: []store.Document{doc("a", 3)}}, "bc"},
		// a restore took b and c away
		{store.Batch{Relist: true, Last: true}, "a"},
	} {
		if err := c.apply(t.Context(), step.batch); err != nil {
			t.Fatal(err)
		}
		if got := known(); got != step.want {
			t.Errorf("known are %q, want %q", got, step.want)
		}
	}
}

func TestMalformedKeyPairsAreRefused(t *testing.T) {
	k := NewKeyStore(nil, nil, CacheObserver{}) // nothing of this reaches the store
	for _, tc := range [][2]string{
		{"", principal}, {"12345678901", principal}, {"12345678901a", principal},
		{account, ""}, {account, "admin"}, {account, "arn:aws:iam::000000000000:user/admin"},
		{account, "arn:aws:iam::123456789012:user/\u0000"}, {account, "arn:aws:s3:::bucket"},
	} {
		if _, _, err := k.Create(t.Context(), cluster.Account(tc[0]), policy.Principal(tc[1])); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", tc, err)
		}
	}
	if _, err := k.Disable(t.Context(), "AKIA"); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := k.PutAccount(t.Context(), Account{ID: "1"}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestKeysDoNotShowTheirSecret(t *testing.T) {
	key := Key{AccessKeyID: testID, Secret: testSecret, SessionToken: testSecret}
	for _, s := range []string{fmt.Sprint(key), fmt.Sprintf("%+v", key), fmt.Sprintf("%#v", &key),
		fmt.Sprint(struct{ K Key }{key})} {
		if strings.Contains(s, testSecret) {
			t.Error(s)
		}
	}
}

func TestDisablingAnUnknownKeyPair(t *testing.T) {
	k := NewKeyStore(openStore(t, pgtest.DSN(t), store.Hooks{}), sealer(t, filepath.Join(t.TempDir(), "key")),
		CacheObserver{})
	if _, err := k.Disable(t.Context(), otherID); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
	if err := k.PutAccount(t.Context(), Account{account, true}); err != nil {
		t.Fatal(err)
	}
	got, err := k.Accounts(t.Context())
	if diff := cmp.Diff([]Account{{account, true}}, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Error(err, diff)
	}
}
