package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/audit"
)

// readPage reads the audit of a server after a cursor as the Platform API does.
func readPage(t *testing.T, s *Server, after int) (status int, ids []string, next string) {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := s.ca.issue(key.Public(), applicant{name: auditReader, validity: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/audit?after="+strconv.Itoa(after), nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: chain}
	w := httptest.NewRecorder()
	s.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	var page audit.Page
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
		t.Fatal(err)
	}
	for _, item := range page.Items {
		ids = append(ids, item.ID)
	}
	return w.Code, ids, page.Next
}

// runOnce runs the periodic work of a server once.
func runOnce(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Run(ctx, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
}

// The file of audit records keeps those that the Platform API has not gathered, however old, and all of the last 90
// days. The others go, and no cursor changes its meaning.
func TestGatheredAuditRecordsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		s := NewServer(ca)
		revoke := func(names ...Name) {
			t.Helper()
			for _, name := range names {
				if _, err := ca.Revoke(name, Command{By: "cli:ann"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		expect := func(when string, after int, want ...string) {
			t.Helper()
			wantNext := strconv.Itoa(after + len(want))
			status, ids, next := readPage(t, s, after)
			if status != http.StatusOK || !slices.Equal(ids, want) || next != wantNext {
				t.Errorf("%s, after %d: %d %q, next %s; want %q, next %s", when, after, status, ids, next, want, wantNext)
			}
		}
		size := func() int64 {
			t.Helper()
			info, err := os.Stat(filepath.Join(ca.dir, auditFile))
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		revoke("edge-1", "edge-2", "edge-3")
		expect("at first", 0, "edge-1", "edge-2", "edge-3")
		wait(auditRetention + time.Hour)
		runOnce(t, s)
		expect("not gathered", 0, "edge-1", "edge-2", "edge-3")
		expect("not gathered", 2, "edge-3") // this says that two are gathered
		before := size()
		runOnce(t, s)
		if status, ids, next := readPage(t, s, 0); status != http.StatusOK || next != "3" ||
			!slices.Equal(ids, []string{"edge-3"}) || size() >= before {
			t.Errorf("two are gathered: %d %q, next %s, %d bytes of %d", status, ids, next, size(), before)
		}
		expect("two are gathered", 2, "edge-3")
		revoke("edge-4")
		expect("three are gathered", 3, "edge-4")
		expect("all are gathered", 4)
		runOnce(t, s)
		expect("a young one stays", 3, "edge-4")
		if status, _, _ := readPage(t, s, 9); status != http.StatusGone {
			t.Errorf("a cursor of another CA: %d", status)
		}
		runOnce(t, s)
		expect("after a cursor that counts for nothing", 3, "edge-4")

		// A restart, and another process that writes.
		ca = openCAIn(t, ca.dir)
		s = NewServer(ca)
		revoke("edge-5")
		expect("after a restart", 3, "edge-4", "edge-5")
		wait(auditRetention + time.Hour)
		expect("after a restart", 5)
		runOnce(t, s)
		if size() > 100 {
			t.Errorf("%d bytes of no record", size())
		}
		expect("all are removed", 5)
		revoke("edge-6")
		expect("after that", 5, "edge-6")
	})
}

// One record that cannot be read, of any length, stops no other. A record that is being written counts later.
func TestADamagedAuditRecordStopsNoOther(t *testing.T) {
	ca := openCA(t)
	s := NewServer(ca)
	path := filepath.Join(ca.dir, auditFile)
	appendText := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	appendText(`{"cut":` + "\n" + strings.Repeat("x", 4*maxAuditLine) + "\n" + strings.Repeat("\x00", maxAuditLine))
	if _, err := ca.Revoke("edge-1", Command{By: "cli:ann"}); err != nil {
		t.Fatal(err)
	}
	appendText("damaged\n" + `{"id":"unfinished"`)
	if status, ids, next := readPage(t, s, 0); status != http.StatusOK || !slices.Equal(ids, []string{"edge-1"}) ||
		next != "5" {
		t.Errorf("%d %q, next %s", status, ids, next)
	}
	appendText("}\n")
	if status, ids, next := readPage(t, s, 4); status != http.StatusOK || !slices.Equal(ids, []string{"unfinished"}) ||
		next != "6" {
		t.Errorf("%d %q, next %s", status, ids, next)
	}
}

// Reading needs memory for the records of a page, not for the file.
func TestTheAuditIsReadInBoundedMemory(t *testing.T) {
	ca := openCA(t)
	var text bytes.Buffer
	for n := range 20_000 {
		fmt.Fprintf(&text, `{"id":"%d","before":%q}`+"\n", n, strings.Repeat("x", 1000))
	}
	if err := os.WriteFile(filepath.Join(ca.dir, auditFile), text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	items, next, err := ca.readAudit(19_990)
	runtime.ReadMemStats(&after)
	if err != nil || len(items) != 10 || next != 20_000 || items[9].ID != "19999" {
		t.Errorf("%d records, next %d, %v", len(items), next, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > uint64(text.Len())/10 {
		t.Errorf("%d bytes were allocated for a file of %d", used, text.Len())
	}
}
