package services

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"atoll.dev/adapter"
	"atoll.dev/adapter/objects"
	"atoll.dev/adapter/works"
	apiclm "atoll.dev/api/clm"
	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/pki"
)

// run starts a worker for each adapter.
func (f *adapterFlags) run(s *System, p *parts, pairs []adapterPair) error {
	klog.SetSlogLogger(s.Log) // client-go logs as this service does
	var identity *pki.Identity
	if f.identity.isComplete() {
		var err error
		if identity, err = s.openIdentity(p, pki.ServiceName("adapter")); err != nil {
			return err
		}
	}
	broker, err := brokerOptions(f.broker, f.brokerConfig, identity)
	if err != nil {
		return err
	}
	parallel := f.parallel
	if text := os.Getenv("SUBSCRIBER_PARALLELISM"); parallel == 0 && text != "" {
		if parallel, err = strconv.Atoi(text); err != nil || parallel < 1 {
			return fmt.Errorf("SUBSCRIBER_PARALLELISM=%q is not a number of at least 1", text)
		}
	}
	if parallel < 0 {
		return fmt.Errorf("--parallel %d is less than 1", parallel)
	}
	for _, pair := range pairs {
		name := string(pair.config.Adapter.Name)
		log := adapterLog(pair.config.Log, s.logLevel).With("service", s.Name, "adapter", name)
		o := adapter.WorkerOptions{
			Name: name, Subscription: pair.config.Clients.Broker.SubscriptionID, Topic: pair.config.Clients.Broker.Topic,
			Bus: broker, Parallel: parallel, Log: log, Tracer: s.Tracer, Metrics: adapter.NewMetrics(s.Ops.Registry,
				name, terminal.Version),
		}
		if o.Topic == "" {
			return fmt.Errorf("%s: clients.broker.topic is missing; name the adapter's events, such as clusters",
				pair.config.File)
		}
		if pair.config.DebugConfig {
			log.Info("the adapter's config", "config", pair.config.Redacted())
		}
		if ineffective := pair.config.Ineffective(); len(ineffective) > 0 {
			log.Warn("settings without effect", "file", pair.config.File, "settings", ineffective)
		}
		transport, ready, err := f.newTransport(p, pair, identity, log)
		if err != nil {
			return fmt.Errorf("%s: %w", pair.config.File, err)
		}
		if transport != nil {
			o.Watcher = transport
			s.Ops.Check("transport of "+name, ready)
		}
		if o.Engine, err = f.newEngine(s, pair, identity, transport, o.Metrics.Observer(), log); err != nil {
			return err
		}
		if o.Sharer, err = f.newSharer(pair, identity); err != nil {
			return err
		}
		worker := adapter.NewWorker(o)
		s.Ops.Check("broker of "+name, worker.Ready)
		p.run(worker.Run)
	}
	return nil
}

// adapterLog returns the log that a config sets. A --log-level other than the default overrides
// the config's level.
func adapterLog(o adapter.Log, flag string) *slog.Logger {
	var level slog.Level
	text := o.Level
	if flag != "info" {
		text = flag
	}
	if text == "warning" {
		text = "warn"
	}
	if level.UnmarshalText([]byte(text)) != nil {
		level = slog.LevelInfo // both texts were validated before; this is only a default
	}
	out, options := os.Stderr, &slog.HandlerOptions{Level: level}
	if o.Output == "stdout" {
		out = os.Stdout
	}
	if o.Format == "text" {
		return slog.New(slog.NewTextHandler(out, options))
	}
	return slog.New(slog.NewJSONHandler(out, options))
}

