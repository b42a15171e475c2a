package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/postgres"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro"
	"atoll.dev/pki"
)

const source = "bench"

// bed is a region's Maestro with all that it needs.
type bed struct {
	ca      *pki.CA
	dsn     string
	url     string
	http    *http.Client
	events  cloudevents.CloudEventServiceClient
	broker  string
	closers []func() error
	random  *mathrand.Rand
	mu      sync.Mutex
}

func newBed(ctx context.Context) (b *bed, err error) {
	b = &bed{random: mathrand.New(mathrand.NewPCG(*seed, 0))}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	dir, err := os.MkdirTemp("", "atoll-bench-")
	if err != nil {
		return b, err
	}
	b.onClose(func() error { return os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		return b, err
	}
	if b.ca, err = pki.OpenCA(filepath.Join(dir, "ca")); err != nil {
		return b, err
	}
	if b.dsn, err = b.postgres(ctx, dir); err != nil {
		return b, err
	}
	if err := b.startBroker(ctx); err != nil {
		return b, err
	}
	return b, b.startServer(ctx, b.dsn)
}

func (b *bed) onClose(f func() error) { b.closers = append(b.closers, f) }

func (b *bed) close() error {
	var errs []error
	for i := len(b.closers) - 1; i >= 0; i-- {
		errs = append(errs, b.closers[i]())
	}
	b.closers = nil
	return errors.Join(errs...)
}

func (b *bed) postgres(ctx context.Context, dir string) (string, error) {
	c := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s")}
	if err := c.Init(ctx); err != nil {
		return "", err
	}
	p, err := c.Start(ctx, io.Discard)
	if err != nil {
		return "", err
	}
	b.onClose(func() error { p.Stop(); return nil })
	if err := c.EnsureDatabase(ctx, "maestro", "maestro"); err != nil {
		return "", err
	}
	return c.DSN("maestro", "maestro"), nil
}

func (b *bed) startBroker(ctx context.Context) error {
	config, err := b.serverTLS("broker")
	if err != nil {
		return err
	}
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: config, Logger: logger()})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	b.broker = l.Addr().String()
	b.background(ctx, func(ctx context.Context) error { return broker.Serve(ctx, l) })
	return nil
}

func logger() *slog.Logger {
	if *verbose {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// background runs f until the bed is closed.
func (b *bed) background(ctx context.Context, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	b.onClose(func() error { cancel(); return <-done })
}

func (b *bed) startServer(ctx context.Context, dsn string) error {
	var configs [4]*tls.Config
	var errs [4]error
	configs[0], errs[0] = b.serverTLS("maestro")
	configs[1], errs[1] = b.serverTLS("maestro")
	configs[2], errs[2] = b.clientTLS(pki.ServiceName("maestro"), "broker")
	configs[3], errs[3] = b.clientTLS(pki.ServiceName("bench"), "maestro")
	web, err1 := net.Listen("tcp", "127.0.0.1:0")
	rpc, err2 := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(append(errs[:], err1, err2)...); err != nil {
		return err
	}
	ops := rest.NewOps()
	s, err := maestro.New(ctx, maestro.Options{
		DSN: dsn, Broker: b.broker, BrokerTLS: configs[2], HTTP: web, HTTPTLS: configs[0], GRPC: rpc, GRPCTLS: configs[1],
		MayCall: func(string) bool { return true }, Logger: logger(), Metrics: ops.Registry, Ops: ops,
	})
	if err != nil {
		return err
	}
	b.background(ctx, s.Run)
	b.url = "https://" + web.Addr().String()
	transport := &http.Transport{TLSClientConfig: configs[3], MaxIdleConnsPerHost: 256}
	b.http = &http.Client{Transport: transport}
	conn, err := grpc.NewClient(rpc.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(configs[3].Clone())))
	if err != nil {
		return err
	}
	b.onClose(func() error { transport.CloseIdleConnections(); return conn.Close() })
	b.events = cloudevents.NewCloudEventServiceClient(conn)
	return await(ctx, func() error {
		if missing := ops.Missing(ctx); len(missing) > 0 {
			return fmt.Errorf("the server is not ready: %v", missing)
		}
		return nil
	})
}

// await polls for what has no event to wait for.
func await(ctx context.Context, check func() error) error {
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (b *bed) certificate(name pki.Name) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	cert, err := b.ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), name)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func (b *bed) serverTLS(service string) (*tls.Config, error) {
	pair, err := b.certificate(pki.ServiceName(service))
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: b.ca.Pool()}, err
}

func (b *bed) clientTLS(name pki.Name, service string) (*tls.Config, error) {
	pair, err := b.certificate(name)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: b.ca.Pool(), ServerName: service}, err
}

