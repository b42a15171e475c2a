package kmstest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"atoll.dev/envelope"
)

// Subject is a KMS under test.
type Subject struct {
	KMS envelope.KMS
	// Rotate makes the KMS wrap with a new key, before it returns.
	Rotate func()
}

// Run tests that a KMS satisfies the contract of envelope.KMS. It calls open for a new KMS in each part of the suite.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, part := range []struct {
		name string
		test func(t *testing.T, s Subject)
	}{
		{"a data key comes back, and nothing of it shows", testRoundTrip},
		{"after a rotation another key wraps, and the earlier one unwraps", testRotation},
		{"a changed ciphertext does not unwrap", testChangedCiphertext},
		{"an unknown key does not unwrap", testUnknownKey},
		{"many goroutines use it", testConcurrency},
		{"a call with an ended context returns", testEndedContext},
		{"boxes and openers work with it", testBoxes},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, open(t)) })
	}
}

func testRoundTrip(t *testing.T, s Subject) {
	key := newKey()
	w := wrap(t, s, key)
	if bytes.Contains(w.Ciphertext, key) || w.KeyID == "" {
		t.Errorf("wrapped %+v", w)
	}
	mustUnwrap(t, s, stored(t, w), key)
}

func testRotation(t *testing.T, s Subject) {
	first, second := newKey(), newKey()
	a := wrap(t, s, first)
	s.Rotate()
	b := wrap(t, s, second)
	if a.KeyID == b.KeyID {
		t.Errorf("key %s wraps before and after", a.KeyID)
	}
	mustUnwrap(t, s, a, first)
	mustUnwrap(t, s, b, second)
	a.KeyID, b.KeyID = b.KeyID, a.KeyID
	mustRefuse(t, s, a)
	mustRefuse(t, s, b)
}

func testChangedCiphertext(t *testing.T, s Subject) {
	w := wrap(t, s, newKey())
	for i := range w.Ciphertext {
		changed := w
		changed.Ciphertext = bytes.Clone(w.Ciphertext)
		changed.Ciphertext[i] ^= 1
		mustRefuse(t, s, changed)
	}
	for _, ciphertext := range [][]byte{nil, w.Ciphertext[:len(w.Ciphertext)-1], append(bytes.Clone(w.Ciphertext), 0)} {
		changed := w
		changed.Ciphertext = ciphertext
		mustRefuse(t, s, changed)
	}
}

func testUnknownKey(t *testing.T, s Subject) {
	ctx := t.Context()
	w := wrap(t, s, newKey())
	w.KeyID += "x"
	if _, err := s.KMS.Unwrap(ctx, w); err == nil {
		t.Error("a wrapped key that names an unknown key unwraps")
	}
}

func testConcurrency(t *testing.T, s Subject) {
	ctx := t.Context()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				key := newKey()
				w, err := s.KMS.Wrap(ctx, key)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := s.KMS.Unwrap(ctx, w); err != nil || !bytes.Equal(got, key) {
					t.Errorf("another key came back, or: %v", err)
				}
			}
		})
	}
	s.Rotate()
	all.Wait()
}

func testEndedContext(t *testing.T, s Subject) {
	ctx := t.Context()
	w := wrap(t, s, newKey())
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, wrapErr := s.KMS.Wrap(ended, newKey())
	_, unwrapErr := s.KMS.Unwrap(ended, w)
	for _, err := range []error{wrapErr, unwrapErr} {
		if errors.Is(err, envelope.ErrCorrupt) {
			t.Errorf("an ended context is taken for damage: %v", err)
		}
	}
}

func testBoxes(t *testing.T, s Subject) {
	ctx := t.Context()
	box, err := envelope.NewBox(ctx, s.KMS)
	if err != nil {
		t.Fatal(err)
	}
	object, err := box.Seal("a", []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	s.Rotate()
	if got, err := envelope.NewOpener(s.KMS).Open(ctx, "a", object); err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
}

func newKey() []byte {
	key := make([]byte, 32)
	rand.Read(key) // it never returns an error
	return key
}

// stored returns a wrapped key as it is after it was stored and read.
func stored(t *testing.T, w envelope.WrappedKey) (read envelope.WrappedKey) {
	t.Helper()
	text, err := json.Marshal(w)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func wrap(t *testing.T, s Subject, key []byte) envelope.WrappedKey {
	t.Helper()
	w, err := s.KMS.Wrap(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func mustUnwrap(t *testing.T, s Subject, w envelope.WrappedKey, want []byte) {
	t.Helper()
	got, err := s.KMS.Unwrap(t.Context(), w)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("another key came back, or: %v", err)
	}
}

func mustRefuse(t *testing.T, s Subject, w envelope.WrappedKey) {
	t.Helper()
	_, err := s.KMS.Unwrap(t.Context(), w)
	if !errors.Is(err, envelope.ErrCorrupt) || !errors.Is(err, envelope.ErrWrongKey) {
		t.Errorf("a changed key: %v", err)
	}
}
