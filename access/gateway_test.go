package access

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/client"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

const (
	gatewaySecret = "11111111111111111111111111111111"
	nextSecret    = "22222222222222222222222222222222"
	gatewayCaller = "arn:aws:sts::123456789012:assumed-role/deployer/ann"
)

// fixedAccounts implements Accounts: the region has these accounts, and they are privileged.
type fixedAccounts []cluster.Account

func (f fixedAccounts) IsPrivileged(account cluster.Account) (bool, error) {
	for _, a := range f {
		if a == account {
			return true, nil
		}
	}
	return false, nil
}

func (f fixedAccounts) IsProvisioned(account cluster.Account) bool {
	return slices.Contains(f, account)
}

func writeSecret(t *testing.T, file, secret string, mode os.FileMode) {
	t.Helper()
	_ = os.Remove(file)
	if err := os.WriteFile(file, []byte(secret), mode); err != nil {
		t.Fatal(err)
	}
}

// newTestGateway returns a Gateway with one secret.
func newTestGateway(t *testing.T) *Gateway {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	writeSecret(t, file, gatewaySecret+"\n", 0o600)
	g, err := NewGateway([]string{file}, fixedAccounts{account}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// startFront starts a front whose only handler answers with the identity of the caller.
func startFront(t *testing.T, identifier Identifier) *httptest.Server {
	t.Helper()
	rt := NewRouter(Options{Log: quiet, Identifier: identifier})
	handleEverything(rt, func(w http.ResponseWriter, r *http.Request) error {
		id, _ := FromContext(r.Context())
		for name := range r.Header {
			if claimsIdentity(name) {
				return fmt.Errorf("the handler sees %s", name)
			}
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		a := AuthorityFrom(r.Context())
		return rest.WriteJSON(w, http.StatusOK, map[string]any{"principal": id.Principal, "evidence": id.Evidence,
			"source": a.context.SourceIP, "body": string(body), "privileged": id.Privileged})
	})
	server := httptest.NewServer(rest.Observe(rest.Options{Log: quiet, ErrorBody: rest.PlatformError}, rt))
	t.Cleanup(server.Close)
	return server
}

// answerOf is what a front of startFront answers: an identity, or a code.
type answerOf struct {
	Code, Principal, Source, Body string
	Privileged                    bool
	Evidence                      Evidence
}

func ask(t *testing.T, server *httptest.Server, r *http.Request) answerOf {
	t.Helper()
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var a answerOf
	if err := json.NewDecoder(answer.Body).Decode(&a); err != nil {
		t.Fatalf("%s: %v", answer.Status, err)
	}
	if (a.Code == "") != (answer.StatusCode == http.StatusOK) {
		t.Errorf("status %s with the code %q", answer.Status, a.Code)
	}
	return a
}

// Forged, duplicated and contradicting headers, and requests that prove two identities.
func TestOnlyTheGatewaysHeadersProveAnIdentity(t *testing.T) {
	now := time.Now()
	signatures := &Verifier{Region: testRegion, Keys: testKeys(), Now: func() time.Time { return now }}
	withGateway := startFront(t, &CombinedIdentifier{Signatures: signatures, Gateway: newTestGateway(t)})
	without := startFront(t, &CombinedIdentifier{Signatures: signatures})
	set := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = values } // as spelled
	}
	drop := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(name) } }
	sign := func(r *http.Request) {
		if err := client.Sign(r, nil, creds, now); err != nil {
			t.Fatal(err)
		}
	}
	both := func(a, b func(*http.Request)) func(*http.Request) {
		return func(r *http.Request) { a(r); b(r) }
	}
	for _, tc := range []struct {
		name   string
		change func(*http.Request)
		code   Code
	}{
		{"as the gateway sends it", func(*http.Request) {}, ""},
		{"an empty Authorization header", set("Authorization", ""), ""},
		{"no secret", drop(GatewaySecretHeader), MissingAuthentication},
		{"an empty secret", set(GatewaySecretHeader, ""), WrongGatewaySecret},
		{"another secret", set(GatewaySecretHeader, nextSecret), WrongGatewaySecret},
		{"a part of the secret", set(GatewaySecretHeader, gatewaySecret[:31]), WrongGatewaySecret},
		{"the secret twice", set(GatewaySecretHeader, gatewaySecret, gatewaySecret), WrongGatewaySecret},
		{"two secrets", set(GatewaySecretHeader, gatewaySecret, nextSecret), WrongGatewaySecret},
		{"the secret, also misspelled", set("X_Atoll_Gateway_Secret", gatewaySecret), InvalidGatewayIdentity},
		{"the secret, only misspelled", both(drop(GatewaySecretHeader), set("X_Atoll_Gateway_Secret", gatewaySecret)),
			WrongGatewaySecret},
		{"no account", drop(headerAccount), InvalidGatewayIdentity},
		{"no principal", drop(headerCallerARN), InvalidGatewayIdentity},
		{"no source", drop(headerSourceIP), InvalidGatewayIdentity},
		{"a source that is no address", set(headerSourceIP, "10.0.0.1, 10.0.0.2"), InvalidGatewayIdentity},
		{"a source with a zone", set(headerSourceIP, "fe80::1%eth0"), InvalidGatewayIdentity},
		{"two accounts", set(headerAccount, account, "999999999999"), InvalidGatewayIdentity},
		{"an account twice", set(headerAccount, account, account), InvalidGatewayIdentity},
		{"accounts with a comma", set(headerAccount, account+","+account), InvalidGatewayIdentity},
		{"two principals", set(headerCallerARN, gatewayCaller, principal), InvalidGatewayIdentity},
		{"an account, also misspelled", set("X-Amz_Account-Id", "999999999999"), InvalidGatewayIdentity},
		{"an account in lower case", func(r *http.Request) { r.Header["x-amz-account-id"] = []string{"999999999999"} },
			InvalidGatewayIdentity},
		{"a principal of another account", set(headerCallerARN, "arn:aws:iam::999999999999:user/x"),
			InvalidGatewayIdentity},
		{"a principal that is none", set(headerCallerARN, "root"), InvalidGatewayIdentity},
		{"a user id of 1 KiB", set(headerUserID, strings.Repeat("A", 1024)), InvalidGatewayIdentity},
		{"a signature besides", sign, AmbiguousIdentity},
		{"a token besides", set("Authorization", "Bearer x"), AmbiguousIdentity},
		{"two empty Authorization headers", set("Authorization", "", ""), AmbiguousIdentity},
		{"a signature in the query besides", func(r *http.Request) { r.URL.RawQuery = "X-Amz-Signature=x" },
			AmbiguousIdentity},
		{"a signature in an encoded query besides", func(r *http.Request) { r.URL.RawQuery = "X-%41mz-Signature=x" },
			AmbiguousIdentity},
		{"a signature only, with the gateway's headers signed", both(drop(GatewaySecretHeader), sign), ""},
		{"a signature only, with a header that is not signed", both(drop(GatewaySecretHeader), both(sign,
			set("X-Amz-Source-Ip2", "1.2.3.4"))), UnsignedHeader},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", withGateway.URL+"/api/v0/whoami", nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{GatewaySecretHeader: gatewaySecret, headerAccount: account,
			headerCallerARN: gatewayCaller, headerUserID: "AROAEXAMPLE:ann", headerSourceIP: "203.0.113.7"} {
			r.Header.Set(name, value)
		}
		tc.change(r)
		got := ask(t, withGateway, r)
		if Code(got.Code) != tc.code {
			t.Errorf("%s: %+v, want %q", tc.name, got, tc.code)
		}
		if got.Code == "" && got.Evidence.Method == ByGateway && (got.Principal != gatewayCaller || !got.Privileged ||
			got.Source != "203.0.113.7" || got.Evidence.Session != "ann" || got.Evidence.Subject != "AROAEXAMPLE:ann") {
			t.Errorf("%s: %+v", tc.name, got)
		}
		if r.Header.Get(GatewaySecretHeader) != "" {
			r.URL.Host = strings.TrimPrefix(without.URL, "http://")
			if got := ask(t, without, r); got.Code == "" {
				t.Errorf("%s: a region without a gateway takes %+v", tc.name, got)
			}
		}
	}
}

