package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) {
	os.Exit(testsite.Main(func() int { leakcheck.Main(m); return 0 }, resealInChild))
}

// resealConfig is what a child process of these tests seals again.
type resealConfig struct{ DSN, KeyFile string }

func resealInChild(ctx context.Context, c resealConfig, _ testsite.Identity, log *slog.Logger, up func()) error {
	s, err := store.Open(ctx, store.Options{DSN: c.DSN, Kinds: StoreKinds(), Migrations: Migrations()}.Patient())
	if err != nil {
		return err
	}
	defer s.Close()
	sealer, err := OpenSealer(c.KeyFile)
	if err != nil {
		return err
	}
	up()
	err = NewKeyStore(s, sealer, CacheObserver{}).Reseal(ctx, NewFailures(log, nil), func(ResealProgress) {})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// addPair makes a key pair of a user of its own, and returns its id and secret.
func addPair(t *testing.T, k *KeyStore, user int) (id, secret string) {
	t.Helper()
	pair, secret, err := k.Create(t.Context(), account,
		policy.Principal(fmt.Sprintf("arn:aws:iam::%s:user/u%d", account, user)))
	if err != nil {
		t.Fatal(err)
	}
	return pair.AccessKeyID, secret
}

// addTestSealKey adds a key to a key file, in the place of its first one.
func addTestSealKey(t *testing.T, file string) (id string, err error) {
	added, err := newSealKeyAt(t.Context(), file, PlaceOfFirst)
	if err != nil {
		return "", err
	}
	return added.id, addSealKey(file, added)
}

// rotateSealKey adds a key to the file and makes it the first. The Sealers of the test read it at once.
func rotateSealKey(t *testing.T, file string, readers ...*KeyStore) (id string) {
	t.Helper()
	id, err := addTestSealKey(t, file)
	if err != nil {
		t.Fatal(err)
	}
	read := func() {
		for _, k := range readers {
			if _, err := k.sealer.current(0); err != nil {
				t.Error(err)
			}
		}
	}
	read()
	if err := promoteSealKey(file, id); err != nil {
		t.Fatal(err)
	}
	read()
	return id
}

func sealedBy(t *testing.T, k *KeyStore, id string) int {
	t.Helper()
	uses, err := k.SealKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range uses {
		if u.ID == id {
			return u.Documents
		}
	}
	return 0
}

// runReseal runs Reseal until the test ends. The channel gets its progress.
func runReseal(t *testing.T, k *KeyStore) <-chan ResealProgress {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	progress, ended := make(chan ResealProgress, 1), make(chan error, 1)
	go func() {
		ended <- k.Reseal(ctx, nil, func(p ResealProgress) {
			select {
			case progress <- p:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Reseal ended with %v", err)
		}
	})
	return progress
}

// A rotation: replicas verify callers all the time, keys are made and disabled meanwhile, everything is sealed with the
// new key at the end, and only then the old one can be dropped. Without the old key everything opens.
func TestASealKeyIsRotated(t *testing.T) {
	dsn, file := pgtest.DSN(t), filepath.Join(t.TempDir(), "seal.key")
	one := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{})
	two := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{})
	secrets := map[string]string{}
	const n = resealBatch + 7
	for i := range n {
		id, secret := addPair(t, one, i)
		secrets[id] = secret
	}
	if err := one.PutAccount(t.Context(), Account{ID: account}); err != nil {
		t.Fatal(err)
	}
	code := newCode(t, one, LinkCode{Principal: oidcUser})
	old := one.sealer.ID()
	if err := one.DropSealKey(t.Context(), old); !errors.Is(err, ErrSeals) {
		t.Errorf("dropping the only key: %v", err)
	}
	next := rotateSealKey(t, file, one, two)
	if _, err := addTestSealKey(t, file); !errors.Is(err, ErrRotating) {
		t.Errorf("a rotation within a rotation: %v", err)
	}
	if err := one.DropSealKey(t.Context(), old); !errors.Is(err, ErrSealKeyUsed) {
		t.Errorf("dropping a key that is used: %v", err)
	}
	var stop atomic.Bool
	verified := make(chan error, 1)
	var first string
	for id := range secrets {
		first = id
		break
	}
	go func() {
		for !stop.Load() {
			for _, k := range []*KeyStore{one, two} {
				if _, known, err := k.Lookup(first); !known || err != nil {
					verified <- fmt.Errorf("while it is sealed again: known %v, %w", known, err)
					return
				}
			}
		}
		verified <- nil
	}()
	progress := runReseal(t, one)
	another := runReseal(t, two)
	for i := range 5 {
		id, secret := addPair(t, two, n+i)
		secrets[id] = secret
		if _, err := two.Disable(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if p := <-progress; p.Others != 0 {
		t.Errorf("after a round: %+v", p)
	}
	if p := <-another; p.Others != 0 {
		t.Errorf("after a round of another process: %+v", p)
	}
	stop.Store(true)
	if err := <-verified; err != nil {
		t.Error(err)
	}
	if got := sealedBy(t, one, next); got != n+5+1 {
		t.Errorf("%d documents are sealed with the new key, want %d", got, n+5+1)
	}
	if err := one.DropSealKey(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if err := one.DropSealKey(t.Context(), old); !errors.Is(err, ErrNoSealKey) {
		t.Errorf("dropping it again: %v", err)
	}
	content, err := os.ReadFile(file)
	if err != nil || strings.Count(string(content), "\n") != 1 {
		t.Fatalf("%d lines, %v", strings.Count(string(content), "\n"), err)
	}
	fresh := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{Unusable: func(id string, err error) {
		t.Errorf("%s: %v", id, err)
	}})
	for id, secret := range secrets {
		want := Key{}
		if err := want.setSecret(secret); err != nil {
			t.Fatal(err)
		}
		got, known, err := fresh.Lookup(id)
		if !known || err != nil || got.Secret != want.Secret {
			t.Fatalf("%s after the rotation: known %v, %v", id, known, err)
		}
	}
	if found, known, err := fresh.LinkCode(code); !known || err != nil || found.Principal != oidcUser {
		t.Errorf("the link code: %+v, known %v, %v", found, known, err)
	}
}

// A process that is killed while it seals again loses nothing, and another one goes on with what is left.
func TestARotationOfTheSealKeyOutlivesAKill(t *testing.T) {
	dsn, file := pgtest.DSN(t), filepath.Join(t.TempDir(), "seal.key")
	s := openStore(t, dsn, store.Hooks{})
	k := NewKeyStore(s, sealer(t, file), CacheObserver{})
	const n = 20
	secrets := map[string]string{}
	for i := range n {
		id, secret := addPair(t, k, i)
		secrets[id] = secret
	}
	pairs, err := k.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := rotateSealKey(t, file, k)
	child := testsite.New(t).Process("resealer", "system:platform", resealConfig{dsn, file})
	err = s.Tx(t.Context(), func(tx *store.Tx) error { // the child waits for this row, whatever the pace of the machine
		if _, err := tx.GetForUpdate(t.Context(), KindKeyPair, pairs[n/2].AccessKeyID); err != nil {
			return err
		}
		child.Start()
		defer child.Kill()
		for end := time.Now().Add(testsite.HangLimit); sealedBy(t, k, next) < n/2; <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("the child seals nothing")
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := sealedBy(t, k, next); got < n/2 || got > n/2+1 {
		t.Fatalf("the killed process has sealed %d of %d", got, n)
	}
	if p := <-runReseal(t, k); p.Others != 0 || p.Resealed < n/2-1 {
		t.Errorf("the next process: %+v", p)
	}
	if err := k.DropSealKey(t.Context(), k.sealer.keyIDs()[1]); err != nil {
		t.Fatal(err)
	}
	fresh := runKeys(t, s, file, CacheObserver{})
	for id := range secrets {
		if _, known, err := fresh.Lookup(id); !known || err != nil {
			t.Errorf("%s: known %v, %v", id, known, err)
		}
	}
}

// What cannot be opened is counted and keeps its place: it delays nothing else, and its key stays in the file.
func TestADamagedSealDelaysNoRotation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seal.key")
	s := openStore(t, pgtest.DSN(t), store.Hooks{})
	k := NewKeyStore(s, sealer(t, file), CacheObserver{})
	damaged, _ := addPair(t, k, 1)
	addPair(t, k, 2)
	_, _, err := s.Update(t.Context(), KindKeyPair, damaged, 0, func(d *store.Document) error {
		d.Spec = []byte(strings.Replace(string(d.Spec), ":user/u1", ":user/u3", 1)) // as a writer of the database
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	old := k.sealer.ID()
	next := rotateSealKey(t, file, k)
	if p := <-runReseal(t, k); p != (ResealProgress{Others: 1, Resealed: 1}) {
		t.Errorf("%+v", p)
	}
	if a, b := sealedBy(t, k, old), sealedBy(t, k, next); a != 1 || b != 1 {
		t.Errorf("%d with the old key, %d with the new one", a, b)
	}
	if err := k.DropSealKey(t.Context(), old); !errors.Is(err, ErrSealKeyUsed) {
		t.Errorf("dropping its key: %v", err)
	}
	if err := k.Delete(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	if err := k.DropSealKey(t.Context(), old); err != nil {
		t.Errorf("after its deletion: %v", err)
	}
}

// A key file that another one replaces seals nothing, and the keys of before open, until it is back.
func TestAnotherKeyFileInThePlaceSealsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "key")
		s := sealer(t, path)
		bound := Bound{testID, cluster.Account(account), principal}
		sealed, err := s.Seal(testSecret, bound)
		if err != nil {
			t.Fatal(err)
		}
		right, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write := func(content string) {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			<-time.After(sealReread + time.Nanosecond)
		}
		write(newSealKey().line)
		if _, err := s.Seal(testSecret, bound); !errors.Is(err, ErrOtherKeyFile) {
			t.Errorf("sealed with another file: %v", err)
		}
		if got, err := s.Open(sealed, bound); got != testSecret || err != nil {
			t.Errorf("opened %q, %v", got, err)
		}
		write("nonsense") // a file that is being written
		if got, err := s.Open(sealed, bound); got != testSecret || err != nil {
			t.Errorf("opened %q, %v", got, err)
		}
		write(string(right))
		if _, err := s.Seal(testSecret, bound); err != nil {
			t.Errorf("with the right file: %v", err)
		}
	})
}

// A process that sees a sealed text before the key in its file reads the file once more.
func TestANewKeyOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "key")
		before := sealer(t, path)
		id, err := addTestSealKey(t, path)
		if err != nil || promoteSealKey(path, id) != nil {
			t.Fatal(err)
		}
		sealed, err := sealer(t, path).Seal(testSecret, testBound)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(sealReread / 10)
		if got, err := before.Open(sealed, testBound); got != testSecret || err != nil {
			t.Errorf("opened %q, %v", got, err)
		}
	})
}