// register makes the consumers mc0, mc1, ...
func (b *bed) register(n int) error {
	for i := range n {
		resp, err := b.http.Post(b.url+"/api/maestro/v1/consumers", "application/json", strings.NewReader(fmt.Sprintf(`{"name":"mc%d"}`, i)))
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("registering mc%d: %s", i, resp.Status)
		}
	}
	return nil
}

// subscriber is a scripted agent: handle gets each spec event.
func (b *bed) subscriber(ctx context.Context, consumer string, handle func(c *bus.Client, e bus.Event)) (*bus.Client, error) {
	config, err := b.clientTLS(pki.Name(consumer), "broker")
	if err != nil {
		return nil, err
	}
	var client *bus.Client
	client = bus.NewClient(bus.ClientOptions{
		Addr: b.broker, TLS: config, ClientID: consumer + "-agent-client", Window: 8000,
		Subscriptions: []string{bus.Topic{Source: "maestro", Consumer: consumer, Kind: bus.SourceEvents}.String()},
		Handler: func(_ context.Context, m bus.Message) {
			handle(client, m.Event)
			m.Ack()
		},
	})
	b.background(ctx, client.Run)
	return client, await(ctx, func() error { return client.Check(ctx) })
}

// spec makes a spec event of one ConfigMap of about size bytes.
func (b *bed) spec(kind, consumer, id string, size int) *cloudevents.CloudEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	filler := make([]byte, max(size-120, 1))
	for i := range filler {
		filler[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[b.random.IntN(36)]
	}
	text := func(s string) *cloudevents.CloudEvent_CloudEventAttributeValue {
		return &cloudevents.CloudEvent_CloudEventAttributeValue{Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
	}
	return &cloudevents.CloudEvent{
		Id: uuid.NewString(), Source: source, SpecVersion: "1.0", Type: kind,
		Attributes: map[string]*cloudevents.CloudEvent_CloudEventAttributeValue{
			"contenttype": text("application/json"), "ce-" + work.ExtResourceID: text(id), "ce-" + work.ExtClusterName: text(consumer),
			"ce-" + work.ExtResourceVersion: text("0"),
			"ce-" + work.ExtMetadata:        text(fmt.Sprintf(`{"name":"work-%s","namespace":%q,"uid":%q,"labels":{"app":"bench"}}`, id, consumer, id)),
		},
		Data: &cloudevents.CloudEvent_BinaryData{BinaryData: fmt.Appendf(nil,
			`{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm-%s","namespace":"default"},"data":{"value":%q}}]}`, id, filler)},
	}
}

func (b *bed) publish(ctx context.Context, e *cloudevents.CloudEvent) error {
	_, err := b.events.Publish(ctx, &cloudevents.PublishRequest{Event: e})
	return err
}

// many calls f for 0 to n-1 from some goroutines.
func many(n, goroutines int, f func(i int) error) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	next := make(chan int)
	for range goroutines {
		group.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d failed, the first: %w", len(errs), n, errs[0])
	}
	return nil
}

func consumerOf(i int) string { return fmt.Sprintf("mc%d", i%*consumers) }

func idOf(i int) string { return fmt.Sprintf("w%07d", i) }

// statusOf is an agent's status of a spec event.
func statusOf(consumer string, e bus.Event, sequence int64) bus.Event {
	generation := e.Extensions[work.ExtResourceVersion]
	data := fmt.Sprintf(`{"conditions":[{"type":"Applied","status":"True","reason":"AppliedManifestWorkComplete","message":"Apply manifest work complete","observedGeneration":%s,"lastTransitionTime":"2026-01-01T00:00:00Z"},`+
		`{"type":"Available","status":"True","reason":"ResourcesAvailable","message":"All resources are available","observedGeneration":%s,"lastTransitionTime":"2026-01-01T00:00:00Z"}],`+
		`"resourceStatus":[{"resourceMeta":{"ordinal":0,"version":"v1","kind":"ConfigMap","resource":"configmaps","name":"cm","namespace":"default"},"statusFeedback":{},"conditions":[{"type":"Applied","status":"True","reason":"AppliedManifestComplete","message":"Apply manifest complete","lastTransitionTime":"2026-01-01T00:00:00Z"}]}]}`, generation, generation)
	return bus.Event{
		ID: uuid.NewString(), Source: consumer + "-agent", Type: work.StatusUpdate, Time: time.Now(), DataContentType: "application/json", Data: []byte(data),
		Extensions: map[string]string{
			work.ExtClusterName: consumer, work.ExtResourceID: e.Extensions[work.ExtResourceID], work.ExtResourceVersion: generation,
			work.ExtOriginalSource: "maestro", work.ExtSequenceID: strconv.FormatInt(sequence, 10), work.ExtStatusHash: uuid.NewString(),
		},
	}
}

func agentTopic(consumer string) string {
	return bus.Topic{Source: "maestro", Consumer: consumer, Kind: bus.AgentEvents}.String()
}
