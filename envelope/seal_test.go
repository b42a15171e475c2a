package envelope

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
)

func TestASealedObjectOpensOnlyAsItWas(t *testing.T) {
	key := bytes.Repeat([]byte{3}, keySize)
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 3 * chunkSize} {
		content := bytes.Repeat([]byte{7}, size)
		sealed, err := seal(key, "a/b", content)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := open(key, "a/b", sealed); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %d came back, %v", size, len(got), err)
		}
		head, chunk := len(sealMagic)+saltSize, chunkSize+tagSize
		damaged := map[string][]byte{
			"shorter by a byte": sealed[:len(sealed)-1], "nothing": nil, "only a head": sealed[:head],
		}
		if size == 3*chunkSize {
			damaged["without the last chunk"] = sealed[:head+2*chunk]
			damaged["without the first chunk"] = slices.Concat(sealed[:head], sealed[head+chunk:])
			damaged["the first chunk twice"] = slices.Concat(sealed[:head+chunk], sealed[head:])
			damaged["chunks in another order"] = slices.Concat(sealed[:head], sealed[head+chunk:head+2*chunk],
				sealed[head:head+chunk], sealed[head+2*chunk:])
		}
		for what, d := range damaged {
			if _, err := open(key, "a/b", d); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%d bytes, %s: %v", size, what, err)
			}
		}
		if _, err := open(key, "a/c", sealed); !errors.Is(err, ErrCorrupt) {
			t.Errorf("under another name: %v", err)
		}
		other := slices.Clone(key)
		other[0] ^= 1
		if _, err := open(other, "a/b", sealed); !errors.Is(err, ErrCorrupt) {
			t.Errorf("with another key: %v", err)
		}
	}
}

func TestKeysOfAFileWrapAndRotate(t *testing.T) {
	const k1, k2 = "k1 QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=\n", "k2 QkFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=\n"
	old, err := ParseKeys([]byte(k1))
	if err != nil {
		t.Fatal(err)
	}
	w, err := old.Wrap(context.Background(), bytes.Repeat([]byte{1}, keySize))
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := ParseKeys([]byte("# keys\n" + k2 + "\n" + k1))
	if err != nil {
		t.Fatal(err)
	}
	if key, err := rotated.Unwrap(context.Background(), w); err != nil || key[0] != 1 {
		t.Errorf("an old key: %v, %v", key, err)
	}
	if w, _ := rotated.Wrap(context.Background(), make([]byte, keySize)); w.KeyID != "k2" {
		t.Errorf("the current key is %s", w.KeyID)
	}
	w.Ciphertext[3] ^= 1
	if _, err := rotated.Unwrap(context.Background(), w); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged key: %v", err)
	}
	for _, wrong := range []string{"", "k1\n", "k1 short\n", k1 + k1} {
		if _, err := ParseKeys([]byte(wrong)); err == nil {
			t.Errorf("%q was accepted", wrong)
		}
	}
}
