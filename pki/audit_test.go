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

// cursorAt returns the cursor after a line of a CA's audit file, or 0 when the line is not there.
func cursorAt(t *testing.T, ca *CA, number int) (c auditCursor) {
	t.Helper()
	_, err := scanAudit(bytes.NewReader(readFile(t, ca.auditPath())), func(line auditLine) bool {
		if line.number == number {
			c = line.cursor()
		}
		return line.number < number
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// readPage reads the audit of a server after a cursor as the Platform API does.
func readPage(t *testing.T, s *Server, after auditCursor) (status int, ids []string, next auditCursor) {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := s.ca.issue(key.Public(), applicant{name: auditReader, validity: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("/v1/audit?after=%d", after), nil)
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
	if page.Next != "" {
		number, err := strconv.ParseInt(page.Next, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		next = auditCursor(number)
	}
	return w.Code, ids, next
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
			status, ids, next := readPage(t, s, cursorAt(t, ca, after))
			if status != http.StatusOK || !slices.Equal(ids, want) || next != cursorAt(t, ca, after+len(want)) {
				t.Errorf("%s, after %d: %d %q, next %d; want %q", when, after, status, ids, next.number(), want)
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
		if status, ids, next := readPage(t, s, 0); status != http.StatusOK || next != cursorAt(t, ca, 3) ||
			!slices.Equal(ids, []string{"edge-2", "edge-3"}) || size() >= before {
			t.Errorf("two are gathered: %d %q, next %d, %d bytes of %d", status, ids, next.number(), size(), before)
		}
		expect("two are gathered", 2, "edge-3")
		revoke("edge-4")
		expect("three are gathered", 3, "edge-4")
		expect("all are gathered", 4)
		runOnce(t, s)
		expect("a young one stays", 3, "edge-4")
		for _, other := range []auditCursor{9, 9 << 32, cursorAt(t, ca, 4) + 1} {
			if status, _, _ := readPage(t, s, other); status != http.StatusGone {
				t.Errorf("the cursor %d of another CA: %d", other, status)
			}
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
		if status, ids, _ := readPage(t, s, 0); status != http.StatusOK || !slices.Equal(ids, []string{"edge-5"}) {
			t.Errorf("all but the last are removed: %d %q", status, ids)
		}
		expect("all but the last are removed", 5)
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
	status, ids, fifth := readPage(t, s, 0)
	if status != http.StatusOK || !slices.Equal(ids, []string{"edge-1"}) || fifth.number() != 5 {
		t.Errorf("%d %q, next %d", status, ids, fifth.number())
	}
	appendText("}\n")
	for number := range 6 { // also after damaged lines
		status, ids, next := readPage(t, s, cursorAt(t, ca, number))
		if status != http.StatusOK || !slices.Contains(ids, "unfinished") || next.number() != 6 {
			t.Errorf("after %d: %d %q, next %d", number, status, ids, next.number())
		}
	}
	if again := cursorAt(t, ca, 5); again != fifth {
		t.Errorf("the cursor after line 5 is %d, and was %d", again, fifth)
	}
}

// A CA that was restored from a backup may have as many records as the cursor of the reader says, before he asks: an
// operator repeats the revocations from after the backup. The reader is told, and loses none.
func TestNoRecordOfARestoredCAIsLost(t *testing.T) {
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
	revoke("edge-1", "edge-2")
	backup := readFile(t, ca.auditPath())
	revoke("edge-3")
	_, _, cursor := readPage(t, s, 0)
	if status, ids, next := readPage(t, s, cursor); status != http.StatusOK || len(ids) > 0 || next != cursor {
		t.Errorf("at the end: %d %q, next %d", status, ids, next)
	}
	for name, again := range map[string][]Name{"fewer": nil, "as many": {"edge-4"}, "more": {"edge-5", "edge-6"}} {
		writeFile(t, ca.auditPath(), backup)
		revoke(again...)
		if status, ids, _ := readPage(t, s, cursor); status != http.StatusGone || len(ids) > 0 {
			t.Errorf("%s records: %d %q", name, status, ids)
		}
		// An earlier Atoll has numbers of lines, and may have stored one.
		want := []string{}
		for _, name := range again {
			want = append(want, string(name))
		}
		if status, ids, next := readPage(t, s, 2); status != http.StatusOK || !slices.Equal(ids, want) ||
			len(ids) > 0 && next != cursorAt(t, ca, 2+len(ids)) {
			t.Errorf("%s records, after a number: %d %q, next %d", name, status, ids, next)
		}
		// The records that the reader has not seen stay, however old.
		if err := ca.trimAudit(cursor, time.Now().Add(2*auditRetention)); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(readFile(t, ca.auditPath()), []byte("\n")); n != 2+len(again) {
			t.Errorf("%s records: %d lines are left", name, n)
		}
	}
	if err := os.Remove(ca.auditPath()); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := readPage(t, s, cursor); status != http.StatusGone {
		t.Errorf("without the file: %d", status)
	}
}

// Reading needs memory for the records of a page, not for the file.
func TestTheAuditIsReadInBoundedMemory(t *testing.T) {
	ca := openCA(t)
	var text bytes.Buffer
	for n := range 5_000 {
		fmt.Fprintf(&text, `{"id":"%d","before":%q}`+"\n", n, strings.Repeat("x", 1000))
	}
	if err := os.WriteFile(filepath.Join(ca.dir, auditFile), text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	items, next, err := ca.readAudit(4_990)
	runtime.ReadMemStats(&after)
	if err != nil || len(items) != 10 || next.number() != 5_000 || items[9].ID != "4999" {
		t.Errorf("%d records, next %d, %v", len(items), next, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > uint64(text.Len())/10 {
		t.Errorf("%d bytes were allocated for a file of %d", used, text.Len())
	}
}
