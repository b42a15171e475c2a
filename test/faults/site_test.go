package faults

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	kuberest "k8s.io/client-go/rest"

	"atoll.dev/agent"
	"atoll.dev/bus"
	"atoll.dev/maestro"
	"atoll.dev/pki"
)

// site holds the CA that all parts share.
type site struct {
	t  testing.TB
	ca *pki.CA

	mu    sync.Mutex
	certs map[pki.Name]tls.Certificate
}

func newSite(t testing.TB) *site {
	ca, err := pki.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &site{t: t, ca: ca, certs: map[pki.Name]tls.Certificate{}}
}

func (s *site) certificate(name pki.Name) tls.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.certs[name]; ok {
		return c
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		panic(err)
	}
	cert, err := s.ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), name)
	if err != nil {
		panic(fmt.Sprintf("a certificate for %q: %v", name, err))
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	if err != nil {
		panic(err)
	}
	s.certs[name] = pair
	return pair
}

func (s *site) serverTLS(service string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.certificate(pki.ServiceName(service))},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.ca.Pool(),
	}
}

func (s *site) clientTLS(name pki.Name, service string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.certificate(name)},
		RootCAs: s.ca.Pool(), ServerName: service}
}

// leave writes an identity into a directory for a process.
func (s *site) leave(dir string, name pki.Name) {
	pair := s.certificate(name)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		s.t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), pem.EncodeToMemory(
		&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "pair.pem"), text, 0o600),
		os.WriteFile(filepath.Join(dir, "ca.pem"), s.ca.CertPEM(), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// broker is the embedded broker, which the test stops and starts.
type broker struct {
	site *site
	addr string
	end  func()
}

func (b *broker) start() {
	l, err := listenAgain(b.addr)
	if err != nil {
		b.site.t.Fatal(err)
	}
	br, err := bus.NewBroker(bus.BrokerOptions{TLS: b.site.serverTLS("broker"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.site.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = br.Serve(ctx, l)
	}()
	b.end = sync.OnceFunc(func() { cancel(); <-done })
}

// listenAgain listens on an address again; it retries while the previous listener still
// holds the address.
func listenAgain(addr string) (l net.Listener, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 200 {
		if l, err = net.Listen("tcp", addr); err == nil {
			return l, nil
		}
		<-tick.C
	}
	return nil, err
}

// childConfig is the configuration of a child process.
type childConfig struct {
	Kind   string // maestro or agent
	Dir    string // of its identity
	Broker string

	DSN, HTTP, GRPC string // of a server

	Consumer, Kube, Store string // of an agent
	Wall                  string // file with the error of its clock, in nanoseconds
	CompareEvery          time.Duration
}

const childEnv = "ATOLL_TEST_FAULTS"

func TestMain(m *testing.M) {
	text := os.Getenv(childEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var c childConfig
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (c childConfig) run() error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.Dir, "pair.pem"), filepath.Join(c.Dir, "pair.pem"))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(c.Dir, "ca.pem"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	client := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool,
		ServerName: "broker"}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	// The child ends when its parent has ended.
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	if c.Kind == "agent" {
		a, err := agent.New(agent.Options{
			Consumer: c.Consumer, Kube: &kuberest.Config{Host: c.Kube}, Bus: bus.ClientOptions{Addr: c.Broker,
				TLS: client}, BrokerHost: "broker",
			DataDir: c.Store, Log: log, CompareEvery: c.CompareEvery, Wall: wallOf(c.Wall),
		})
		if err != nil {
			return err
		}
		fmt.Println("up")
		return a.Run(ctx)
	}
	listen := func(addr string) net.Listener {
		l, lerr := listenAgain(addr)
		err = errors.Join(err, lerr)
		return l
	}
	server := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	o := maestro.Options{
		DSN: c.DSN, Broker: c.Broker, BrokerTLS: client, HTTP: listen(c.HTTP), GRPC: listen(
			c.GRPC), HTTPTLS: server, GRPCTLS: server,
		MayCall: func(string) bool {
			return true
		}, RetryBase: 200 * time.Millisecond, RetryMax: 2 * time.Second, DeleteMax: 2 * time.Second, Logger: log,
		BrokerGrace: time.Minute,
	}
	if err != nil {
		return err
	}
	s, err := maestro.New(ctx, o)
	if err != nil {
		return err
	}
	fmt.Println("up")
	return s.Run(ctx)
}

// wallOf returns a clock with the error that a file holds at the time of the reading.
func wallOf(file string) func(time.Time) time.Time {
	return func(t time.Time) time.Time {
		text, err := os.ReadFile(file)
		if err != nil {
			return t
		}
		off, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return t.Add(time.Duration(off))
	}
}

// process is a server or an agent that the test kills and restarts.
type process struct {
	site   *site
	config childConfig
	cmd    *exec.Cmd
	stdin  io.Closer
	log    *bytes.Buffer
	logged sync.WaitGroup
}

func (s *site) process(name pki.Name, c childConfig) *process {
	c.Dir = s.t.TempDir()
	s.leave(c.Dir, name)
	p := &process{site: s, config: c, log: &bytes.Buffer{}}
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			text := p.log.String()
			s.t.Logf("%s %s:\n%s", c.Kind, c.Consumer, text[max(0, len(text)-4000):])
		}
	})
	return p
}

func (p *process) start() {
	config, err := json.Marshal(p.config)
	if err != nil {
		p.site.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0], "-test.run=^$")
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.site.t.Fatal(err)
	}
	errs, err := p.cmd.StderrPipe()
	if err != nil {
		p.site.t.Fatal(err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		p.site.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.site.t.Fatal(err)
	}
	p.logged.Go(func() { _, _ = io.Copy(p.log, io.LimitReader(errs, 1<<20)); _, _ = io.Copy(io.Discard, errs) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "up\n" {
		p.kill()
		p.site.t.Fatalf("%s %s does not start: %v\n%s", p.config.Kind, p.config.Consumer, err, p.log.String())
	}
}

func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	p.logged.Wait()
	_ = p.cmd.Wait()
	p.cmd = nil
}
