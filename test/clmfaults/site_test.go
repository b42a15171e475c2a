package clmfaults

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
	mrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/adapter"
	"atoll.dev/adapter/transporttest"
	"atoll.dev/adapters"
	"atoll.dev/bus"
	"atoll.dev/clm"
	"atoll.dev/pki"
	"atoll.dev/sentinel"
	"atoll.dev/store"
)

const entities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [cl-namespace, cl-second]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade, required_adapters: [np-configmap]}
- {kind: Note, plural: notes, parent_kind: Cluster, on_parent_delete: cascade}
`

// childConfig is what a process needs to know.
type childConfig struct {
	Kind     string // broker, clm, sentinel or adapter
	Name     string
	Dir      string   // of its identity
	Broker   string   // address
	DSN      string   // of clm and sentinel
	HTTP     string   // address of clm; for adapters, where it is
	Adapters []string // "name=directory"
}

const childEnv = "ATOLL_TEST_CLMFAULTS"

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
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("process", c.Name)
	// A parent that is gone leaves no child.
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	switch c.Kind {
	case "broker":
		return c.broker(ctx, log)
	case "clm", "sentinel":
		return c.region(ctx, log)
	}
	return c.adapters(ctx, log)
}

// tls is the process's side of a connection to the broker, or the broker's.
func (c childConfig) tls() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.Dir, "pair.pem"), filepath.Join(c.Dir, "pair.pem"))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(c.Dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool,
		ServerName: "broker",
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}, nil
}

func (c childConfig) broker(ctx context.Context, log *slog.Logger) error {
	config, err := c.tls()
	if err != nil {
		return err
	}
	l, err := listenAgain(c.Broker)
	if err != nil {
		return err
	}
	b, err := bus.NewBroker(bus.BrokerOptions{TLS: config, Logger: log})
	if err != nil {
		return err
	}
	fmt.Println("up")
	return b.Serve(ctx, l)
}

// region runs an API server or a sentinel.
func (c childConfig) region(ctx context.Context, log *slog.Logger) error {
	registry, err := clm.ParseRegistry([]byte(entities))
	if err != nil {
		return err
	}
	db, err := openPatiently(ctx, clm.DatabaseOptions{DSN: c.DSN, Registry: registry, MaxConns: 8, Logger: log})
	if err != nil {
		return err
	}
	defer db.Close()
	if c.Kind == "clm" {
		l, err := listenAgain(c.HTTP)
		if err != nil {
			return err
		}
		s, err := clm.New(clm.Options{Database: db, Plain: l, Identify: (&clm.Identity{Open: true}).Identify,
			Logger: log})
		if err != nil {
			return err
		}
		fmt.Println("up")
		return s.Run(ctx)
	}
	config, err := c.tls()
	if err != nil {
		return err
	}
	var kinds []sentinel.Kind
	for _, e := range registry.Entities() {
		if len(e.RequiredAdapters) > 0 {
			kinds = append(kinds, sentinel.Kind{Kind: store.Kind(e.Kind), Plural: e.Plural})
		}
	}
	s, err := sentinel.New(ctx, sentinel.Options{
		Store: db.Store, Feed: db.Feed, Kinds: kinds, Requests: clm.RequestKind, Name: c.Name, Logger: log,
		Bus: bus.ClientOptions{Addr: c.Broker, TLS: config, ClientID: "clm-" + c.Name}, Policy: sentinel.Policy{
			MaxRetry: 4 * time.Second},
	})
	if err != nil {
		return err
	}
	fmt.Println("up")
	return s.Run(ctx)
}

// openPatiently opens the database, which may be down.
func openPatiently(ctx context.Context, o clm.DatabaseOptions) (*clm.Database, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for try := 0; ; try++ {
		db, err := clm.Open(ctx, o)
		if err == nil || try > 300 || ctx.Err() != nil {
			return db, err
		}
		<-tick.C
	}
}

// adapters runs adapters whose objects are in memory, and gone with it.
func (c childConfig) adapters(ctx context.Context, log *slog.Logger) error {
	config, err := c.tls()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, named := range c.Adapters {
		name, dir, _ := strings.Cut(named, "=")
		text, err := adapters.Files.ReadFile(dir + "/config.yaml")
		if err != nil {
			return err
		}
		conf, err := adapter.ParseConfig(dir, bytes.ReplaceAll(text, []byte(dir), []byte(name)), func(string) string {
			return ""
		})
		if err != nil {
			return err
		}
		conf.Clients.API.BaseURL = "http://" + c.HTTP
		if text, err = adapters.Files.ReadFile(dir + "/task.yaml"); err != nil {
			return err
		}
		task, err := adapter.ParseTask(dir, text, os.ReadFile)
		if err != nil {
			return err
		}
		memory := transporttest.NewMemory()
		memory.OnWrite = func(o adapter.Object) { o["status"] = map[string]any{"phase": "Active"} }
		engine, err := adapter.New(adapter.Options{Config: conf, Task: task, Transport: memory, API: http.DefaultClient,
			Log: log})
		if err != nil {
			return err
		}
		w := adapter.NewWorker(adapter.WorkerOptions{Name: name, Topic: conf.Clients.Broker.Topic, Engine: engine,
			Watcher: memory,
			Bus:     bus.ClientOptions{Addr: c.Broker, TLS: config}, Parallel: 4, Log: log})
		group.Go(func() error { return w.Run(ctx) })
	}
	fmt.Println("up")
	return group.Wait()
}

// site starts processes and gives them identities.
type site struct {
	t  testing.TB
	ca *pki.CA
}

func newSite(t testing.TB) *site {
	ca, err := pki.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &site{t, ca}
}

// leave writes an identity for a process to find.
func (s *site) leave(dir string, name pki.Name) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		s.t.Fatal(err)
	}
	cert, err := s.ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), name)
	if err != nil {
		s.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	pair := append(bytes.Clone(cert), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "pair.pem"), pair, 0o600),
		os.WriteFile(filepath.Join(dir, "ca.pem"), s.ca.CertPEM(), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// process is one that can be killed and started again.
type process struct {
	site   *site
	config childConfig
	cmd    *exec.Cmd
	stdin  io.Closer
	log    *bytes.Buffer
	logged sync.WaitGroup
}

func (s *site) process(identity pki.Name, c childConfig) *process {
	c.Dir = s.t.TempDir()
	s.leave(c.Dir, identity)
	p := &process{site: s, config: c, log: &bytes.Buffer{}}
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			text := p.log.String()
			s.t.Logf("%s:\n%s", c.Name, text[max(0, len(text)-3000):])
		}
	})
	p.start()
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
		p.site.t.Fatalf("%s does not start: %v\n%s", p.config.Name, err, p.log.String())
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

// freeAddr finds a port for a process that comes back to it. It is none that
// the system gives to outgoing connections, which could have it meanwhile.
func freeAddr(t testing.TB) string {
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12000+mrand.IntN(18000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

// listenAgain takes an address back, which who had it before may not have given
// up quite.
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
