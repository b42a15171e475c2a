package cli

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/local"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// regionOperator is a principal of the privileged account of a new region.
const regionOperator = "arn:aws:iam::000000000000:user/admin"

// platformKeys returns the key pairs, accounts and policies of a new region, with the privileged
// account of its operators.
func platformKeys(t testing.TB, home string) *access.KeyStore {
	t.Helper()
	return platformKeysIn(t, home, pgtest.DSN(t))
}

// platformKeysIn returns platformKeys in a database.
func platformKeysIn(t testing.TB, home, dsn string) *access.KeyStore {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn, Kinds: access.StoreKinds(),
		Migrations: access.Migrations()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	sealer, err := access.OpenSealer(filepath.Join(home, "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	keys := access.NewKeyStore(s, sealer, access.CacheObserver{})
	testsite.Run(t, "the feed of the key pairs", keys.Run)
	if err := keys.PutAccount(t.Context(), access.Account{ID: "000000000000", Privileged: true}); err != nil {
		t.Fatal(err)
	}
	for keys.Ready(t.Context()) != nil || !keys.Directory().Caller("000000000000", regionOperator).IsProvisioned {
		if t.Context().Err() != nil {
			t.Fatal("the key pairs are not read")
		}
	}
	return keys
}

// The scripts of testdata/policy run the commands of accounts and policies where a Platform API
// serves whose policies decide. They begin as an operator. There is also
//
//	as PRINCIPAL
//
// which makes a key pair of a principal, and signs the next commands with it.
func TestPolicyScripts(t *testing.T) {
	stores := sync.Map{} // of *access.KeyStore, by script
	testscript.Run(t, testscript.Params{
		Dir: "testdata/policy", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			tb, home := e.T().(testing.TB), filepath.Join(e.WorkDir, "home")
			if err := os.Mkdir(home, 0o700); err != nil {
				return err
			}
			keys := platformKeys(tb, home)
			pair, secret, err := keys.Create(tb.Context(), "000000000000", regionOperator)
			if err != nil {
				return err
			}
			frontRegion(tb, home, access.Key{AccessKeyID: pair.AccessKeyID, Secret: secret}, keys, keys.Directory())
			e.Setenv("ATOLL_HOME", home)
			e.Setenv("ATOLL_ENDPOINT", "")
			stores.Store(e.WorkDir, keys)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"as": func(ts *testscript.TestScript, _ bool, args []string) {
				found, _ := stores.Load(ts.Getenv("WORK"))
				pair, secret, err := found.(*access.KeyStore).Create(t.Context(), cluster.Account(strings.Split(args[0], ":")[4]),
					policy.Principal(args[0]))
				ts.Check(err)
				home, err := local.OpenHome(ts.Getenv("ATOLL_HOME"))
				ts.Check(err)
				endpoint, region, err := home.Endpoint()
				ts.Check(err)
				for name, value := range map[string]string{"ATOLL_ENDPOINT": endpoint, "ATOLL_CA": home.CAFile(),
					"AWS_REGION": region, "AWS_ACCESS_KEY_ID": pair.AccessKeyID, "AWS_SECRET_ACCESS_KEY": secret} {
					ts.Setenv(name, value)
				}
			},
		},
	})
}
