package cli

import (
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"atoll.dev/api/platform"
	"atoll.dev/internal/pgtest"
	"atoll.dev/local"
	"atoll.dev/test/testissuer"
	"atoll.dev/test/testsite"
)

// The scripts of testdata/login sign in at a real issuer to a Platform API that takes its tokens. OPERATOR is the home
// of an operator with a key. There are also
//
//	sign-in PERSON          who consents at the issuer from now on
//	tokens-live DURATION    how long new tokens are valid
//	private-login           fails unless only the owner may read the login
//	delete-link PERSON FILE deletes a link of a list, as the operator
//	withdraw-code USER FILE withdraws the link code of a list that is for a user, as the operator
func TestLoginScripts(t *testing.T) {
	issuer := testissuer.New("", "atoll-test")
	server := httptest.NewUnstartedServer(issuer)
	server.StartTLS()
	t.Cleanup(server.Close)
	issuer.URL = server.URL
	dir, home, dsn := t.TempDir(), t.TempDir(), pgtest.DSN(t)
	issuerCA := filepath.Join(dir, "issuer.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	err := os.WriteFile(issuerCA, certificate, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	pair, secret, err := platformKeysIn(t, home, dsn).Create(t.Context(), "000000000000", regionOperator)
	if err != nil {
		t.Fatal(err)
	}
	listen := testsite.FreeAddress(t)
	startPlatformAPI(t, home, dsn, "--listen", listen, "--oidc-issuer", issuer.URL, "--oidc-client-id", "atoll-test",
		"--oidc-ca", issuerCA)
	_, portText, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]any{
		"region.json":      local.State{Format: 1, Region: "test-1", Ports: map[string]int{"platform": port}},
		"credentials.json": local.Credentials{AccessKeyID: pair.AccessKeyID, SecretAccessKey: secret},
	} {
		data, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(home, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testsite.Eventually(t, "an answer to the operator", func() error {
		h, err := local.OpenHome(home)
		if err != nil {
			return err
		}
		api, err := h.Client()
		if err != nil {
			return err
		}
		defer api.Close()
		_, err = api.Accounts(t.Context())
		return err
	})
	login := func(ts *testscript.TestScript) string {
		return filepath.Join(ts.Getenv("XDG_CONFIG_HOME"), "atoll", "login.json")
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/login", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{"ISSUER": issuer.URL, "ISSUER_CA": issuerCA,
				"REGION": "https://" + listen, "REGION_CA": filepath.Join(home, "ca.pem"), "OPERATOR": home,
				"XDG_CONFIG_HOME": filepath.Join(e.WorkDir, "config"), "HOME": e.WorkDir, "ATOLL_HOME": "",
				"ATOLL_ENDPOINT": "", "BROWSER": "test-browser", "TEST_BROWSER_CA": issuerCA} {
				e.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sign-in": func(_ *testscript.TestScript, _ bool, args []string) { issuer.SignIn(args[0]) },
			"tokens-live": func(ts *testscript.TestScript, _ bool, args []string) {
				d, err := time.ParseDuration(args[0])
				ts.Check(err)
				issuer.SetLifetime(d)
			},
			"private-login": func(ts *testscript.TestScript, _ bool, _ []string) {
				info, err := os.Stat(login(ts))
				ts.Check(err)
				if info.Mode().Perm() != 0o600 {
					ts.Fatalf("the login has mode %s", info.Mode())
				}
			},
			"withdraw-code": func(ts *testscript.TestScript, _ bool, args []string) {
				var codes []platform.ListedLinkCode
				ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &codes))
				for _, c := range codes {
					if strings.HasSuffix(c.PrincipalArn, "/"+args[0]) {
						ts.Check(ts.Exec("atoll", "link", "withdraw", c.ID, "--account", "123456789012", "--home", home))
						return
					}
				}
				ts.Fatalf("no code is for %s", args[0])
			},
			"delete-link": func(ts *testscript.TestScript, _ bool, args []string) {
				var links []platform.Link
				ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &links))
				for _, l := range links {
					if l.Subject == args[0] {
						ts.Check(ts.Exec("atoll", "link", "delete", l.ID, "--account", "123456789012", "--home", home))
						return
					}
				}
				ts.Fatalf("%s has no link", args[0])
			},
		},
	})
}
