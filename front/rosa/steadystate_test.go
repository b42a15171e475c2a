package rosa_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/access"
	"atoll.dev/access/audit"
	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/cluster"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// statementLog has the statements of a store: all of them, and those of requests, whose contexts ofRequest has marked.
type statementLog struct {
	mu       sync.Mutex
	all      int
	requests []string
}

type requestMark struct{}

// ofRequest marks the contexts of the requests.
func (s *statementLog) ofRequest(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestMark{}, r.URL.Path)))
	})
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *statementLog) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all++
	if path := ctx.Value(requestMark{}); path != nil {
		s.requests = append(s.requests, fmt.Sprintf("%s: %s", path, d.SQL))
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *statementLog) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (s *statementLog) TraceBatchStart(ctx context.Context, c *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return s.TraceQueryStart(ctx, c, pgx.TraceQueryStartData{SQL: "a batch"})
}

// TraceBatchQuery implements pgx.BatchTracer.
func (s *statementLog) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (s *statementLog) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// take returns the number of all statements and the statements of requests since the last take.
func (s *statementLog) take() (all int, requests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, requests = s.all, s.requests
	s.all, s.requests = 0, nil
	return all, requests
}

// signedRegion is the Platform API as `atoll platform` makes it: key pairs, policies, limits and used signatures in one
// real database, whose statements are counted.
type signedRegion struct {
	t          *testing.T
	server     *httptest.Server
	keys       *access.KeyStore
	statements *statementLog
}

func startSignedRegion(t *testing.T) *signedRegion {
	t.Helper()
	l := startLifecycle(t)
	statements := &statementLog{}
	o := store.Options{DSN: pgtest.DSN(t), Kinds: access.StoreKinds(), Migrations: access.Migrations(),
		Tracer: statements}.Patient()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	sealer, err := access.OpenSealer(filepath.Join(t.TempDir(), "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	chain, err := audit.OpenChain(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	keys, denials := access.NewKeyStore(s, sealer, access.CacheObserver{}), audit.NewDenials(chain, quiet)
	limiter, signatures := access.NewLimiter(access.Limits{}), access.NewUsedSignatures(s)
	failures := access.NewFailures(quiet, prometheus.NewRegistry())
	testsite.Run(t, "key pairs", keys.Run)
	testsite.Run(t, "denials", denials.Run)
	testsite.Run(t, "limits", func(ctx context.Context) error {
		return limiter.Run(ctx, access.NewSharedBuckets(s), failures)
	})
	testsite.Run(t, "used signatures", func(ctx context.Context) error { return signatures.Run(ctx, failures) })
	verifier := &access.Verifier{Region: region, Keys: keys, Used: keys.RecordUse}
	identifier := &access.CombinedIdentifier{Signatures: verifier}
	h := rosa.New(rosa.Options{Maestro: l.maestro, CLM: l.front, Identifier: identifier, Validity: keys,
		Directory: keys.Directory(), Region: region, Signatures: signatures, Limiter: limiter, Audit: chain,
		Denials: denials, Ops: rest.NewOps(), Log: quiet})
	r := &signedRegion{t: t, server: httptest.NewServer(statements.ofRequest(h)), keys: keys, statements: statements}
	t.Cleanup(r.server.Close)
	if err := keys.PutAccount(t.Context(), access.Account{ID: ownerAccount}); err != nil {
		t.Fatal(err)
	}
	return r
}

// key makes a key pair of a principal of the owner's account.
func (r *signedRegion) key(principal policy.Principal) client.Credentials {
	r.t.Helper()
	pair, secret, err := r.keys.Create(r.t.Context(), cluster.Account(ownerAccount), principal)
	if err != nil {
		r.t.Fatal(err)
	}
	return client.Credentials{AccessKeyID: pair.AccessKeyID, SecretAccessKey: secret, Region: region}
}

// call sends a signed request, and returns its status and the decoded answer.
func (r *signedRegion) call(by client.Credentials, method, path string, body any) (int, map[string]any) {
	r.t.Helper()
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			r.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.server.URL+"/api/v0"+path,
		strings.NewReader(string(data)))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if err := client.Sign(req, data, by, time.Now()); err != nil {
		r.t.Fatal(err)
	}
	res, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var answer map[string]any
	if len(text) > 0 {
		if err := json.Unmarshal(text, &answer); err != nil {
			r.t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, text)
		}
	}
	return res.StatusCode, answer
}

