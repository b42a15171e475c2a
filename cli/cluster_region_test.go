package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"atoll.dev/access"
	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/clm"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
	"atoll.dev/local"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

// customerKeys has one key pair.
type customerKeys struct{ key access.Key }

// theCustomer has the key pair of a privileged account, for whom no policies decide.
var theCustomer = access.Key{
	AccessKeyID: "AKIACUSTOMER22222222", Secret: "customer-secret", Privileged: true,
	Account: "210987654321", Principal: "arn:aws:iam::210987654321:user/customer",
}

func (k customerKeys) Lookup(id string) (access.Key, bool, error) {
	return k.key, id == k.key.AccessKeyID, nil
}

// frontRegion starts the customer's view of a region: the Platform API with the key pairs and the
// policies of a test, before a real CLM. The home gets its address and one key pair. The scripts
// act as the adapters, except the one that signs.
func frontRegion(t testing.TB, home string, key access.Key, keys access.Keys,
	directory *access.Directory) *clmclient.Client {
	t.Helper()
	site := testsite.NewIn(t, filepath.Join(home, "pki"))
	manager := testworld.StartCLM(site, testworld.CLMOptions{Tenancy: clm.Tenancy{Enabled: true,
		Dimensions: []clm.Dimension{{Header: clmclient.TenantHeader, Key: "account", Required: true}}},
		Change: func(o *clm.Options) { o.Quotas = clm.DefaultQuotas() }})
	lifecycle := manager.Dial() // as the region's adapters
	platform := manager.DialAs("platform")
	// no test here calls it
	maestro, err := maestroclient.New(maestroclient.Options{HTTP: "http://127.0.0.1:1", GRPC: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = maestro.Close() })

	quiet := slog.New(slog.DiscardHandler)
	front := httptest.NewTLSServer(rosa.New(rosa.Options{
		Maestro: maestro, CLM: platform, Ops: rest.NewOps(), Log: quiet,
		Identifier: &access.Verifier{Region: "test-1", Keys: keys}, Directory: directory, Region: "test-1",
	}))
	t.Cleanup(front.Close)
	for name, content := range map[string]any{
		"region.json": local.State{Format: 1, Region: "test-1", Ports: map[string]int{
			"platform": front.Listener.Addr().(*net.TCPAddr).Port}},
		"credentials.json": local.Credentials{AccessKeyID: key.AccessKeyID, SecretAccessKey: key.Secret},
	} {
		data, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(home, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: front.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	channel, err := lifecycle.Create(t.Context(), "channels", api.ResourceCreate{Kind: "Channel", Name: "stable",
		Spec: json.RawMessage(`{}`)}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"1.36.2", "1.36.3"} {
		_, err := lifecycle.Create(t.Context(), clmclient.Collection("channels").Below(channel.ID, "versions"),
			api.ResourceCreate{
				Kind: "Version", Name: strings.ReplaceAll(v, ".", "-"), Spec: fmt.Appendf(
					nil, `{"version":%q,"image":"atoll.dev/release:%s"}`, v, v),
			}, "")
		if err != nil {
			t.Fatal(err)
		}
	}
	testsite.Run(t, "the signing adapter", func(ctx context.Context) error { return signCredentials(ctx, lifecycle) })
	return lifecycle
}

// signCredentials is the adapter `credential` with hosting behind it: it signs certificate
// requests.
func signCredentials(ctx context.Context, lifecycle *clmclient.Client) error {
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	root, err := x509.CreateCertificate(rand.Reader, template, template, ca.Public(), ca)
	if err != nil {
		return err
	}
	return lifecycle.Follow(ctx, "credentials", remote.WatchOptions{}, func(e remote.Event) error {
		if len(e.Object) == 0 || e.Type == rest.Deleted {
			return nil
		}
		r, err := clmclient.ResourceOf(e.Object)
		if err != nil {
			return err
		}
		var spec struct {
			Request  string
			Username string
			Expires  time.Time `json:"expires_at"`
		}
		if err := json.Unmarshal(r.Spec, &spec); err != nil {
			return err
		}
		if r.DeletedTime != nil {
			return reportOn(ctx, lifecycle, "credentials", r.ID, "credential", r.Generation, map[string]string{},
				"Applied=False", "Available=False", "Health=True", "Finalized=True")
		}
		block, _ := pem.Decode([]byte(spec.Request))
		if block == nil {
			return fmt.Errorf("credential %s has no request", r.ID)
		}
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return err
		}
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: spec.Username},
			NotAfter: spec.Expires}
		der, err := x509.CreateCertificate(rand.Reader, leaf, template, csr.PublicKey, ca)
		if err != nil {
			return err
		}
		text := func(der []byte) string {
			return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		}
		return reportOn(ctx, lifecycle, "credentials", r.ID, "credential", r.Generation, map[string]string{
			"certificate": text(der), "ca_bundle": text(root), "server": "https://127.0.0.1:6443",
			"tls_server_name": "hc-1.hosted.test-1.atoll.internal",
			"expires_at":      spec.Expires.Format(time.RFC3339),
		}, "Applied=True", "Available=True", "Health=True")
	})
}

