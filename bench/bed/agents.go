package bed

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/pki"
)

func (b *Bed) certificate(name pki.Name) (cert, key []byte, err error) {
	return Certificate(b.ca, name)
}

// Certificate makes a key and a certificate for a name, in PEM.
func Certificate(ca *pki.CA, name pki.Name) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		return nil, nil, err
	}
	if cert, err = ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), name); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// ClientTLS returns the TLS configuration with which name connects to a service. It has a new certificate.
func (b *Bed) ClientTLS(name pki.Name, service string) (*tls.Config, error) {
	cert, key, err := b.certificate(name)
	if err != nil {
		return nil, err
	}
	return ClientTLS(b.ca.CertPEM(), cert, key, service)
}

// Register makes the consumers mc0, mc1, ...
func (b *Bed) Register(n int) error {
	names := make([]string, n)
	for i := range names {
		names[i] = Consumer(i)
	}
	return b.RegisterNamed(names...)
}

// RegisterNamed makes consumers by the REST API.
func (b *Bed) RegisterNamed(names ...string) error {
	for _, name := range names {
		resp, err := b.HTTP.Post(b.URL+"/api/maestro/v1/consumers", "application/json", strings.NewReader(
			fmt.Sprintf(`{"name":%q}`, name)))
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("registering %s: %s", name, resp.Status)
		}
	}
	return nil
}

// Agent makes the client of a scripted agent. The client does nothing until Run.
func (b *Bed) Agent(consumer string, handle func(bus.Event), connected func(context.Context)) (*bus.Client, error) {
	config, err := b.ClientTLS(pki.Name(consumer), "broker")
	if err != nil {
		return nil, err
	}
	return bus.NewClient(bus.ClientOptions{
		Addr: b.broker, TLS: config, ClientID: consumer + "-agent-client", Window: 8000,
		Subscriptions: []string{bus.Topic{Source: "maestro", Consumer: work.Consumer(consumer),
			Kind: bus.SourceEvents}.String()},
		Handler:     func(_ context.Context, m bus.Message) { handle(m.Event); m.Ack() },
		OnConnected: connected,
	}), nil
}

// Subscriber connects a scripted agent. It calls handle with each event.
func (b *Bed) Subscriber(ctx context.Context, consumer string, handle func(c *bus.Client, e bus.Event)) (*bus.Client,
	error) {
	var client *bus.Client
	client, err := b.Agent(consumer, func(e bus.Event) { handle(client, e) }, nil)
	if err != nil {
		return nil, err
	}
	b.background(ctx, client.Run)
	return client, Await(ctx, 2*time.Millisecond, func() error { return client.Check(ctx) })
}

// Many calls f for 0 to n-1 from several goroutines.
func Many(n, goroutines int, f func(i int) error) error {
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
