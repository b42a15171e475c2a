package objectstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/internal/atomicfile"
)

// start returns the directory of a new server, the server and its URL.
func start(t *testing.T) (dir string, server *Server, url string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "backups")
	h := httptest.NewUnstartedServer(nil)
	endpoint := "http://" + h.Listener.Addr().String()
	server, err := New(Options{Dir: dir, Endpoint: endpoint, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h.Config.Handler = server
	h.Start()
	t.Cleanup(h.Close)
	return dir, server, endpoint
}

func open(t *testing.T, dir string) *backup.S3 {
	t.Helper()
	store, _, err := backup.ReadConfig(filepath.Join(dir, StoreFile))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func files(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			paths = append(paths, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// The client that hosting uses stores, reads, lists over pages and deletes, with the files that the server made.
func TestClientOfBackups(t *testing.T) {
	dir, server, _ := start(t)
	store, ctx := open(t, dir), t.Context()
	content := bytes.Repeat([]byte{0, 1, 0xff}, 1<<20)
	keys := []string{"a", "a/b", "a-b/c", "a.b", "n/.x", "n/..x", "n/" + atomicfile.TempPrefix + "1", "n/%2e",
		"n/ü +&?#<>\"'", "n/x+", "n/x+/y", "n/" + strings.Repeat("l", 200)}
	for _, key := range keys {
		if err := store.Put(ctx, key, append(content, key...)); err != nil {
			t.Fatalf("PUT %q: %v", key, err)
		}
	}
	slices.Sort(keys)
	got, err := store.List(ctx, "")
	if err != nil || !slices.Equal(got, keys) {
		t.Errorf("the list is %q, %v, not %q", got, err, keys)
	}
	if got, err := store.List(ctx, "a"); err != nil || !slices.Equal(got, []string{"a", "a-b/c", "a.b", "a/b"}) {
		t.Errorf("the list of a is %q, %v", got, err)
	}
	if got, err := store.Get(ctx, "a/b"); err != nil || !bytes.Equal(got, append(content, "a/b"...)) {
		t.Errorf("GET a/b: %d bytes, %v", len(got), err)
	}
	if err := store.Put(ctx, "a/b", []byte("other")); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Get(ctx, "a/b"); err != nil || string(got) != "other" {
		t.Errorf("GET a/b after it was replaced: %q, %v", got, err)
	}
	for _, key := range append(keys, "a/b", "never/was") { // to delete what does not exist is no error
		if err := store.Delete(ctx, key); err != nil {
			t.Errorf("DELETE %q: %v", key, err)
		}
	}
	if _, err := store.Get(ctx, "a/b"); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("GET a/b after DELETE: %v", err)
	}
	if left := files(t, server.objects); len(left) > 0 {
		t.Errorf("after each object was deleted there are %q", left)
	}
}

// The server's objects have the times of their files.
func TestTheServerIsAStore(t *testing.T) {
	dir, server, _ := start(t)
	storetest.Run(t, open(t, dir), func(d time.Duration) {
		err := filepath.WalkDir(server.objects, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			return os.Chtimes(path, time.Time{}, info.ModTime().Add(-d))
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A list has each object once and in order, whatever the pages end with.
func TestListOverPages(t *testing.T) {
	dir, server, _ := start(t)
	var want []string
	for i := range 3 {
		for j := range maxPage - 200 {
			want = append(want, fmt.Sprintf("ns/hc/chain-%d/log-%08d", i, j))
		}
	}
	other := []string{"ns/hc", "ns/hc-2/chain/x", "ns/hc/chain", "ns/hd/chain/x", "nt/x"}
	for _, key := range append(other, want...) { // files, since 2400 PUTs with a sync take seconds
		path := server.path(key)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := open(t, dir).List(t.Context(), "ns/hc/chain-")
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("the list has %d objects, not %d: %v", len(got), len(want), err)
	}
	all := append(other, want...)
	slices.Sort(all)
	for _, limit := range []int{100, 799, 800, 801} { // page by page as serveList does
		var found []string
		for after := ""; len(found) <= len(all); {
			objects, err := server.list("", after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(objects) == 0 {
				break
			}
			for _, o := range objects {
				found = append(found, o.key)
			}
			after = found[len(found)-1]
		}
		if !slices.Equal(found, all) {
			t.Errorf("pages of %d have %d objects, not %d", limit, len(found), len(all))
		}
	}
}

// sign signs a request as AWS's programs do.
func sign(t *testing.T, r *http.Request, pair keyPair, body string, at time.Time) {
	t.Helper()
	sum := sha256.Sum256([]byte(body))
	hash := hex.EncodeToString(sum[:])
	r.Header.Set("X-Amz-Content-Sha256", hash)
	credentials := aws.Credentials{AccessKeyID: pair.accessKey, SecretAccessKey: pair.secretKey}
	err := v4.NewSigner().SignHTTP(t.Context(), credentials, r, hash, "s3", "us-east-1", at,
		func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil {
		t.Fatal(err)
	}
}

func TestRefusals(t *testing.T) {
	dir, server, url := start(t)
	if err := open(t, dir).Put(t.Context(), "ns/kept", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	before := files(t, filepath.Dir(dir))
	const body = "content"
	tests := map[string]struct {
		method, target string
		pair           keyPair
		at             time.Duration
		change         func(*http.Request) // after the signature
		status         int
		code           string
	}{
		"no signature": {change: func(r *http.Request) { r.Header.Del("Authorization") }, status: 403, code: "AccessDenied"},
		"presigned": {change: func(r *http.Request) {
			r.URL.RawQuery = "X-Amz-Signature=" + signatureOf(r.Header.Get("Authorization"))
			r.Header.Del("Authorization")
		}, status: 403, code: "AccessDenied"},
		"other access key": {pair: keyPair{"ATOLL0", server.secretKey}, status: 403, code: "InvalidAccessKeyId"},
		"other secret key": {pair: keyPair{server.accessKey, "x"}, status: 403, code: "SignatureDoesNotMatch"},
		"old":              {at: -16 * time.Minute, status: 403, code: "RequestTimeTooSkewed"},
		"early":            {at: 16 * time.Minute, status: 403, code: "RequestTimeTooSkewed"},
		"other method": {change: func(r *http.Request) { r.Method = "DELETE" },
			status: 403, code: "SignatureDoesNotMatch"},
		"other key": {change: func(r *http.Request) { r.URL.Path = "/backups/ns/kept" }, status: 403,
			code: "SignatureDoesNotMatch"},
		"other query": {method: "GET", target: "/backups?list-type=2&prefix=a",
			change: func(r *http.Request) { r.URL.RawQuery = "list-type=2&prefix=n" }, status: 403,
			code: "SignatureDoesNotMatch"},
		"other hash": {change: func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", strings.Repeat("0", 64)) },
			status: 403, code: "SignatureDoesNotMatch"},
		"no hash": {change: func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") },
			status: 403, code: "AccessDenied"},
		"hash not signed": {change: func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "x-amz-content-sha256;", "", 1))
		}, status: 403, code: "AccessDenied"},
		"other body": {change: func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("CONTENT")) },
			status: 400, code: "XAmzContentSHA256Mismatch"},
		"other bucket":        {target: "/other/ns/x", status: 404, code: "NoSuchBucket"},
		"bucket above":        {target: "/../x", status: 404, code: "NoSuchBucket"},
		"missing object":      {method: "GET", target: "/backups/ns/no", status: 404, code: "NoSuchKey"},
		"object below object": {method: "GET", target: "/backups/ns/kept/x", status: 404, code: "NoSuchKey"},
		"directory":           {method: "GET", target: "/backups/ns", status: 404, code: "NoSuchKey"},
		"file by its name":    {method: "GET", target: "/backups/ns+/kept", status: 404, code: "NoSuchKey"},
		"above":               {method: "GET", target: "/backups/../credentials", status: 404, code: "NoSuchKey"},
		"above, encoded":      {method: "GET", target: "/backups/%2e%2e%2fcredentials", status: 404, code: "NoSuchKey"},
		"bucket":              {target: "/backups", status: 400, code: "InvalidArgument"},
		"absolute":            {target: "/backups//etc/x", status: 400, code: "InvalidArgument"},
		"slash at the end":    {target: "/backups/ns/", status: 400, code: "InvalidArgument"},
		"zero byte":           {target: "/backups/ns/%00", status: 400, code: "InvalidArgument"},
		"no UTF-8":            {target: "/backups/ns/%ff", status: 400, code: "InvalidArgument"},
		"long name":           {target: "/backups/" + strings.Repeat("l", 251), status: 400, code: "InvalidArgument"},
		"long key":            {target: "/backups/" + strings.Repeat("l/", 512) + "l", status: 400, code: "InvalidArgument"},
		"list of version 1":   {method: "GET", target: "/backups", status: 501, code: "NotImplemented"},
		"rights of an object": {method: "GET", target: "/backups/ns/kept?acl", status: 501, code: "NotImplemented"},
		"upload in parts":     {method: "POST", target: "/backups/ns/x?uploads", status: 501, code: "NotImplemented"},
		"other delimiter": {method: "GET", target: "/backups?list-type=2&delimiter=-", status: 501,
			code: "NotImplemented"},
		"token": {method: "GET", target: "/backups?list-type=2&continuation-token=*", status: 400,
			code: "InvalidArgument"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			method, target, pair := test.method, test.target, test.pair
			if method == "" {
				method = http.MethodPut
			}
			if target == "" {
				target = "/backups/ns/x"
			}
			if pair == (keyPair{}) {
				pair = server.keyPair
			}
			sent := body
			if method == http.MethodGet {
				sent = ""
			}
			r, err := http.NewRequestWithContext(t.Context(), method, url+target, strings.NewReader(sent))
			if err != nil {
				t.Fatal(err)
			}
			sign(t, r, pair, sent, time.Now().Add(test.at))
			if test.change != nil {
				test.change(r)
			}
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != test.status ||
				!strings.Contains(string(text), "<Code>"+test.code+"</Code>") {
				t.Errorf("%s: %s %v, not %d %s", answer.Status, text, err, test.status, test.code)
			}
			if after := files(t, filepath.Dir(dir)); !slices.Equal(after, before) {
				t.Errorf("the files are %q, not %q", after, before)
			}
		})
	}
}

// An upload that ends early, or is too large, leaves nothing.
func TestUploadsWithoutEnd(t *testing.T) {
	_, server, url := start(t)
	for _, length := range []int{100, maxObject + 1} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/backups/ns/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		sign(t, r, server.keyPair, "half", time.Now())
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.URL.Host)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.URL.Path, r.URL.Host, length)
		if err := r.Header.Write(conn); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "\r\nhalf")
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(conn) // up to the end of the answer, which is when the server has cleaned up
		conn.Close()
		if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 400 ") {
			t.Errorf("an upload of 4 of %d bytes: %q, %v", length, text, err)
		}
		if left := files(t, server.objects); len(left) > 0 {
			t.Errorf("an upload of 4 of %d bytes left %q", length, left)
		}
	}
}