// make sends a POST until the region, which follows its database, takes it, and returns a member of the answer.
func (r *signedRegion) make(by client.Credentials, path, member string, body any) string {
	r.t.Helper()
	var text string
	testsite.Eventually(r.t, "POST "+path, func() error {
		status, answer := r.call(by, "POST", path, body)
		if status == http.StatusBadRequest {
			r.t.Fatalf("POST %s: %v", path, answer)
		}
		if status != http.StatusCreated {
			return fmt.Errorf("%d %v", status, answer)
		}
		text, _ = answer[member].(string)
		return nil
	})
	return text
}

// What the region needs to identify a sender, to decide on a request and to count it is in memory. An administrator's
// GET, and that of a member of groups with policies, wait for no statement of the platform database. What requests
// leave to the background, such as the use of a key or the state of a bucket, is not a statement for each of them.
func TestSignedGETsReadNoDatabaseInTheSteadyState(t *testing.T) {
	r := startSignedRegion(t)
	admin := r.key("arn:aws:iam::111111111111:root")
	const member = "arn:aws:iam::111111111111:user/member"
	r.make(admin, "/authz/admins", "", platform.AdminRequest{PrincipalArn: "arn:aws:iam::111111111111:user/admin"})
	id := r.make(admin, "/clusters", "id", map[string]any{"name": "demo", "spec": map[string]any{
		"tags": map[string]string{"team": "web"}}})
	for i := range 20 {
		group := r.make(admin, "/authz/groups", "groupId", platform.GroupRequest{Name: fmt.Sprint("group-", i)})
		if status, answer := r.call(admin, "PUT", "/authz/groups/"+group+"/members",
			map[string]any{"add": []string{member}}); status != http.StatusOK {
			t.Fatalf("adding a member: %d %v", status, answer)
		}
		policy := r.make(admin, "/authz/policies", "policyId", platform.PolicyRequest{Name: fmt.Sprint("policy-", i),
			Policy: fmt.Sprintf(`permit (principal, action == ROSA::Action::"DescribeCluster", resource)
				when { resource.hasTag("team") && resource.getTag("team") == "%s" };`,
				map[bool]string{true: "web", false: fmt.Sprint("team-", i)}[i == 19])})
		r.make(admin, "/authz/attachments", "attachmentId", platform.AttachmentRequest{PolicyID: policy,
			TargetType: "group", TargetID: group})
	}
	callers := map[string]client.Credentials{"the root": admin,
		"an administrator": r.key("arn:aws:iam::111111111111:user/admin"), "a member of groups": r.key(member)}
	for name, by := range callers {
		testsite.Eventually(t, "the first GET of "+name, func() error {
			if status, answer := r.call(by, "GET", "/clusters/"+id, nil); status != http.StatusOK {
				return fmt.Errorf("%d %v", status, answer)
			}
			return nil
		})
	}
	const each = 100
	for name, by := range callers {
		r.statements.take()
		for range each {
			if status, answer := r.call(by, "GET", "/clusters/"+id, nil); status != http.StatusOK {
				t.Fatalf("%s: %d %v", name, status, answer)
			}
		}
		all, requests := r.statements.take()
		if len(requests) > 0 {
			t.Errorf("%d GETs of %s send %d statements, the first: %s", each, name, len(requests), requests[0])
		}
		if all >= each/2 {
			t.Errorf("the platform database gets %d statements during %d GETs of %s", all, each, name)
		}
	}
	if status, _ := r.call(callers["a member of groups"], "GET", "/authz/policies", nil); status != http.StatusForbidden {
		t.Errorf("the member reads policies: %d", status)
	}
	r.make(admin, "/authz/groups", "groupId", platform.GroupRequest{Name: "counted"})
	if _, requests := r.statements.take(); len(requests) == 0 {
		t.Error("a change of a group sends no statement, so nothing is counted")
	}
}