// reportOn reports conditions, TYPE=STATUS[:REASON[:MESSAGE]], and data of an adapter. CLM drops a
// repeated report, which is right.
func reportOn(ctx context.Context, lifecycle *clmclient.Client, in clmclient.Collection, id, adapter string,
	generation int32,
	data any, conditions ...string) error {
	report := api.AdapterStatusCreate{Adapter: adapter, ObservedGeneration: generation, ObservedTime: time.Now()}
	for _, text := range conditions {
		kind, rest, _ := strings.Cut(text, "=")
		part := append(strings.SplitN(rest, ":", 3), "", "")
		report.Conditions = append(report.Conditions, api.ReportedCondition{Type: kind, Status: part[0],
			Reason: optional(part[1]), Message: optional(part[2])})
	}
	var err error
	if report.Data, err = json.Marshal(data); err != nil {
		return err
	}
	if _, err = lifecycle.Report(ctx, in, id, report); remote.StatusOf(err) == 404 {
		return nil // it is gone meanwhile
	}
	return err
}

// The scripts of testdata/cluster run as a customer where a Platform API
// serves. Beside start and seen of the scripts of CLM there is
//
//	adapter ADAPTER KIND NAME GENERATION DATA TYPE=STATUS[:REASON[:MESSAGE]]...
//
// which reports as the region's adapters do. NAME of a node pool is
// CLUSTER/NAME; DATA is JSON.
func TestClusterScripts(t *testing.T) {
	regions := sync.Map{} // of *client.CLM, by script
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cluster", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			home := filepath.Join(e.WorkDir, "home")
			if err := os.Mkdir(home, 0o700); err != nil {
				return err
			}
			e.Setenv("ATOLL_HOME", home)
			e.Setenv("ATOLL_ENDPOINT", "")
			regions.Store(e.WorkDir, frontRegion(e.T().(testing.TB), home, theCustomer,
				customerKeys{theCustomer}, nil))
			return nil
		},
		Cmds: addLiveCommands(t, map[string]func(*testscript.TestScript, bool, []string){
			"adapter": func(ts *testscript.TestScript, _ bool, args []string) {
				found, _ := regions.Load(ts.Getenv("WORK"))
				lifecycle, in := found.(*clmclient.Client), clmclient.Collection(args[1])
				from, name := in, args[2]
				if cluster, pool, ok := strings.Cut(name, "/"); ok {
					k, err := lifecycle.Named(t.Context(), "clusters", cluster)
					ts.Check(err)
					from, name = clmclient.Collection("clusters").Below(k.ID, in), pool
				}
				r, err := lifecycle.Named(t.Context(), from, name)
				ts.Check(err)
				generation, err := strconv.Atoi(args[3])
				ts.Check(err)
				ts.Check(reportOn(t.Context(), lifecycle, in, r.ID, args[0], int32(generation),
					json.RawMessage(args[4]), args[5:]...))
			},
		}),
	})
}
