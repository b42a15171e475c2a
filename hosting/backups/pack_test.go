package backups

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
)

// makeFile makes a file with its directories.
func makeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The data of a plane that moves goes through the store: its files and keys arrive as they were, and no file to which
// the plane has made a link. A changed or missing object is an error, and so is data of another plane.
func TestTheDataOfAMoveArrivesWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	big := strings.Repeat("0123456789abcdef", 1<<16)
	makeFile(t, filepath.Join(dir, "etcd", "member", "wal", "0.wal"), big)
	makeFile(t, filepath.Join(dir, "pki", "ca.crt"), "authority")
	makeFile(t, filepath.Join(dir, "secret"), "somebody else's")
	if err := os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "pki", "stolen")); err != nil {
		t.Fatal(err)
	}
	keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
	if err != nil {
		t.Fatal(err)
	}
	store, plane := storetest.NewMemory(), backup.Plane{Namespace: "a", Name: "hc"}
	get := func(p backup.Plane) (string, error) {
		to := t.TempDir()
		_, err := backup.GetHandover(t.Context(), store, keys, p, "m1", "", func(r io.Reader) error { return unpack(r, to) })
		return to, err
	}
	if _, err := get(plane); !errors.Is(err, backup.ErrNotFound) {
		t.Fatalf("before the data is stored: %v", err)
	}
	var archive bytes.Buffer
	if err := pack(&archive, dir, map[string]any{"past.json": []string{"r1"}}); err != nil {
		t.Fatal(err)
	}
	if err := backup.PutHandover(context.Background(), store, keys, plane, "m1", &archive); err != nil {
		t.Fatal(err)
	}
	to, err := get(plane)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"etcd/member/wal/0.wal": big, "pki/ca.crt": "authority",
		"past.json": `["r1"]`} {
		if have, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(have) != want {
			t.Errorf("%s has %d bytes, want %d, %v", name, len(have), len(want), err)
		}
	}
	if _, err := os.Lstat(filepath.Join(to, "pki", "stolen")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link of the plane has arrived: %v", err)
	}

	other := backup.Plane{Namespace: "b", Name: "hc"}
	for name, content := range store.Objects() {
		if strings.HasPrefix(name, "a/hc/") {
			store.Replace("b/"+strings.TrimPrefix(name, "a/"), content)
		}
	}
	if _, err := get(other); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("the data under the name of another plane: %v", err)
	}
	const part = "a/hc/move-m1/data-00000000"
	changed := store.Objects()[part]
	changed[len(changed)/2] ^= 1
	store.Replace(part, changed)
	if _, err := get(plane); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a changed part: %v", err)
	}
	store.Replace(part, nil)
	if _, err := get(plane); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a missing part: %v", err)
	}
}

// An archive makes no file outside of its directory, and no link.
func TestAnArchiveStaysInItsDirectory(t *testing.T) {
	for _, h := range []tar.Header{
		{Name: "../escaped", Typeflag: tar.TypeReg}, {Name: "/escaped", Typeflag: tar.TypeReg},
		{Name: "a/../../escaped", Typeflag: tar.TypeReg},
		{Name: "link", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		if err := errors.Join(w.WriteHeader(&h), w.Close()); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(t.TempDir(), "to")
		if err := os.Mkdir(to, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unpack(&archive, to); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v", h.Name, err)
		}
		if names, _ := os.ReadDir(to); len(names) > 0 {
			t.Errorf("%s was made", h.Name)
		}
	}
}
