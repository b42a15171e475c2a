package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/access"
	"atoll.dev/adapter"
	"atoll.dev/bench/bed"
	"atoll.dev/bus"
	"atoll.dev/clm"
	"atoll.dev/fleet"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/sentinel"
	"atoll.dev/store"
)

// regionOptions are the options of startRegion.
type regionOptions struct {
	DSN      string // an empty database for CLM
	Entities string // YAML, as CLM's configuration has it
	Fleet    bool   // places clusters, as in a region's CLM
	Log      *slog.Logger

	// Dir keeps the CA, for a region that starts again; default: a temporary directory. HTTP and Broker are the
	// addresses of CLM and the broker; default: free ports.
	Dir, HTTP, Broker string
}

// region is CLM, its sentinel, a broker and adapters in this process. All parts are the real ones, and call each
// other as in a region, by HTTP and MQTT with certificates. Tests take the same parts from test/testworld; a
// measurement has no testing.TB that ends them.
type region struct {
	URL    string       // of CLM
	HTTP   *http.Client // to CLM, as the Platform API
	Broker string       // host:port
	Ops    *rest.Ops

	ca      *pki.CA
	log     *slog.Logger
	closers []func() error
}

// startRegion starts CLM, its sentinel and a broker, and waits until they are ready.
// Close ends them.
func startRegion(ctx context.Context, o regionOptions) (r *region, err error) {
	r = &region{Ops: rest.NewOps(), log: o.Log}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "atoll-lifecycle-"); err != nil {
			return r, err
		}
		r.OnClose(func() error { return os.RemoveAll(dir) })
	}
	if r.ca, err = pki.OpenCA(filepath.Join(dir, "ca")); err != nil {
		return r, err
	}
	if err := r.broker(ctx, o); err != nil {
		return r, err
	}
	registry, err := clm.ParseRegistry([]byte(o.Entities))
	if err != nil {
		return r, err
	}
	opening := clm.DatabaseOptions{DSN: o.DSN, Registry: registry, Logger: r.log, Ops: r.Ops}
	if o.Fleet {
		opening.Kinds = fleet.Kinds()
	}
	db, err := clm.Open(ctx, opening)
	if err != nil {
		return r, err
	}
	r.OnClose(func() error { db.Close(); return nil })
	if err := r.api(ctx, db, o); err != nil {
		return r, err
	}
	if err := r.sentinel(ctx, db); err != nil {
		return r, err
	}
	return r, await(ctx, func() error {
		if missing := r.Ops.Missing(ctx); len(missing) > 0 {
			return fmt.Errorf("missing: %v", missing)
		}
		return nil
	})
}

// connectRegion returns a region that another process has started with the same Dir, HTTP and Broker. Close ends what
// the caller has started in it.
func connectRegion(o regionOptions) (r *region, err error) {
	r = &region{URL: "https://" + o.HTTP, Broker: o.Broker, Ops: rest.NewOps(), log: slog.New(slog.DiscardHandler)}
	if r.ca, err = pki.OpenCA(filepath.Join(o.Dir, "ca")); err != nil {
		return r, err
	}
	r.HTTP, err = r.client("platform")
	return r, err
}

// OnClose has f called by Close, before what was there earlier ends.
func (r *region) OnClose(f func() error) { r.closers = append(r.closers, f) }

// Close ends everything, the latest first.
func (r *region) Close() error {
	var errs []error
	for i := len(r.closers) - 1; i >= 0; i-- {
		errs = append(errs, r.closers[i]())
	}
	r.closers = nil
	return errors.Join(errs...)
}

// Background runs f until Close.
func (r *region) Background(ctx context.Context, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	r.OnClose(func() error { cancel(); return <-done })
}

// await calls check until it returns nil, for five minutes at most: only a hang takes as long.
func await(ctx context.Context, check func() error) error {
	return bed.AwaitFor(ctx, 5*time.Minute, 10*time.Millisecond, check)
}

// Certificate makes a key, and has it signed for name.
func (r *region) Certificate(name pki.Name) (tls.Certificate, error) {
	cert, key, err := bed.Certificate(r.ca, name)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// ServerTLS returns the TLS configuration with which a service listens. It has a new certificate.
func (r *region) ServerTLS(service string) (*tls.Config, error) {
	cert, err := r.Certificate(pki.ServiceName(service))
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{
			cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: r.ca.Pool(),
	}, err
}

// ClientTLS returns the TLS configuration with which name connects to a service. It has a new certificate.
func (r *region) ClientTLS(name pki.Name, service string) (*tls.Config, error) {
	cert, err := r.Certificate(name)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: r.ca.Pool(),
		ServerName: service}, err
}

// client makes an HTTP client that calls CLM as one of the region's services.
func (r *region) client(service string) (*http.Client, error) {
	config, err := r.ClientTLS(pki.ServiceName(service), "clm")
	if err != nil {
		return nil, err
	}
	t := &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 64}
	r.OnClose(func() error { t.CloseIdleConnections(); return nil })
	return &http.Client{Transport: t, Timeout: time.Minute}, nil
}