// The body of a request through the gateway arrives, and a mutation has no signature to use up.
func TestAMutationThroughTheGatewayHasItsBody(t *testing.T) {
	server := startFront(t, &CombinedIdentifier{Signatures: testVerifier(), Gateway: newTestGateway(t)})
	r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/api/v0/x", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{GatewaySecretHeader: gatewaySecret, headerAccount: account,
		headerCallerARN: gatewayCaller, headerSourceIP: "203.0.113.7"} {
		r.Header.Set(name, value)
	}
	if got := ask(t, server, r); got.Body != "{}" || got.Evidence.Method != ByGateway {
		t.Errorf("%+v", got)
	}
}

// The secret changes without a gap, and a removed one is refused within a second.
func TestTheGatewaysSecretRotatesWithoutAGap(t *testing.T) {
	dir := t.TempDir()
	present, next := filepath.Join(dir, "present"), filepath.Join(dir, "next")
	writeSecret(t, present, gatewaySecret, 0o600)
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGateway([]string{present, next}, fixedAccounts{}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			name             string
			change           func()
			present, another bool
		}{
			{"at the start", func() {}, true, false},
			{"the next is there", func() { writeSecret(t, next, nextSecret+"\n", 0o640) }, true, true},
			{"the old one is replaced", func() { writeSecret(t, present, nextSecret, 0o600) }, false, true},
			{"the next is gone", func() { _ = os.Remove(next) }, false, true},
			{"everybody may read it", func() { writeSecret(t, present, nextSecret, 0o604) }, false, false},
			{"too short", func() { writeSecret(t, present, nextSecret[1:], 0o600) }, false, false},
			{"back", func() { writeSecret(t, present, gatewaySecret, 0o600) }, true, false},
		} {
			step.change()
			<-time.After(secretPeriod)
			if a, b := g.secrets.match(gatewaySecret), g.secrets.match(nextSecret); a != step.present || b != step.another {
				t.Errorf("%s: %v %v", step.name, a, b)
			}
		}
	})
	for _, files := range [][]string{nil, {next}, {present, next, present}} {
		if _, err := NewGateway(files, fixedAccounts{}, quiet); err == nil {
			t.Errorf("a gateway with %d files", len(files))
		}
	}
}
