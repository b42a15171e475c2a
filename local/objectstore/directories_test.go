package objectstore

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A list of directories has each one once and in order, over pages, and none that has no object.
func TestListDirectoriesOverPages(t *testing.T) {
	dir, server, _ := start(t)
	keys := []string{"ns", "ns/file", "nt/x", "ns/hc-0001.x/y"}
	var want []string
	for i := range maxPage + 5 {
		name := fmt.Sprintf("hc-%04d", i)
		want = append(want, name)
		keys = append(keys, "ns/"+name+"/chain/log-1", "ns/"+name+"/chain/log-2", "ns/"+name+"/mark")
	}
	want = append(want, "hc-0001.x")
	slices.Sort(want)
	for _, key := range keys {
		path := server.path(key)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(server.path("ns/empty/x")), 0o700); err != nil {
		t.Fatal(err)
	}
	store := open(t, dir)
	got, err := store.ListDirectories(t.Context(), "ns/")
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%d directories, not %d: %v", len(got), len(want), err)
	}
	if got, err := store.ListDirectories(t.Context(), "ns/hc-0007/"); err != nil || !slices.Equal(got, []string{"chain"}) {
		t.Errorf("directories of one: %q, %v", got, err)
	}
	if got, err := store.ListDirectories(t.Context(), "none/"); err != nil || len(got) > 0 {
		t.Errorf("directories of a name that is not there: %q, %v", got, err)
	}
}
