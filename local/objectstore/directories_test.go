package objectstore

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
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

// AWS's command line asks for keys as they are in URLs.
func TestAListHasKeysAsInURLs(t *testing.T) {
	dir, server, endpoint := start(t)
	keys := []string{"a b+c%/ü<", "a b+c%/x/y"}
	for _, key := range keys {
		if err := open(t, dir).Put(t.Context(), key, []byte("content")); err != nil {
			t.Fatal(err)
		}
	}
	request := func(method, target string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, endpoint+"/"+bucket+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		sign(t, r, server.keyPair, "", time.Now())
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	list := func(query string) (status int, p page) {
		t.Helper()
		res := request(http.MethodGet, "?list-type=2&"+query)
		if err := xml.NewDecoder(res.Body).Decode(&p); err != nil && res.StatusCode == http.StatusOK {
			t.Fatal(err)
		}
		return res.StatusCode, p
	}
	decode := func(key string) string {
		t.Helper()
		decoded, err := url.QueryUnescape(key) // as AWS's command line
		if err != nil {
			t.Fatal(err)
		}
		return decoded
	}
	_, p := list("encoding-type=url&delimiter=%2F&prefix=a%20b%2Bc%25%2F")
	if p.EncodingType != "url" || decode(p.Prefix) != "a b+c%/" || len(p.Contents) != 1 || len(p.CommonPrefixes) != 1 ||
		decode(p.Contents[0].Key) != keys[0] || decode(p.CommonPrefixes[0].Prefix) != "a b+c%/x/" {
		t.Errorf("%+v", p)
	}
	res := request(http.MethodHead, "/"+p.Contents[0].Key)
	if res.StatusCode != http.StatusOK || res.ContentLength != int64(len("content")) {
		t.Errorf("HEAD: %s, %d bytes", res.Status, res.ContentLength)
	}
	if status, _ := list("encoding-type=base64"); status != http.StatusBadRequest {
		t.Errorf("an unknown encoding: %d", status)
	}
}
