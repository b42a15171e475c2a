package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"atoll.dev/envelope"
)

// storeClock is the clock of an S3 server, which is ahead of this process's.
type storeClock struct{ ahead atomic.Int64 }

func (c *storeClock) Now() time.Time                  { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *storeClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c *storeClock) Advance(d time.Duration)         { c.ahead.Add(int64(d)) }

// startS3 returns the URL of an S3 server with the bucket "backups", and its clock. Each request passes spoil first,
// which may answer it and then returns true. nil: it answers none.
func startS3(t *testing.T, spoil func(http.ResponseWriter, *http.Request) bool) (url string, clock *storeClock) {
	t.Helper()
	clock = &storeClock{}
	memory := s3mem.New(s3mem.WithTimeSource(clock))
	if err := memory.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	server := gofakes3.New(memory, gofakes3.WithTimeSource(clock), gofakes3.WithTimeSkewLimit(0)).Server()
	l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", clock.Now().UTC().Format(http.TimeFormat))
		if spoil == nil || !spoil(w, r) {
			server.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(l.Close)
	return l.URL, clock
}

// writeConfig writes the files that ReadConfig reads.
func writeConfig(t *testing.T, endpoint string, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"store.yaml": "bucket: backups\nprefix: region-1/\nendpoint: " + endpoint +
			"\ncredentials_file: credentials\nkey_file: keys\n" + strings.Join(more, "\n"),
		"credentials": "[default]\naws_access_key_id = A\naws_secret_access_key = S\n[other]\naws_access_key_id = B\n",
		"keys":        "k1 " + strings.Repeat("QUFB", 10) + "QUE=\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "store.yaml")
}

func TestAnS3StoreKeepsObjects(t *testing.T) {
	url, _ := startS3(t, nil)
	store, _, err := ReadConfig(writeConfig(t, url))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	var want []string
	for i := range 1100 { // more than a page of a list
		name := fmt.Sprintf("ns/name/%04d", i)
		want = append(want, name)
		if i%100 == 0 {
			err = store.Put(ctx, name, bytes.Repeat([]byte{byte(i)}, i))
		} else {
			_, err = store.client.PutObject(ctx, putInput(store, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := store.List(ctx, "ns/name/"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d names, %v", len(got), err)
	}
	if got, err := store.List(ctx, "ns/nam/"); err != nil || len(got) > 0 {
		t.Errorf("another prefix: %v, %v", got, err)
	}
	if _, err := store.client.PutObject(ctx, putInput(store, "ns/other/0001")); err != nil {
		t.Fatal(err)
	}
	if got, err := store.ListDirectories(ctx, "ns/"); err != nil || !slices.Equal(got, []string{"name", "other"}) {
		t.Errorf("directories: %q, %v", got, err)
	}
	if got, err := store.Get(ctx, "ns/name/0500"); err != nil || len(got) != 500 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for range 2 {
		if err := store.Delete(ctx, "ns/name/0500"); err != nil {
			t.Error(err)
		}
	}
	if _, err := store.Get(ctx, "ns/name/0500"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted object: %v", err)
	}
}

// A store that lies, refuses or hangs is found out when an object is stored.
func TestAnS3StoreThatFailsIsNotBelieved(t *testing.T) {
	var mode atomic.Value
	mode.Store("")
	url, _ := startS3(t, func(w http.ResponseWriter, r *http.Request) bool {
		isPut := r.Method == http.MethodPut
		body, err := io.ReadAll(r.Body) // the server notices the end of a connection only behind the body
		if err != nil {
			return true
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch m := mode.Load(); {
		case m == "forgets" && isPut:
		case m == "keeps other bytes" && isPut:
			r.Body = io.NopCloser(bytes.NewReader(make([]byte, len(body))))
			return false
		case m == "keeps one byte less" && isPut, m == "keeps one byte more" && isPut:
			body = append(body, 0)
			if m == "keeps one byte less" {
				body = body[:len(body)-2]
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return false
		case m == "forbids":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `<Error><Code>AccessDenied</Code><Message>no</Message><RequestId>7</RequestId></Error>`)
		case m == "is full" && isPut:
			w.WriteHeader(http.StatusInsufficientStorage)
			fmt.Fprint(w, `<Error><Code>QuotaExceeded</Code><Message>full</Message></Error>`)
		case m == "hangs":
			<-r.Context().Done()
		default:
			return false
		}
		return true
	})
	store, _, err := ReadConfig(writeConfig(t, url))
	if err != nil {
		t.Fatal(err)
	}
	for m, want := range map[string]string{
		"forgets": "keeps something else", "keeps other bytes": "keeps something else", "forbids": "AccessDenied: no",
		"keeps one byte less": "keeps something else", "keeps one byte more": "keeps something else",
		"is full": "QuotaExceeded: full",
		"hangs":   "deadline",
	} {
		mode.Store(m)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if m == "hangs" {
			ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
		}
		err := store.Put(ctx, "a/"+strings.ReplaceAll(m, " ", "-"), []byte("content"))
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "RequestId") {
			t.Errorf("a store that %s: %v", m, err)
		}
	}
}

func TestAWrongConfigurationIsRefused(t *testing.T) {
	for _, more := range []string{"bukket: x", "bucket: [1]", "kms: tcp://127.0.0.1:1", "kms: unix://socket"} {
		if _, _, err := ReadConfig(writeConfig(t, "http://127.0.0.1:1", more)); err == nil {
			t.Errorf("%q was accepted", more)
		}
	}
	path := writeConfig(t, "http://127.0.0.1:1")
	if _, _, err := ReadConfig(withoutFile(t, path)); err == nil || !strings.Contains(err.Error(), "key_file or kms") {
		t.Errorf("without keys: %v", err)
	}
	keys := filepath.Join(filepath.Dir(path), "keys")
	if err := os.Chmod(keys, 0o440); err != nil { // as in a pod
		t.Fatal(err)
	}
	if _, _, err := ReadConfig(path); err != nil {
		t.Errorf("a key file of the group: %v", err)
	}
	if _, err := envelope.ParseKeys([]byte("c2VjcmV0 k1\n")); err == nil || strings.Contains(err.Error(), "c2VjcmV0") {
		t.Errorf("a key before its name: %v", err)
	}
	if err := os.Chmod(keys, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadConfig(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key file that others can read: %v", err)
	}
}

// Credentials that rotate take effect without a restart.
func TestChangedCredentialsAreUsed(t *testing.T) {
	var key atomic.Pointer[string]
	url, _ := startS3(t, func(_ http.ResponseWriter, r *http.Request) bool {
		_, after, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		id, _, _ := strings.Cut(after, "/")
		key.Store(&id)
		return false
	})
	path := writeConfig(t, url)
	store, _, err := ReadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(path), "credentials")
	for _, id := range []string{"A", "ROTATED", "AGAIN"} {
		if id != "A" {
			content := "aws_access_key_id = " + id + "\naws_secret_access_key = T\n"
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.Put(t.Context(), "x", []byte("y")); err != nil {
			t.Fatal(err)
		}
		if got := *key.Load(); got != id {
			t.Errorf("the request was signed by %s, want %s", got, id)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := store.Put(t.Context(), "x", []byte("y")); err == nil {
		t.Error("a request without a file of credentials succeeded")
	}
}

func putInput(s *S3, name string) *s3.PutObjectInput {
	key := s.key(name)
	return &s3.PutObjectInput{Bucket: &s.o.Bucket, Key: &key, Body: strings.NewReader("")}
}
