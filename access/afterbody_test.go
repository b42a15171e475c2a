package access

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/client"
	"atoll.dev/cluster"
)

// changingBody is a body that calls change once, before its last bytes.
type changingBody struct {
	io.Reader
	change func()
}

func (b *changingBody) Read(p []byte) (int, error) {
	if b.change != nil {
		b.change()
		b.change = nil
	}
	return b.Reader.Read(p)
}

func (b *changingBody) Close() error { return nil }

// An operator changes a key while the body of a request arrives that the key has signed. The state after
// the body decides.
func TestTheStateOfAKeyAfterTheBodyDecides(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Key)
		code   Code
	}{
		"unchanged":         {func(*Key) {}, ""},
		"disabled":          {func(k *Key) { k.Disabled = true }, DisabledKey},
		"deleted":           {func(k *Key) { *k = Key{} }, UnknownKey},
		"expired":           {func(k *Key) { k.Expires = testTime }, ExpiredCredentials},
		"another principal": {func(k *Key) { k.Principal += "x" }, UnknownKey},
		"another account":   {func(k *Key) { k.Account = "999999999999" }, UnknownKey},
		"not privileged":    {func(k *Key) { k.Privileged = false }, ""},
	} {
		for _, isHashDeclared := range []bool{true, false} {
			keys := testKeys()
			v := testVerifier()
			v.Keys = keys
			r := request(t, "POST", "/x", "{}")
			if isHashDeclared {
				if err := client.Sign(r, []byte("{}"), creds, testTime); err != nil {
					t.Fatal(err)
				}
			} else {
				sdkSign(t, r, "{}", testTime)
				if r.Header.Get("X-Amz-Content-Sha256") != "" {
					t.Fatal("the hash of the body is declared")
				}
			}
			r.Body = &changingBody{strings.NewReader("{}"), func() {
				key := keys[testID]
				tc.change(&key)
				if keys[testID] = key; key.AccessKeyID == "" {
					delete(keys, testID)
				}
			}}
			id, _, err := v.Identify(r)
			if codeOf(err) != tc.code {
				t.Errorf("%s, hash declared %t: %v", name, isHashDeclared, err)
			}
			if err == nil && id.Privileged != keys[testID].Privileged {
				t.Errorf("%s: privileged is %t", name, id.Privileged)
			}
		}
	}
}

// privilegedIf implements Accounts.
type privilegedIf struct {
	fixedAccounts
	is bool
}

func (p *privilegedIf) IsPrivileged(cluster.Account) (bool, error) { return p.is, nil }

// The gateway's secret is removed, or its caller's account is not privileged any more, while the body of a
// request arrives.
func TestTheStateOfTheGatewayAfterTheBodyDecides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	accounts := &privilegedIf{is: true}
	writeSecret(t, file, gatewaySecret, 0o600)
	g, err := NewGateway([]string{file}, accounts, quiet)
	if err != nil {
		t.Fatal(err)
	}
	identify := func(change func()) (Identity, error) {
		r := gatewayRequest(t, "POST", "https://api.example.com/x", "{}")
		r.Body = &changingBody{strings.NewReader("{}"), change}
		id, _, err := (&CombinedIdentifier{Signatures: testVerifier(), Gateway: g}).Identify(r)
		return id, err
	}
	if id, err := identify(func() {}); err != nil || !id.Privileged {
		t.Errorf("unchanged: %v %v", id, err)
	}
	if id, err := identify(func() { accounts.is = false }); err != nil || id.Privileged {
		t.Errorf("an account that is not privileged any more: %v %v", id, err)
	}
	_, err = identify(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		g.secrets.mu.Lock()
		g.secrets.readAt = time.Time{} // as after secretPeriod
		g.secrets.mu.Unlock()
	})
	if codeOf(err) != WrongGatewaySecret {
		t.Errorf("a removed secret: %v", err)
	}
}

// gatewayRequest returns a request as the gateway of newTestGateway sends it.
func gatewayRequest(t *testing.T, method, target, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{GatewaySecretHeader: gatewaySecret, headerAccount: account,
		headerCallerARN: gatewayCaller, headerSourceIP: "203.0.113.7"} {
		r.Header.Set(name, value)
	}
	return r
}
