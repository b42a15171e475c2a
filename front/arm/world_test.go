package arm_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/access"
	apiclm "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/clm"
	"atoll.dev/front/arm"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/ops"
	"atoll.dev/store"
	"atoll.dev/test/testissuer"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

const (
	sub     = "0a1b2c3d-0000-4000-8000-000000000001"
	tenant  = "0a1b2c3d-0000-4000-8000-0000000000aa"
	client  = "0a1b2c3d-0000-4000-8000-0000000000bb"
	latest  = "2026-09-01-preview"
	oldest  = "2024-06-10-preview"
	public  = "arm.example.com"
	groupIn = "/subscriptions/" + sub + "/resourceGroups/Shop/providers/Microsoft.RedHatOpenShift"
	demo    = groupIn + "/hcpOpenShiftClusters/demo"
)

// world is the front with a real lifecycle manager, whose adapters the test plays.
type world struct {
	t            *testing.T
	dsn          string
	system       *clmclient.Client
	front        *clmclient.Client
	store        *store.Store
	servers      map[arm.Mode]*httptest.Server
	fronts       []*arm.Front
	stops        []func() // of the work of the fronts
	gateway      tls.Certificate
	keys         *access.KeyStore
	certificates *arm.Certificates
	entra        *testissuer.Issuer // of ARM's tokens
	used         *failingSignatures // of requests with ARM's tokens
	pilot        sync.Mutex         // held by a test while the adapters report nothing
	// refusals are how many requests of the front to delete a Cluster the lifecycle manager refuses from now on.
	refusals atomic.Int64
}

func startWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dsn: pgtest.DSN(t), servers: map[arm.Mode]*httptest.Server{}}
	manager := testworld.StartCLM(testsite.New(t), testworld.CLMOptions{Tenancy: clm.Tenancy{Enabled: true,
		Dimensions: []clm.Dimension{{Header: clmclient.TenantHeader, Key: "account", Required: true}}},
		Change: w.refuseDeletions})
	w.system, w.front = manager.DialAs("adapter"), manager.DialAs("platform")
	w.createReleases("1.35.9", "1.36.2", "1.36.3")
	var err error
	w.store, err = store.Open(t.Context(), store.Options{DSN: w.dsn, Migrations: access.Migrations(),
		Kinds: append(access.StoreKinds(), arm.StoreKinds()...)}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	w.keys = access.NewKeyStore(w.store, nil, access.CacheObserver{})
	testsite.Run(t, "the keys", w.keys.Run)
	testsite.Eventually(t, "the directory is read", func() error { return w.keys.Ready(t.Context()) })
	metadata := filepath.Join(t.TempDir(), "metadata.json")
	w.gateway = newCertificate(t, time.Now().Add(time.Hour))
	publish(t, metadata, w.gateway)
	certificates, err := arm.NewCertificates(t.Context(), metadata, testsite.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	w.certificates = certificates
	tokens := w.newTokens(t)
	// Two processes on one database, of which one answers strictly and takes tokens.
	for _, mode := range []arm.Mode{arm.Compatible, arm.Strict} {
		options := arm.Options{Store: w.store, Keys: w.keys, CLM: w.front, Certificates: certificates,
			Location: "atolltest", Holder: string(mode), Mode: mode, RetryAfter: time.Second,
			Referers: []string{public}, Notifier: &ops.Notifier{Hosts: []string{"127.0.0.1"}, Loopback: true},
			Log: testsite.Log(t)}
		if mode == arm.Strict {
			options.Tokens = tokens
		}
		front := arm.New(options)
		w.fronts = append(w.fronts, front)
		server := httptest.NewUnstartedServer(front)
		server.TLS = front.ServerTLS(&tls.Config{MinVersion: tls.VersionTLS12})
		server.StartTLS()
		t.Cleanup(server.Close)
		w.servers[mode] = server
	}
	w.startWork()
	w.play()
	return w
}

// startWork starts the work of both processes on operations. They answer requests without it, too.
func (w *world) startWork() {
	for _, front := range w.fronts {
		w.stops = append(w.stops, testsite.Run(w.t, "the work of the front", front.Run))
	}
}

// stopWork stops the work of both processes.
func (w *world) stopWork() {
	for _, stop := range w.stops {
		stop()
	}
	w.stops = nil
}

func newCertificate(t *testing.T, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: until, Subject: pkix.Name{CommonName: "arm"}, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func publish(t *testing.T, file string, certificates ...tls.Certificate) {
	t.Helper()
	var list []map[string]string
	for _, c := range certificates {
		list = append(list, map[string]string{"certificate": base64.StdEncoding.EncodeToString(c.Certificate[0])})
	}
	data, err := json.Marshal(map[string]any{"clientCertificates": list})
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) createReleases(versions ...string) {
	w.t.Helper()
	channel, err := w.system.Create(w.t.Context(), "channels", apiclm.ResourceCreate{Kind: "Channel", Name: "stable",
		Spec: json.RawMessage(`{}`)}, "")
	for _, v := range versions {
		if err == nil {
			_, err = w.system.Create(w.t.Context(), clmclient.Collection("channels").Below(channel.ID, "versions"),
				apiclm.ResourceCreate{Kind: "Version", Name: strings.ReplaceAll(v, ".", "-"), Spec: fmt.Appendf(nil,
					`{"version":%q,"image":"atoll.dev/release:%s"}`, v, v)}, "")
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// play plays the adapters: it reports every Cluster, NodePool and Credential as carried out.
func (w *world) play() {
	reports := map[clmclient.Collection]map[string]string{
		"clusters": {"placement": `{"management_cluster":"management-01"}`, "pull-secret": `{}`,
			"hosted-cluster": `{"target_cluster":"management-01","endpoint":{"host":"127.0.0.1","port":30001},` +
				`"server_name":"hc-1.hosted.test-1.atoll.internal","version":"1.36.3"}`},
		"nodepools":   {"node-pool": `{"replicas":2,"version":"1.36.3"}`},
		"credentials": {"credential": ""},
	}
	for from, adapters := range reports {
		done := map[string]bool{}
		testsite.Run(w.t, "the adapters of "+string(from), func(ctx context.Context) error {
			return w.system.Follow(ctx, from, remote.WatchOptions{}, func(e remote.Event) error {
				if e.Type != rest.Added && e.Type != rest.Modified {
					return nil
				}
				r, err := clmclient.ResourceOf(e.Object)
				if err != nil {
					return err
				}
				w.pilot.Lock()
				defer w.pilot.Unlock()
				state := fmt.Sprint(r.ID, r.Generation, r.DeletedTime != nil)
				if done[state] {
					return nil
				}
				done[state] = true
				for _, adapter := range []string{"hosted-cluster", "node-pool", "credential", "pull-secret", "placement"} {
					data, reportsIt := adapters[adapter]
					if !reportsIt {
						continue
					}
					if from == "credentials" {
						data = signed(r)
					}
					w.report(ctx, from, r, adapter, data)
				}
				return nil
			})
		})
	}
}

func (w *world) report(ctx context.Context, in clmclient.Collection, r clmclient.Resource, adapter, data string) {
	status := "True"
	conditions := []apiclm.ReportedCondition{{Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"}}
	if r.DeletedTime != nil {
		status = "False"
		conditions = append(conditions, apiclm.ReportedCondition{Type: "Finalized", Status: "True"})
	}
	conditions = append(conditions, apiclm.ReportedCondition{Type: "Available", Status: status})
	_, err := w.system.Report(ctx, in, r.ID, apiclm.AdapterStatusCreate{Adapter: adapter, Conditions: conditions,
		ObservedGeneration: r.Generation, ObservedTime: time.Now(), Data: json.RawMessage(data)})
	if err != nil && remote.StatusOf(err) != http.StatusNotFound && ctx.Err() == nil {
		w.t.Errorf("the report of %s on %s: %v", adapter, r.Name, err)
	}
}

// signed returns the report on a credential, with a certificate in it.
func signed(r clmclient.Resource) string {
	der := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("signed")})
	data, _ := json.Marshal(map[string]string{"certificate": string(der), "ca_bundle": "CA",
		"server": "https://127.0.0.1:30001", "tls_server_name": "hc-1.test",
		"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	return string(data)
}

// call is a request and its answer.
type call struct {
	mode    arm.Mode // default Compatible
	method  string
	path    string
	version string // default latest; "-" for none
	body    string
	header  map[string]string
	host    string           // the header Host; default that of the server
	cert    *tls.Certificate // default that of the gateway
}

type answer struct {
	t      *testing.T
	call   call
	status int
	header http.Header
	raw    string
	body   map[string]any
}

func (w *world) do(c call) answer {
	w.t.Helper()
	if c.mode == "" {
		c.mode = arm.Compatible
	}
	server := w.servers[c.mode]
	url := server.URL + c.path
	if strings.HasPrefix(c.path, "https://") {
		url = c.path
		for _, host := range []string{public} {
			url = strings.Replace(url, "https://"+host, server.URL, 1)
		}
	} else if c.version != "-" {
		v := c.version
		if v == "" {
			v = latest
		}
		url += map[bool]string{true: "&", false: "?"}[strings.Contains(url, "?")] + "api-version=" + v
	}
	r, err := http.NewRequestWithContext(w.t.Context(), c.method, url, bytes.NewReader([]byte(c.body)))
	if err != nil {
		w.t.Fatal(err)
	}
	if c.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("X-Ms-Home-Tenant-Id", tenant)
	r.Header.Set("X-Ms-Client-Object-Id", client)
	r.Header.Set("X-Ms-Arm-Resource-System-Data", `{"createdBy":"ann","lastModifiedBy":"ann"}`)
	r.Header.Set("Referer", "https://"+public+c.path)
	for name, value := range c.header {
		r.Header.Set(name, value)
	}
	r.Host = cmp.Or(c.host, r.Host)
	transport := server.Client().Transport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	if c.cert == nil {
		c.cert = &w.gateway
	}
	if c.cert.Certificate != nil {
		transport.TLSClientConfig.Certificates = []tls.Certificate{*c.cert}
	}
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		w.t.Fatalf("%s %s: %v", c.method, c.path, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	a := answer{t: w.t, call: c, status: res.StatusCode, header: res.Header, raw: string(data)}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &a.body); err != nil {
			w.t.Fatalf("%s %s: %d %s", c.method, c.path, res.StatusCode, data)
		}
	}
	return a
}

// want checks the status and that the answer contains texts.
func (a answer) want(t *testing.T, status int, contains ...string) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("%s %s: %d, not %d: %s", a.call.method, a.call.path, a.status, status, a.raw)
	}
	for _, text := range contains {
		if !strings.Contains(a.raw, text) {
			t.Errorf("%s %s: the answer lacks %s: %s", a.call.method, a.call.path, text, a.raw)
		}
	}
	if id := a.header.Get("X-Ms-Request-Id"); len(id) != 36 || a.header.Get("Date") == "" {
		t.Errorf("%s %s: request id %q, date %q", a.call.method, a.call.path, id, a.header.Get("Date"))
	}
	if status >= 400 {
		e, _ := a.body["error"].(map[string]any)
		if e == nil || e["code"] == "" || e["message"] == "" || a.header.Get("X-Ms-Error-Code") != e["code"] {
			t.Errorf("%s %s: the error is %s, its header %q", a.call.method, a.call.path, a.raw,
				a.header.Get("X-Ms-Error-Code"))
		}
	}
	return a
}

// at returns a value of the body.
func (a answer) at(path ...string) any {
	var v any = a.body
	for _, name := range path {
		o, _ := v.(map[string]any)
		v = o[name]
	}
	return v
}

// await polls the operation of an answer to its end, and returns its last view.
func (w *world) await(t *testing.T, a answer) (last answer) {
	t.Helper()
	link := a.header.Get("Azure-AsyncOperation")
	if link == "" {
		t.Fatalf("%s %s: no operation: %d %s", a.call.method, a.call.path, a.status, a.raw)
	}
	testsite.Eventually(t, "the operation ends", func() error {
		last = w.do(call{mode: a.call.mode, method: "GET", path: link, version: "-"}).want(t, 200)
		switch last.body["status"] {
		case "Succeeded", "Failed", "Canceled":
			return nil
		}
		return errors.New(last.raw)
	})
	return last
}

func (w *world) succeed(t *testing.T, a answer) {
	t.Helper()
	if last := w.await(t, a); last.body["status"] != "Succeeded" {
		t.Fatalf("%s %s: %s", a.call.method, a.call.path, last.raw)
	}
}

// register puts a subscription in a state.
func (w *world) register(t *testing.T, id, state string) answer {
	t.Helper()
	return w.do(call{method: "PUT", path: "/subscriptions/" + id, version: "2.0", body: fmt.Sprintf(
		`{"state":%q,"registrationDate":"2026-01-01T00:00:00Z","properties":{"tenantId":%q}}`, state, tenant)}).want(t, 200)
}
