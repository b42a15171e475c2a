package customer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/client/remote"
)

// auditLine is an event at a second of a minute.
func auditLine(id string, second int, verb, user, more string) string {
	return fmt.Sprintf(`{"auditID":%q,"stage":"ResponseComplete","stageTimestamp":"2026-11-23T10:00:%02d.5Z","verb":%q,`+
		`"requestURI":"/api","user":{"username":%q},"responseStatus":{"code":200}%s}`+"\n", id, second, verb, user, more)
}

func ids(events []planeAuditEvent) (all []string) {
	for _, e := range events {
		all = append(all, e.ID)
	}
	return all
}

// TestAReaderOfAPlanesAuditGoesOn checks that a reader that follows gets each event once, while the log grows, has a
// half line at its end, and loses the files with what the reader has seen.
func TestAReaderOfAPlanesAuditGoesOn(t *testing.T) {
	a, b, c, d, e := auditLine("a", 1, "create", "ann", ""), auditLine("b", 2, "delete", "bob", ""),
		auditLine("c", 2, "create", "ann", ""), auditLine("d", 3, "get", "ann", ""), auditLine("e", 4, "update", "ann", "")
	var p planeAuditPosition
	for i, step := range []struct {
		log  string
		want []string
	}{
		{"", nil},
		{a + b[:40], []string{"a"}},
		{a + b, []string{"b"}},
		{a + b, nil},
		{b + c, []string{"c"}},
		{d + e, []string{"d", "e"}}, // c is gone
		{e, nil},
	} {
		events, err := p.advance(strings.NewReader(step.log))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, ids(events)); diff != "" {
			t.Errorf("read %d: %s", i, diff)
		}
	}
	before := p
	if _, err := p.advance(strings.NewReader(e + "nonsense\n")); err == nil || before.last != p.last {
		t.Errorf("a broken line: %v, position %v", err, p)
	}
}

// TestAFollowerOfAPlanesAuditOutlastsFailures checks that a follower goes on behind the last event after answers that
// were cut or refused for a time, warns once, opens no further credential for them, and ends with a lasting refusal.
func TestAFollowerOfAPlanesAuditOutlastsFailures(t *testing.T) {
	a, b := auditLine("a", 1, "create", "ann", ""), auditLine("b", 2, "delete", "bob", "")
	var requests, opened int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		switch requests {
		case 1:
			fmt.Fprint(w, a)
		case 2:
			w.Header().Set("Content-Length", "9999")
			fmt.Fprint(w, a+b)
		case 3:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case 4:
			fmt.Fprint(w, a+b)
		default:
			http.Error(w, "the credential is revoked", http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	open := func(context.Context) (*planeClient, error) {
		if opened++; opened == 1 {
			return nil, &remote.Error{Status: http.StatusServiceUnavailable, Code: remote.CodeUnreachable,
				Err: errors.New("cut")}
		}
		return &planeClient{http: server.Client(), url: server.URL}, nil
	}
	var seen, warned []string
	err := followPlaneAudit(t.Context(), open, &planeAuditPosition{}, func(events []planeAuditEvent) error {
		seen = append(seen, ids(events)...)
		return nil
	}, func(err error) { warned = append(warned, err.Error()) })
	if err == nil || !strings.Contains(err.Error(), "401") || !strings.Contains(err.Error(), "revoked") {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, seen); diff != "" || opened != 2 || len(warned) != 2 {
		t.Errorf("%s, opened %d times, warned %q", diff, opened, warned)
	}
}

// TestAFollowerOfAPlanesAuditEndsAtAnUntrustedServer checks that a follower does not try again where somebody else
// serves, or where its kubeconfig is of another cluster.
func TestAFollowerOfAPlanesAuditEndsAtAnUntrustedServer(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	open := func(context.Context) (*planeClient, error) {
		return &planeClient{http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, url: server.URL}, nil
	}
	err := followPlaneAudit(t.Context(), open, &planeAuditPosition{}, func([]planeAuditEvent) error { return nil },
		func(err error) { t.Errorf("tries again after: %v", err) })
	if err == nil || !strings.Contains(err.Error(), "does not trust the server at "+server.URL) ||
		!strings.Contains(err.Error(), "atoll cluster kubeconfig") {
		t.Error(err)
	}
}

func TestEventsOfAPlanesAuditAreSelected(t *testing.T) {
	secret := `,"objectRef":{"resource":"secrets","namespace":"shop","name":"key"}`
	log := auditLine("old", 1, "delete", "ann", secret) + auditLine("by-bob", 20, "delete", "bob", secret) +
		auditLine("get", 21, "get", "ann", secret) + auditLine("pod", 22, "delete", "ann", "") +
		auditLine("right", 23, "delete", "ann", secret) +
		auditLine("as-ann", 24, "delete", "root", secret+`,"impersonatedUser":{"username":"ann"}`)
	p := planeAuditPosition{filter: planeAuditFilter{user: "ann", verbs: []string{"create", "delete"}, resource: "secrets",
		since: time.Date(2026, 11, 23, 10, 0, 10, 0, time.UTC)}}
	events, err := p.advance(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"right", "as-ann"}, ids(events)); diff != "" {
		t.Error(diff)
	}
	if row := strings.Join(events[1].row(time.TimeOnly)[1:], "|"); row != "200|delete|secrets shop/key|root as ann" {
		t.Error(row)
	}
}
