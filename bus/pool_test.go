package bus

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"atoll.dev/api/work"
)

// Events leave by several connections, those of one consumer always by the
// same, so that they stay in order.
func TestAPoolKeepsTheOrderOfATopic(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		const consumers, each = 12, 200
		received := make([]chan string, consumers)
		for i := range received {
			received[i] = make(chan string, each)
			b.connect(fmt.Sprintf("c%d", i), ClientOptions{Subscriptions: []string{sourceTopic(work.Consumer(fmt.Sprintf("c%d",
				i)))},
				Handler: func(_ context.Context, m Message) { m.Ack(); received[i] <- m.Event.ID }})
		}
		pool := b.pool(PoolOptions{Connections: 4})
		for n := range each {
			for i := range consumers {
				if err := pool.PublishAsync(t.Context(), sourceTopic(work.Consumer(fmt.Sprintf("c%d", i))),
					testEvent(fmt.Sprint(n)),
					func(error) {}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range received {
			for n := range each {
				if id := receive(t, received[i]); id != fmt.Sprint(n) {
					t.Fatalf("c%d: message %d is %s", i, n, id)
				}
			}
		}
		used := map[int]bool{}
		for i := range consumers {
			used[pool.clientIndex(sourceTopic(work.Consumer(fmt.Sprintf("c%d", i))))] = true
		}
		if len(used) < 3 {
			t.Errorf("12 topics use %d of 4 connections", len(used))
		}
	})
}

// The rate is each connection's.
func TestAPoolKeepsItsRate(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	pool := b.pool(PoolOptions{Connections: 1, Rate: 100})
	begun := time.Now()
	var sent sync.WaitGroup
	for range 60 {
		sent.Add(1)
		if err := pool.PublishAsync(t.Context(), sourceTopic("c1"), testEvent("x"),
			func(error) { sent.Done() }); err != nil {
			t.Fatal(err)
		}
	}
	sent.Wait()
	if took := time.Since(begun); took < 450*time.Millisecond { // ten at once, fifty at 100 a second
		t.Errorf("60 events at 100 a second took %s", took)
	}
}

// pool runs a pool of the server until the test ends and returns it connected.
func (b *testBroker) pool(o PoolOptions) *Pool {
	b.t.Helper()
	o.Client = ClientOptions{Addr: b.addr, TLS: b.ca.client(b.t, "system:maestro"), ClientID: "maestro-a"}
	p := NewPool(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); <-done })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(hangLimit); p.Check(ctx) != nil; <-tick.C {
		if time.Now().After(deadline) {
			b.t.Fatal(p.Check(ctx))
		}
	}
	return p
}

// Limit returns the smaller one of the broker's limit and the configured limit.
func TestLimits(t *testing.T) {
	eachBroker(t, BrokerOptions{MaxPacket: 50_000}, func(t *testing.T, b *testBroker) {
		if got := b.connect("system:maestro", ClientOptions{ClientID: "maestro-1"}).Limit(); got != 50_000 {
			t.Errorf("the broker's limit is %d", got)
		}
		c := b.connect("system:maestro", ClientOptions{ClientID: "maestro-2", MaxMessage: 1000})
		if got := c.Limit(); got != 1000 {
			t.Errorf("the configured limit is %d", got)
		}
		e := testEvent("x")
		e.Data = make([]byte, 2000)
		if err := c.Publish(t.Context(), sourceTopic("c1"), e); !errors.Is(err, ErrTooLarge) {
			t.Errorf("an event over it: %v", err)
		}
		if size, err := e.Size(sourceTopic("c1")); err != nil || size < 2000 || size > 2500 {
			t.Errorf("its size is %d, %v", size, err)
		}
	})
}

// Keys on disk are read for each connection.
func TestKeysFromFiles(t *testing.T) {
	b := startBroker(t, BrokerOptions{})
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	install := func(name string) {
		own := b.ca.certificate(t, name)
		der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		write("cert", "CERTIFICATE", own.Certificate[0])
		write("key", "PRIVATE KEY", der)
	}
	install("c2")
	keys := Keys{CAFile: write("ca", "CERTIFICATE", b.ca.cert.Raw), CertFile: filepath.Join(dir, "cert"),
		KeyFile: filepath.Join(dir, "key")}
	connected := make(chan struct{}, 10)
	c := NewClient(ClientOptions{Addr: b.addr, ClientID: agentClientID("c1"), Keys: func() (Keys, error) {
		return keys,
			nil
	},
		OnConnected: func(context.Context) { connected <- struct{}{} }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	install("c1") // the first one may not have this client id, whether it was seen or not
	receive(t, connected)
	if err := c.Publish(t.Context(), agentTopic("c1"), testEvent("x")); err != nil {
		t.Error(err)
	}
	if (Keys{}).Empty() != true || fmt.Sprint(keys) != "keys" {
		t.Errorf("keys show themselves as %s", keys)
	}
}

// A client whose keys change reconnects with the new keys; half-written ones change nothing.
func TestI6NewKeysAreUsedAtOnce(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		var mu sync.Mutex
		var keys Keys
		install := func(k Keys) {
			mu.Lock()
			defer mu.Unlock()
			keys = k
		}
		fresh := func() Keys {
			own := b.ca.certificate(t, "c1")
			der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
			if err != nil {
				t.Fatal(err)
			}
			block := func(kind string, der []byte) []byte {
				return pem.EncodeToMemory(
					&pem.Block{Type: kind, Bytes: der})
			}
			return Keys{CA: block("CERTIFICATE", b.ca.cert.Raw), Cert: block("CERTIFICATE", own.Certificate[0]),
				Key: block("PRIVATE KEY", der)}
		}
		install(fresh())
		looked, connected := make(chan struct{}, 1000), make(chan struct{}, 10)
		c := NewClient(ClientOptions{Addr: b.addr, ClientID: agentClientID("c1"),
			Keys: func() (Keys, error) {
				mu.Lock()
				defer mu.Unlock()
				looked <- struct{}{}
				k := keys
				return k, nil
			},
			OnConnected: func(context.Context) { connected <- struct{}{} }})
		c.keysEvery = 20 * time.Millisecond
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); c.Run(ctx) }()
		defer func() { cancel(); <-done }()
		receive(t, connected)
		half := fresh()
		half.Key = fresh().Key
		install(half)
		for range 5 {
			receive(t, looked)
		}
		if len(connected) != 0 || !c.Connected() {
			t.Error("keys that do not fit together ended the connection")
		}
		install(fresh())
		receive(t, connected)
		if err := c.Publish(t.Context(), agentTopic("c1"), testEvent("x")); err != nil {
			t.Error(err)
		}
	})
}