// newEngine compiles the task. It calls CLM with the region's identity when the CLM is the
// region's.
func (f *adapterFlags) newEngine(s *System, pair adapterPair, identity *pki.Identity, t adapter.Transport,
	observer adapter.Observer, log *slog.Logger) (*adapter.Engine, error) {
	api := &pair.config.Clients.API
	if api.BaseURL == "" {
		if api.BaseURL = f.region.clm; api.BaseURL == "" {
			return nil, fmt.Errorf("%s: clients.hyperfleet_api.base_url is missing, and --clm is not given",
				pair.config.File)
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	if identity != nil && sameHost(api.BaseURL, f.region.clm) {
		transport.TLSClientConfig = identity.ClientTLS("clm")
	}
	return adapter.New(adapter.Options{
		Config: pair.config, Task: pair.task, Transport: t, API: &http.Client{Transport: s.Tracer.Transport(
			transport)}, Log: log, Observer: observer,
	})
}

// sameHost reports whether two URLs have the same host and port.
func sameHost(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	return errX == nil && errY == nil && x.Host != "" && x.Host == y.Host
}

// newTransport returns the transport of manifests: Maestro when the config has one, else a Kubernetes
// API; nil for a task that only calls CLM.
func (f *adapterFlags) newTransport(p *parts, pair adapterPair, identity *pki.Identity, log *slog.Logger) (transport,
	func(context.Context) error, error) {
	if pair.config.Clients.Maestro == nil && len(pair.task.Resources) == 0 {
		return nil, nil, nil
	}
	if pair.config.Clients.Maestro == nil {
		return f.newKubernetesTransport(pair, log)
	}
	o, err := f.maestroOptions(*pair.config.Clients.Maestro, identity)
	if err != nil {
		return nil, nil, fmt.Errorf("clients.maestro: %w", err)
	}
	c, err := maestroclient.New(o)
	if err != nil {
		return nil, nil, err
	}
	p.run(func(ctx context.Context) error {
		<-ctx.Done()
		return c.Close()
	})
	wo := works.Options{Client: c, Log: log}
	if f.region.clm != "" {
		clm, err := f.newCLMClient(identity)
		if err != nil {
			return nil, nil, err
		}
		wo.Clusters = func(ctx context.Context) ([]work.Consumer, error) { return listConsumers(ctx, clm) }
	}
	return works.New(wo), c.Ready, nil
}

// newCLMClient returns a client of the region's lifecycle manager.
func (f *adapterFlags) newCLMClient(identity *pki.Identity) (*clmclient.Client, error) {
	o := clmclient.Options{Endpoint: f.region.clm}
	if identity != nil {
		o.TLS = identity.ClientTLS("clm")
	}
	return clmclient.New(o)
}

// newSharer returns the sharer by which replicas divide resources among them. It is nil when the
// adapter's CLM is not the region's.
func (f *adapterFlags) newSharer(pair adapterPair, identity *pki.Identity) (adapter.Sharer, error) {
	if !sameHost(cmp.Or(pair.config.Clients.API.BaseURL, f.region.clm), f.region.clm) {
		return nil, nil
	}
	clm, err := f.newCLMClient(identity)
	if err != nil {
		return nil, err
	}
	return &clmSharer{clm, pair.config.Adapter.Name, uuid.NewString()}, nil
}

// clmSharer implements adapter.Sharer by calls to CLM.
type clmSharer struct {
	clm     *clmclient.Client
	adapter cluster.Adapter
	name    string
}

// Renew implements adapter.Sharer.
func (r *clmSharer) Renew(ctx context.Context, lease time.Duration, keep []int) (slots int, open []adapter.OpenSlot,
	err error) {
	answer, err := r.clm.RenewMember(ctx, r.adapter, r.name, apiclm.AdapterMemberRenewal{LeaseMs: lease.Milliseconds(),
		Keep: keep})
	switch remote.StatusOf(err) {
	// The CLM is not Atoll's, or this adapter has no identity of the region.
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnauthorized, http.StatusForbidden:
		err = fmt.Errorf("%w: %w", adapter.ErrNotShared, err)
	}
	for i, slot := range answer.Open {
		o := adapter.OpenSlot{Slot: slot}
		if i < len(answer.Since) { // an earlier version of the lifecycle manager does not send Since
			o.Since = answer.Since[i]
		}
		open = append(open, o)
	}
	return answer.Slots, open, err
}

// Leave implements adapter.Sharer.
func (r *clmSharer) Leave(ctx context.Context) error {
	return r.clm.RemoveMember(ctx, r.adapter, r.name)
}

// listConsumers returns the names of the management clusters in CLM; none when it has no
// such kind.
func listConsumers(ctx context.Context, clm *clmclient.Client) (names []work.Consumer, err error) {
	for r, err := range clm.All(ctx, clmclient.ManagementClusters, clmclient.ResourceQuery{Fields: "name"}) {
		if remote.StatusOf(err) == http.StatusNotFound {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		names = append(names, work.Consumer(r.Name))
	}
	return names, nil
}

// transport is the interface that works and objects have in common.
type transport interface {
	adapter.Transport
	adapter.Watcher
}

// maestroOptions returns the options of a Maestro client. Settings that the config omits are those of the
// region.
func (f *adapterFlags) maestroOptions(m adapter.MaestroConfig, identity *pki.Identity) (maestroclient.Options, error) {
	o := maestroclient.Options{HTTP: m.HTTPServerAddress, GRPC: m.GRPCServerAddress, Source: m.SourceID,
		Timeout: m.Timeout}
	if m.Keepalive != nil {
		o.KeepaliveTime, o.KeepaliveTimeout = m.Keepalive.Time, m.Keepalive.Timeout
	}
	if o.HTTP == "" {
		o.HTTP = f.region.maestro
	}
	if o.GRPC == "" {
		o.GRPC = f.region.maestroGRPC
	}
	switch {
	case o.HTTP == "" || o.GRPC == "":
		return o,
			errors.New(
				"http_server_address and grpc_server_address are missing, and --maestro and --maestro-grpc are not " +
					"given")
	case m.SourceID == "":
		return o, errors.New("source_id is missing; it names the owner of the works")
	case m.Auth.Type == "tls":
		var err error
		o.TLS, err = maestroTLS(*m.Auth.TLS)
		return o, err
	case m.Auth.Type == "" && !m.Insecure && identity != nil && sameHost(o.HTTP, f.region.maestro):
		o.TLS = identity.ClientTLS("maestro")
	}
	return o, nil
}

// maestroTLS returns a TLS configuration of a client with the keys of files. It reads the key for
// each connection, so the files may be replaced while the process runs.
func maestroTLS(f adapter.TLSConfig) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	for _, file := range []string{f.CAFile, f.HTTPCAFile} {
		if file == "" {
			continue
		}
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("auth.tls_config: %w", err)
		}
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("auth.tls_config: %s has no certificates", file)
		}
	}
	if f.CAFile == "" && f.HTTPCAFile == "" {
		config.RootCAs = nil // the system's
	}
	if f.CertFile != "" || f.KeyFile != "" {
		pair := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
			return &cert, err
		}
		if _, err := pair(nil); err != nil {
			return nil, fmt.Errorf("auth.tls_config: %w", err)
		}
		config.GetClientCertificate = pair
	}
	return config, nil
}

// newKubernetesTransport returns a transport that applies objects to a Kubernetes API directly.
func (f *adapterFlags) newKubernetesTransport(pair adapterPair, log *slog.Logger) (transport,
	func(context.Context) error, error) {
	k := pair.config.Clients.Kubernetes
	path := k.KubeConfigPath
	if path == "" {
		path = f.kubeconfig
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, nil, fmt.Errorf("clients.kubernetes: %w", err)
	}
	config.QPS, config.Burst = float32(k.QPS), k.Burst
	config.UserAgent = "atoll-adapter/" + terminal.Version
	config.Dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	o, err := objects.New(objects.Options{Config: config, Adapter: string(pair.config.Adapter.Name), Log: log,
		Kinds: taskKinds(pair.task)})
	if err != nil {
		return nil, nil, err
	}
	return o, o.Ready, nil
}

// taskKinds returns the kinds that a task's manifests name as constants.
func taskKinds(t *adapter.Task) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	for i := range t.Resources {
		version, kind, ok := t.Resources[i].Kind()
		if gv, err := schema.ParseGroupVersion(version); err == nil && ok {
			kinds = append(kinds, gv.WithKind(kind))
		}
	}
	return kinds
}
