package access

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var testBound = Bound{testID, "123456789012", "arn:aws:iam::123456789012:user/admin"}

func sealer(t *testing.T, path string) *Sealer {
	t.Helper()
	s, err := OpenSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsSealedOpensForItsKeyPairOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	sealed, err := sealer(t, path).Seal(testSecret, testBound)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(sealed, testSecret) {
		t.Fatal("the secret is readable")
	}
	again := sealer(t, path) // as after a restart
	if got, err := again.Open(sealed, testBound); got != testSecret || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for name, b := range map[string]Bound{
		"id":        {otherID, testBound.Account, testBound.Principal},
		"account":   {testBound.AccessKeyID, "000000000000", testBound.Principal},
		"principal": {testBound.AccessKeyID, testBound.Account, "arn:aws:iam::123456789012:user/other"},
	} {
		if got, err := again.Open(sealed, b); got != "" || !errors.Is(err, ErrSealBroken) {
			t.Errorf("another %s: %q, %v", name, got, err)
		}
	}
	for i := range sealed {
		changed := []byte(sealed)
		changed[i] ^= 1
		if got, err := again.Open(string(changed), testBound); got != "" || err == nil {
			t.Errorf("changed at %d: %q, %v", i, got, err)
		}
	}
	for _, s := range []string{"", "v1", "v1.", "v1." + again.ID(), "v1." + again.ID() + ".AAAA"} {
		if _, err := again.Open(s, testBound); err == nil {
			t.Errorf("%q opens", s)
		}
	}
}

func TestAnotherKeyFileIsCalledSo(t *testing.T) {
	dir := t.TempDir()
	one, two := sealer(t, filepath.Join(dir, "one")), sealer(t, filepath.Join(dir, "two"))
	sealed, err := one.Seal(testSecret, testBound)
	if err != nil {
		t.Fatal(err)
	}
	_, err = two.Open(sealed, testBound)
	if !errors.Is(err, ErrOtherKeyFile) || !strings.Contains(err.Error(), one.ID()) || !strings.Contains(err.Error(),
		two.ID()) {
		t.Errorf("got %v", err)
	}
	if strings.Contains(err.Error(), testSecret) {
		t.Errorf("the error has the secret: %v", err)
	}
}

func TestKeyFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	sealer(t, good)
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(good); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	for name, tc := range map[string]struct {
		content []byte
		mode    os.FileMode
		want    string
	}{
		"readable":  {content, 0o640, "chmod 600"},
		"empty":     {nil, 0o600, "not a key file"},
		"truncated": {content[:len(content)-10], 0o600, "not a key file"},
		"other":     {[]byte("-----BEGIN PRIVATE KEY-----\n"), 0o600, "not a key file"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, tc.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tc.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenSealer(path); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadFile(path); string(left) != string(tc.content) {
			t.Errorf("%s was overwritten", name)
		}
	}
	if _, err := OpenSealer(filepath.Join(dir, "no", "such")); err == nil {
		t.Error("made a key file in a directory that does not exist")
	}
}

func TestProcessesThatStartAtOnceShareOneKeyFile(t *testing.T) {
	dir := t.TempDir()
	ids := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			if s, err := OpenSealer(filepath.Join(dir, "key")); err == nil {
				ids[i] = s.ID()
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("different keys: %v", ids)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
