package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"atoll.dev/access"
	apiclm "atoll.dev/api/clm"
	"atoll.dev/bench/bed"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/clm"
	"atoll.dev/front/arm"
	"atoll.dev/internal/postgres"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// region is the API for ARM with a lifecycle manager whose adapters are played.
type region struct {
	url    string
	http   *http.Client
	system *clmclient.Client // of the lifecycle manager
	store  *store.Store      // of the API

	cancel context.CancelFunc
	group  sync.WaitGroup

	mu        sync.Mutex
	available map[string]time.Time // when the last report on a cluster was sent, by its document
	succeeded map[string]time.Time // when a document was first seen as Succeeded
}

// startRegion starts the parts. close ends them.
func startRegion(ctx context.Context, cluster *postgres.Cluster, dir string) (r *region, err error) {
	ctx, cancel := context.WithCancel(ctx)
	r = &region{cancel: cancel, available: map[string]time.Time{}, succeeded: map[string]time.Time{}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for _, name := range []string{"clm", "platform"} {
		if err := cluster.EnsureDatabase(ctx, name, name); err != nil {
			return r, err
		}
	}
	if err := r.startCLM(ctx, cluster.DSN("clm", "clm")); err != nil {
		return r, err
	}
	if r.store, err = store.Open(ctx, store.Options{DSN: cluster.DSN("platform", "platform"),
		Migrations: access.Migrations(), Kinds: append(access.StoreKinds(), arm.StoreKinds()...)}); err != nil {
		return r, err
	}
	keys := access.NewKeyStore(r.store, nil, access.CacheObserver{})
	r.run(func() error { return keys.Run(ctx) })
	if err := bed.Await(ctx, 10*time.Millisecond, func() error { return keys.Ready(ctx) }); err != nil {
		return r, err
	}
	return r, r.startFront(ctx, keys, dir)
}

// run runs a part until the region is closed.
func (r *region) run(part func() error) {
	r.group.Go(func() { _ = part() }) // it ends with the region only
}

func (r *region) close() {
	r.cancel()
	r.group.Wait()
	if r.system != nil {
		r.system.Close()
	}
	if r.store != nil {
		r.store.Close()
	}
}

// startCLM starts the lifecycle manager with a catalogue of one release, and plays its adapters.
func (r *region) startCLM(ctx context.Context, dsn string) error {
	registry, err := clm.ParseRegistry(clm.DefaultEntities)
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	db, err := clm.Open(ctx, clm.DatabaseOptions{DSN: dsn, Registry: registry, Logger: quiet})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	tenancy := clm.Tenancy{Enabled: true, Dimensions: []clm.Dimension{{Header: clmclient.TenantHeader, Key: "account",
		Required: true}}}
	identity := &clm.Identity{Open: true, Trusting: true, Tenancy: tenancy}
	server, err := clm.New(clm.Options{Database: db, Identify: identity.Identify, Plain: listener, Logger: quiet,
		ShutdownGrace: time.Second})
	if err != nil {
		return err
	}
	r.group.Go(func() {
		_ = server.Run(ctx) // it ends with the region only
		db.Close()
	})
	if r.system, err = clmclient.New(clmclient.Options{Endpoint: "http://" + listener.Addr().String()}); err != nil {
		return err
	}
	channel, err := r.system.Create(ctx, "channels", apiclm.ResourceCreate{Kind: "Channel", Name: "stable",
		Spec: json.RawMessage(`{}`)}, "")
	if err == nil {
		_, err = r.system.Create(ctx, clmclient.Collection("channels").Below(channel.ID, "versions"),
			apiclm.ResourceCreate{Kind: "Version", Name: "1-36-3",
				Spec: json.RawMessage(`{"version":"1.36.3","image":"atoll.dev/release:1.36.3"}`)}, "")
	}
	r.run(func() error { return r.system.Follow(ctx, "clusters", remote.WatchOptions{}, r.playAdapters(ctx)) })
	return err
}

// reports are those of the adapters about a cluster that gets ready; the cluster is available with the last one.
var reports = [][2]string{{"pull-secret", `{}`}, {"placement", `{"management_cluster":"management-01"}`},
	{"hosted-cluster", `{"target_cluster":"management-01","endpoint":{"host":"127.0.0.1","port":30001},` +
		`"version":"1.36.3"}`}}

// playAdapters returns a handler of events that reports each new cluster as carried out.
func (r *region) playAdapters(ctx context.Context) func(remote.Event) error {
	places := make(chan struct{}, 8)
	done := map[string]bool{}
	return func(e remote.Event) error {
		if e.Type != rest.Added && e.Type != rest.Modified {
			return nil
		}
		c, err := clmclient.ResourceOf(e.Object)
		if err != nil || done[c.ID] {
			return err
		}
		done[c.ID] = true
		places <- struct{}{}
		r.group.Go(func() {
			defer func() { <-places }()
			for _, of := range reports {
				_, err := r.system.Report(ctx, "clusters", c.ID, apiclm.AdapterStatusCreate{Adapter: of[0],
					Conditions: []apiclm.ReportedCondition{{Type: "Applied", Status: "True"}, {Type: "Available", Status: "True"},
						{Type: "Health", Status: "True"}}, ObservedGeneration: c.Generation, ObservedTime: time.Now(),
					Data: json.RawMessage(of[1])})
				if err != nil {
					return // the wait for the operations shows it
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.available[c.Labels["azure-document"]] = time.Now()
		})
		return nil
	}
}

// startFront starts the API for ARM with a client certificate that it believes.
func (r *region) startFront(ctx context.Context, keys *access.KeyStore, dir string) error {
	certificate, err := newCertificate()
	if err != nil {
		return err
	}
	metadata := filepath.Join(dir, "metadata.json")
	data, err := json.Marshal(map[string]any{"clientCertificates": []any{map[string]string{
		"certificate": base64.StdEncoding.EncodeToString(certificate.Certificate[0])}}})
	if err == nil {
		err = os.WriteFile(metadata, data, 0o600)
	}
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	certificates, err := arm.NewCertificates(ctx, metadata, quiet)
	if err != nil {
		return err
	}
	front := arm.New(arm.Options{Store: r.store, Keys: keys, CLM: r.system, Certificates: certificates, Location: "bench",
		Holder: "bench", Log: quiet})
	r.run(func() error { return front.Run(ctx) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: front, TLSConfig: front.ServerTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}}), ErrorLog: slog.NewLogLogger(quiet.Handler(), slog.LevelError)}
	r.run(func() error { return server.ServeTLS(listener, "", "") })
	r.run(func() error { <-ctx.Done(); return server.Close() })
	r.url = "https://" + listener.Addr().String()
	roots := x509.NewCertPool()
	roots.AddCert(certificate.Leaf)
	r.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "bench", Certificates: []tls.Certificate{certificate}}}}
	r.run(func() error { return r.recordSuccesses(ctx) })
	return nil
}