// A restart keeps objects and keys, and removes the file of an upload that the kill ended.
func TestRestart(t *testing.T) {
	dir, first, _ := start(t)
	if err := open(t, dir).Put(t.Context(), "ns/x", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	upload, err := first.create(first.path("ns/y"))
	if err != nil {
		t.Fatal(err)
	}
	upload.Close()
	keys, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(Options{Dir: dir, Endpoint: "http://127.0.0.1:1", Log: slog.New(slog.DiscardHandler)})
	if err != nil || second.keyPair != first.keyPair {
		t.Fatalf("the key pair after a restart: %v, %v", second, err)
	}
	if again, err := os.ReadFile(filepath.Join(dir, keyFile)); err != nil || !bytes.Equal(again, keys) {
		t.Errorf("the key that encrypts changed: %v", err)
	}
	if left := files(t, second.objects); !slices.Equal(left, []string{"/ns+", "/ns+/x"}) {
		t.Errorf("after a restart there are %q", left)
	}
	for _, name := range []string{StoreFile, credentialsFile, keyFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: dir, Endpoint: "http://127.0.0.1:1", Log: first.log}); err == nil ||
		!strings.Contains(err.Error(), keyFile+" is missing") {
		t.Errorf("a server whose objects nobody can read starts: %v", err)
	}
	if !atomicfile.IsTemp(filepath.Base(upload.Name())) {
		t.Errorf("%s is not recognised as a temporary file", upload.Name())
	}
}

// A store that cannot lock acknowledges no upload that asks for a lock.
func TestALockIsRefused(t *testing.T) {
	dir, _, _ := start(t)
	path := filepath.Join(dir, StoreFile)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(content, "lock_days: 7\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	err = open(t, dir).Put(t.Context(), "ns/name/object", []byte("content"))
	if err == nil || !strings.Contains(err.Error(), "Object Lock") {
		t.Errorf("an upload with a lock: %v", err)
	}
	if _, err := open(t, dir).Get(t.Context(), "ns/name/object"); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("the refused object: %v", err)
	}
}