func (r *region) broker(ctx context.Context, o regionOptions) error {
	config, err := r.ServerTLS("broker")
	if err != nil {
		return err
	}
	b, err := bus.NewBroker(bus.BrokerOptions{TLS: config, Logger: r.log})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", cmp.Or(o.Broker, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	r.Broker = l.Addr().String()
	r.Background(ctx, func(ctx context.Context) error { return b.Serve(ctx, l) })
	return nil
}

func (r *region) api(ctx context.Context, db *clm.Database, options regionOptions) error {
	config, err := r.ServerTLS("clm")
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", cmp.Or(options.HTTP, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	r.URL = "https://" + l.Addr().String()
	identity := &clm.Identity{MayCall: func(peer string) bool { return access.MayCall(access.CLM, pki.Name(peer)) }}
	o := clm.Options{
		Database: db, HTTP: l, HTTPTLS: config, Identify: identity.Identify, Logger: r.log, Metrics: r.Ops.Registry,
		ShutdownGrace: time.Second,
	}
	if options.Fleet {
		f, err := fleet.New(ctx, fleet.Options{Store: db.Store, Feed: db.Feed, Logger: r.log, Metrics: r.Ops.Registry})
		if err != nil {
			return err
		}
		o.Extension = f
		r.Background(ctx, f.Run)
	}
	server, err := clm.New(o)
	if err != nil {
		return err
	}
	r.Background(ctx, server.Run)
	r.HTTP, err = r.client("platform")
	return err
}

func (r *region) sentinel(ctx context.Context, db *clm.Database) error {
	config, err := r.ClientTLS(pki.ServiceName("clm"), "broker")
	if err != nil {
		return err
	}
	var kinds []sentinel.Kind
	for _, e := range db.Registry.Entities() {
		if len(e.RequiredAdapters) > 0 {
			kinds = append(kinds, sentinel.Kind{Kind: store.Kind(e.Kind), Plural: e.Plural, Parent: store.Kind(
				e.ParentKind)})
		}
	}
	s, err := sentinel.New(ctx, sentinel.Options{
		Store: db.Store, Feed: db.Feed, Kinds: kinds, Requests: clm.RequestKind, Bus: bus.ClientOptions{Addr: r.Broker,
			TLS: config},
		Logger: r.log, Metrics: r.Ops.Registry, Ops: r.Ops,
	})
	if err != nil {
		return err
	}
	r.Background(ctx, s.Run)
	return nil
}

// adapterFiles is one that is to run: the content of its two files, and where it
// applies.
type adapterFiles struct {
	Config, Task []byte
	Transport    adapter.Transport
}

// Run runs an adapter until Close, and waits until events come to it.
func (r *region) Run(ctx context.Context, a adapterFiles) error {
	config, err := adapter.ParseConfig("config.yaml", a.Config, nil)
	if err != nil {
		return err
	}
	config.Clients.API.BaseURL = cmp.Or(config.Clients.API.BaseURL, r.URL)
	task, err := adapter.ParseTask("task.yaml", a.Task, os.ReadFile)
	if err != nil {
		return err
	}
	api, err := r.client("adapter")
	if err != nil {
		return err
	}
	name := string(config.Adapter.Name)
	log := r.log.With("adapter", name)
	engine, err := adapter.New(adapter.Options{
		Config: config, Task: task, Transport: a.Transport, API: api, Log: log,
	})
	if err != nil {
		return err
	}
	broker, err := r.ClientTLS(pki.ServiceName("adapter"), "broker")
	if err != nil {
		return err
	}
	o := adapter.WorkerOptions{
		Name: name, Subscription: config.Clients.Broker.SubscriptionID, Topic: config.Clients.Broker.Topic,
		Engine: engine, Bus: bus.ClientOptions{Addr: r.Broker, TLS: broker}, Log: log, Grace: 2 * time.Second,
		Metrics: adapter.NewMetrics(r.Ops.Registry, name, "test"),
	}
	o.Watcher, _ = a.Transport.(adapter.Watcher)
	w := adapter.NewWorker(o)
	r.Background(ctx, w.Run)
	return await(ctx, func() error { return w.Ready(ctx) })
}

// resource has the members of a resource that this program reads.
type resource struct {
	ID         string `json:"id"`
	Generation int64  `json:"generation"`
	Status     struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

// condition is one of a resource.
type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	ObservedGeneration int64  `json:"observed_generation"`
}

// Reconciled reports whether the resource is as its present generation wants it.
func (r resource) Reconciled() bool {
	for _, c := range r.Status.Conditions {
		if c.Type == "Reconciled" {
			return c.Status == "True" && c.ObservedGeneration == r.Generation
		}
	}
	return false
}

// Call calls CLM; path is below /api/hyperfleet/v1.
func (r *region) Call(ctx context.Context, method, path string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL+"/api/hyperfleet/v1"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := r.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, answer)
	case into != nil:
		return json.Unmarshal(answer, into)
	}
	return nil
}
