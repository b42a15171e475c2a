package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"atoll": func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
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
