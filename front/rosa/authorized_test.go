package rosa_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/access"
	"atoll.dev/access/audit"
	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// claimedIdentity identifies a sender by a header, as if he had signed the request. The accounts of
// operators are privileged.
type claimedIdentity struct{}

func (claimedIdentity) Identify(r *http.Request) (access.Identity, []byte, error) {
	body, err := io.ReadAll(r.Body)
	principal := r.Header.Get("Test-Principal")
	if principal == "" {
		return access.Identity{}, nil, err
	}
	account := strings.Split(principal, ":")[4]
	return access.Identity{Principal: policy.Principal(principal), Account: cluster.Account(account),
		Privileged: account == operatorAccount}, body, err
}

// authorized is a region whose Directory decides.
type authorized struct {
	t         *testing.T
	server    *httptest.Server
	lifecycle *lifecycle
	platform  *store.Store
	directory *access.Directory
	// decided, unless it is nil, is called after each decision, before the request goes on.
	decided func(access.Question)
}

// Decide implements access.Policy: the Directory decides.
func (a *authorized) Decide(ctx context.Context, q access.Question) (access.Grant, error) {
	a.lifecycle.work.add(ctx, "decide "+string(q.Action))
	grant, err := a.directory.Decide(ctx, q)
	if a.decided != nil {
		a.decided(q)
	}
	return grant, err
}

// startAuthorized starts a region with the accounts of operators, of an owner and of another customer.
func startAuthorized(t *testing.T) *authorized {
	t.Helper()
	return startDecidedBy(t, func(*authorized) access.Policy { return nil })
}

// startDecidedBy starts a region with a policy, or, when that is nil, its Directory.
func startDecidedBy(t *testing.T, policy func(*authorized) access.Policy) *authorized {
	t.Helper()
	l := startLifecycle(t)
	s, err := store.Open(t.Context(), store.Options{DSN: pgtest.DSN(t), Kinds: access.StoreKinds(),
		Tracer: l.work}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	sealer, err := access.OpenSealer(filepath.Join(t.TempDir(), "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	keys := access.NewKeyStore(s, sealer, access.CacheObserver{})
	a := &authorized{t: t, lifecycle: l, directory: keys.Directory(), platform: s}
	chain, err := audit.OpenChain(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	denials := audit.NewDenials(chain, quiet)
	gatherer := &audit.Gatherer{Chain: chain, Log: quiet, Sources: map[string]audit.Source{"clm": l.front,
		"platform": audit.Own{Store: s}}}
	testsite.Run(t, "the gatherer of audit records", gatherer.Run)
	testsite.Run(t, "the audit of denials", denials.Run)
	h := rosa.New(rosa.Options{Maestro: l.maestro, CLM: l.front, Directory: keys.Directory(), Region: region,
		Audit: chain, Denials: denials,
		Policy: policy(a), Identifier: claimedIdentity{}, Ops: rest.NewOps(), Log: slog.New(slog.DiscardHandler)})
	a.server = httptest.NewServer(asDocumented(t, h))
	t.Cleanup(a.server.Close)
	a.want(root, "GET", "/clusters", "", 503, "policies-not-ready") // it was never read
	go func() { _ = keys.Run(t.Context()) }()
	for _, account := range []access.Account{
		{ID: operatorAccount, Privileged: true}, {ID: ownerAccount}, {ID: otherAccount},
	} {
		if err := keys.PutAccount(t.Context(), account); err != nil {
			t.Fatal(err)
		}
	}
	for keys.Ready(t.Context()) != nil || !keys.Directory().Caller(otherAccount, otherRoot).IsProvisioned {
		if t.Context().Err() != nil {
			t.Fatal("the directory is not read")
		}
	}
	return a
}

// send sends a request of a principal and returns the answer and its body.
func (a *authorized) send(who, method, path, body string) (*http.Response, []byte) {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.server.URL+"/api/v0"+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Test-Principal", who)
	r.Header.Set("Content-Type", "application/json")
	w, err := a.server.Client().Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer w.Body.Close()
	data, err := io.ReadAll(w.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return w, data
}

// call sends a request and returns the status and the body of the answer.
func (a *authorized) call(who, method, path, body string) (status int, answer map[string]any) {
	a.t.Helper()
	w, data := a.send(who, method, path, body)
	if len(bytes.TrimSpace(data)) > 0 && strings.Contains(w.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(data, &answer); err != nil {
			a.t.Fatalf("%s %s: %s", method, path, data)
		}
	}
	return w.StatusCode, answer
}

// want sends a request and checks the status and, for an error, the code of the answer.
func (a *authorized) want(who, method, path, body string, status int, code string) map[string]any {
	a.t.Helper()
	got, answer := a.call(who, method, path, body)
	if got != status || code != "" && answer["code"] != code {
		a.t.Errorf("%s: %s %s: %d %v; want %d %s", who, method, path, got, answer, status, code)
	}
	return answer
}

// make creates something and returns its id.
func (a *authorized) make(who, path, id string, body any) string {
	a.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		a.t.Fatal(err)
	}
	made := a.want(who, "POST", path, string(data), 201, "")
	text, _ := made[id].(string)
	return text
}

// attach writes a policy and attaches it to a target. The returned function takes both away.
func (a *authorized) attach(text, targetType, target string) (take func()) {
	a.t.Helper()
	id := a.make(root, "/authz/policies", "policyId", platform.PolicyRequest{Name: "p", Policy: text})
	at := a.make(root, "/authz/attachments", "attachmentId", platform.AttachmentRequest{PolicyID: id,
		TargetType: platform.AttachmentRequestTargetType(targetType), TargetID: target})
	return func() {
		a.t.Helper()
		a.want(root, "DELETE", "/authz/policies/"+id, "", 409, "policy-in-use")
		a.want(root, "DELETE", "/authz/attachments/"+at, "", 204, "")
		a.want(root, "DELETE", "/authz/policies/"+id, "", 204, "")
	}
}