// newCertificate returns a certificate that the server shows and that ARM proves itself with.
func newCertificate() (c tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), Subject: pkix.Name{CommonName: "bench"}, DNSNames: []string{"bench"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return c, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// send sends a request of ARM and checks the status of the answer.
func (r *region) send(ctx context.Context, method, path, body string, status int) error {
	request, err := http.NewRequestWithContext(ctx, method, r.url+path+"?api-version="+apiVersion, strings.NewReader(body))
	if err != nil {
		return err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	request.Header.Set("X-Ms-Client-Object-Id", "0a1b2c3d-0000-4000-8000-0000000000bb")
	answer, err := r.http.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != status {
		err = fmt.Errorf("%s %s: %d %s", method, path, answer.StatusCode, text)
	}
	return err
}

// register registers a subscription, which gives it an account.
func (r *region) register(ctx context.Context, i int) error {
	return r.send(ctx, http.MethodPut, "/subscriptions/"+subscriptionID(i),
		`{"state":"Registered","registrationDate":"2026-01-01T00:00:00Z","properties":{}}`, http.StatusOK)
}

// storeClusters creates the clusters old-0, old-1, ... and waits until their operations have succeeded.
func (r *region) storeClusters(ctx context.Context, n int) error {
	if err := bed.Many(n, 16, func(i int) error {
		return r.send(ctx, http.MethodPut, clusterPath(i, "old"), clusterBody(i), http.StatusCreated)
	}); err != nil {
		return err
	}
	return r.awaitSucceeded(ctx, n)
}

// recordSuccesses records when the operation of each cluster has succeeded.
func (r *region) recordSuccesses(ctx context.Context) error {
	const kind store.Kind = "ArmCluster"
	page, err := r.store.List(ctx, store.Query{Kind: kind, Limit: 1})
	if err != nil {
		return err
	}
	return r.store.Follow(ctx, store.FollowOptions{Kinds: []store.Kind{kind}, From: page.Cursor}, func(_ context.Context,
		b store.Batch) error {
		now := time.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, d := range b.Documents {
			if r.succeeded[d.ID].IsZero() && strings.Contains(string(d.Status), `"Succeeded"`) {
				r.succeeded[d.ID] = now
			}
		}
		return nil
	})
}

// awaitSucceeded waits until so many clusters have succeeded.
func (r *region) awaitSucceeded(ctx context.Context, n int) error {
	return bed.AwaitFor(ctx, 10*time.Minute, 50*time.Millisecond, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.succeeded) < n {
			return fmt.Errorf("%d of %d have succeeded", len(r.succeeded), n)
		}
		return nil
	})
}

// lags returns the times from the last report on a cluster to the success of its operation, of clusters that succeeded
// after begun. Earlier clusters were not created at the pace of the measurement.
func (r *region) lags(begun time.Time) (all []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for document, at := range r.succeeded {
		if at.After(begun) {
			all = append(all, max(0, at.Sub(r.available[document])))
		}
	}
	return all
}
