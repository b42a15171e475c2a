package cli

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) {
	testscript.Main(withOwnConfig{m}, map[string]func(){
		"atoll":        func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
		"test-browser": browse,
	})
}

// withOwnConfig runs the tests without the login of the developer. A command that a script starts has the environment
// of the script.
type withOwnConfig struct{ m *testing.M }

// Run implements testscript.TestingM.
func (w withOwnConfig) Run() int { return testsite.WithOwnConfig(w.m.Run) }

// browse opens an address as the browser of a person does who consents to everything.
func browse() {
	pem, err := os.ReadFile(os.Getenv("TEST_BROWSER_CA"))
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	browser := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		MinVersion: tls.VersionTLS12}}}
	answer, err := browser.Get(os.Args[1])
	if err != nil {
		panic(err)
	}
	_ = answer.Body.Close()
}

// The commands as a person types them, where no region runs; test/e2e runs
// them where one does.
func TestScripts(t *testing.T) {
	// The program exists and prints its version; no test here starts it.
	kube := filepath.Join(t.TempDir(), "atoll-kube")
	if err := os.WriteFile(kube, []byte("#!/bin/sh\necho v1.2.3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ATOLL_HOME", e.WorkDir+"/home")
			e.Setenv("ATOLL_ENDPOINT", "")
			e.Setenv("ATOLL_KUBE_BIN", kube)
			return nil
		}})
}
