package envelope

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAKeyFileIsReadAgainWhileItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "keys")
		write := func(content []byte) {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			<-time.After(rereadAfter + time.Nanosecond)
		}
		first, second := NewKeyLine("k1"), NewKeyLine("k2")
		write(first)
		keys, err := ReadKeyFile(path)
		if err != nil {
			t.Fatal(err)
		}
		wrap := func(want string) WrappedKey {
			w, err := keys.Wrap(context.Background(), make([]byte, keySize))
			if err != nil || w.KeyID != want {
				t.Fatalf("wrapped with %q, want %q: %v", w.KeyID, want, err)
			}
			return w
		}
		old := wrap("k1")
		write(slices.Concat(second, first))
		wrap("k2")
		write([]byte("nonsense")) // a file that is being written
		wrap("k2")
		if _, err := keys.Unwrap(context.Background(), old); err != nil {
			t.Errorf("the first key does not open: %v", err)
		}
		write(second)
		if _, err := keys.Unwrap(context.Background(), old); err == nil {
			t.Error("a key that was removed from the file opens")
		}
	})
}

// A key file that became invalid was ignored without a word, until a restart failed.
func TestAnInvalidKeyFileIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "keys")
		write := func(content []byte, mode os.FileMode) {
			if err := errors.Join(os.WriteFile(path, content, 0o600), os.Chmod(path, mode)); err != nil {
				t.Fatal(err)
			}
			<-time.After(2 * watchEvery)
			synctest.Wait()
		}
		line := NewKeyLine("k1")
		if err := os.WriteFile(path, line, 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := ReadKeyFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var log lockedBuffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go keys.Watch(ctx, slog.New(slog.NewTextHandler(&log, nil)))
		for _, c := range []struct {
			name    string
			content []byte
			mode    os.FileMode
		}{
			{"nonsense", []byte("nonsense"), 0o600}, {"no key", nil, 0o600}, {"a file that others read", line, 0o644},
			{"a replaced key", NewKeyLine("k1"), 0o600},
		} {
			write(c.content, c.mode)
			if keys.Problem() == nil || strings.Count(log.String(), "level=ERROR") != 1 {
				t.Errorf("%s: problem %v, log %s", c.name, keys.Problem(), log.String())
			}
			log.Reset()
			write(line, 0o600)
			if keys.Problem() != nil || strings.Count(log.String(), "valid again") != 1 {
				t.Errorf("after %s: problem %v, log %s", c.name, keys.Problem(), log.String())
			}
			log.Reset()
		}
	})
}

// A key that is replaced under its name loses what it has wrapped at the next restart. So nothing is wrapped until the
// earlier line is back; what was wrapped is still unwrapped.
func TestAReplacedKeyWrapsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, path := context.Background(), filepath.Join(t.TempDir(), "keys")
		write := func(content []byte) {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			<-time.After(rereadAfter + time.Nanosecond)
		}
		first, other, second := NewKeyLine("k1"), NewKeyLine("k1"), NewKeyLine("k2")
		write(first)
		keys, err := ReadKeyFile(path)
		if err != nil {
			t.Fatal(err)
		}
		old, err := keys.Wrap(ctx, make([]byte, keySize))
		if err != nil {
			t.Fatal(err)
		}
		for _, content := range [][]byte{other, slices.Concat(second, other), slices.Concat(other, second)} {
			write(content)
			if _, err := keys.Wrap(ctx, make([]byte, keySize)); !errors.Is(err, ErrReplacedKey) {
				t.Errorf("wrapped: %v", err)
			}
			if _, err := keys.Unwrap(ctx, old); err != nil {
				t.Errorf("not unwrapped: %v", err)
			}
		}
		write(second) // removed, and then there with other bytes
		if w, err := keys.Wrap(ctx, make([]byte, keySize)); err != nil || w.KeyID != "k2" {
			t.Errorf("with a second key alone: %v", err)
		}
		write(slices.Concat(second, other))
		if _, err := keys.Wrap(ctx, make([]byte, keySize)); !errors.Is(err, ErrReplacedKey) {
			t.Errorf("wrapped beside a replaced key: %v", err)
		}
		write(slices.Concat(second, first))
		if _, err := keys.Wrap(ctx, make([]byte, keySize)); err != nil {
			t.Errorf("with the earlier line: %v", err)
		}
		if _, err := keys.Unwrap(ctx, old); err != nil {
			t.Errorf("with the earlier line: %v", err)
		}
	})
}

func TestAKeyIsAddedAndThenSeals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "keys")
	for range 2 {
		if err := EnsureKeyFile(path); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(path)
	if err != nil || bytes.Count(before, []byte("\n")) != 1 {
		t.Fatalf("%q, %v", before, err)
	}
	name := NewKeyName()
	if err := AddKey(path, name); err != nil {
		t.Fatal(err)
	}
	current := func() string {
		keys, err := ReadKeyFile(path)
		if err != nil {
			t.Fatal(err)
		}
		w, err := keys.Wrap(t.Context(), make([]byte, keySize))
		if err != nil {
			t.Fatal(err)
		}
		return w.KeyID
	}
	if current() == name {
		t.Error("a key that was added seals before all processes can open with it")
	}
	for range 2 {
		if err := Promote(path, name); err != nil {
			t.Fatal(err)
		}
		if current() != name {
			t.Error("the promoted key does not seal")
		}
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.HasSuffix(after, before) || bytes.Count(after, []byte("\n")) != 2 {
		t.Errorf("%q, %v", after, err)
	}
	if err := Promote(path, "other"); err == nil {
		t.Error("a key that is not in the file was promoted")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestAnOpenerOpensWhatAnyBoxSealed(t *testing.T) {
	keys, err := ParseKeys(NewKeyLine("k1"))
	if err != nil {
		t.Fatal(err)
	}
	opener := NewOpener(keys)
	for range maxCachedKeys + 1 { // more data keys than it remembers
		box, err := NewBox(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		object, err := box.Seal("a", []byte("content"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := opener.Open(t.Context(), "a", object); err != nil || string(got) != "content" {
			t.Fatalf("%q, %v", got, err)
		}
		if _, err := opener.Open(t.Context(), "b", object); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("under another name: %v", err)
		}
		if bytes.Contains(object, []byte("content")) {
			t.Fatal("the object has its content in clear")
		}
	}
	if len(opener.keys) > maxCachedKeys {
		t.Errorf("it remembers %d data keys", len(opener.keys))
	}
}

// Of many processes that add a key at the same time, none loses another's.
func TestKeysThatAreAddedAtOnceAreAllKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys", "file")
	if err := EnsureKeyFile(path); err != nil {
		t.Fatal(err)
	}
	const writers = 16
	names := make([]string, writers)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			names[i] = NewKeyName()
			if err := AddKey(path, names[i]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, name := range names {
		if err := Promote(path, name); err != nil {
			t.Error(err)
		}
	}
}

// lockedBuffer is a buffer that a test reads while a goroutine writes it.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buffer.Reset()
}
