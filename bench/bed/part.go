package bed

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	_ "net/http/pprof" // of a server apart, where it is asked for
	"os"
	"os/exec"
	"time"

	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro"
)

const (
	roleServer = "server"
	roleBroker = "broker"
)

// part has the parameters of a server or a broker.
type part struct {
	Role          string
	Listen        string // address of the broker, or of the REST API
	GRPC          string
	DSN           string
	Broker        string
	Pprof         string
	PublishRate   float64
	Verbose       bool
	CA, Cert, Key []byte // PEM
}

// run serves until ctx ends. It calls ready once.
func (p part) run(ctx context.Context, ready func()) error {
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.CA)
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	l, err := net.Listen("tcp", p.Listen)
	if err != nil {
		return err
	}
	if p.Role == roleBroker {
		broker, err := bus.NewBroker(bus.BrokerOptions{TLS: config, Logger: p.logger()})
		if err != nil {
			return err
		}
		ready() // the listener is open
		return broker.Serve(ctx, l)
	}
	rpc, err := net.Listen("tcp", p.GRPC)
	if err != nil {
		return err
	}
	toBroker, err := ClientTLS(p.CA, p.Cert, p.Key, "broker")
	if err != nil {
		return err
	}
	ops := rest.NewOps()
	s, err := maestro.New(ctx, maestro.Options{
		DSN: p.DSN, Broker: p.Broker, BrokerTLS: toBroker, HTTP: l, HTTPTLS: config, GRPC: rpc, GRPCTLS: config.Clone(),
		MayCall: func(string) bool { return true }, Logger: p.logger(), Metrics: ops.Registry, Ops: ops,
		PublishRate: p.PublishRate,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		if Await(ctx, 2*time.Millisecond, func() error {
			if missing := ops.Missing(ctx); len(missing) > 0 {
				return fmt.Errorf("the server is not ready: %v", missing)
			}
			return nil
		}) == nil {
			ready()
		}
	}()
	err = s.Run(ctx)
	cancel()
	<-checked
	return err
}

// ClientTLS returns the TLS configuration with which the holder of a certificate connects to a service.
func ClientTLS(ca, cert, key []byte, service string) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool,
		ServerName: service}, nil
}

// start runs a part until the bed is closed: in this process, or in a process of its own.
func (b *Bed) start(ctx context.Context, p part) (Process, error) {
	p.Verbose = b.o.Verbose
	if b.o.Apart {
		c := &child{part: p}
		b.OnClose(func() error { c.Kill(); return nil })
		return c, c.Start()
	}
	ready, failed := make(chan struct{}), make(chan error, 1)
	b.background(ctx, func(ctx context.Context) error {
		err := p.run(ctx, func() { close(ready) })
		failed <- err
		return err
	})
	select {
	case <-ready:
		return nil, nil
	case err := <-failed:
		return nil, errors.Join(fmt.Errorf("the %s ended", p.Role), err)
	}
}

// child is a process that runs this program again as a part.
type child struct {
	part part
	cmd  *exec.Cmd
	in   io.Closer // the child ends when it is closed, also by the end of this process
}

// partVariable is the environment variable of a process that is a part. Its value is the part's role.
const partVariable = "ATOLL_BENCH_PART"

func (c *child) Start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), partVariable+"="+c.part.Role)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the %s: %w", c.part.Role, err)
	}
	c.cmd, c.in = cmd, in
	if err := json.NewEncoder(in).Encode(c.part); err != nil {
		c.Kill()
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		c.Kill()
		return fmt.Errorf("the %s did not begin to serve: %w", c.part.Role, err)
	}
	return nil
}

func (c *child) Kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	_ = c.in.Close()
	c.cmd = nil
}

func (c *child) Pid() int {
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// RunPart serves, and does not return, in a process that was started as a part. Elsewhere it does
// nothing. The function main calls it first.
func RunPart() {
	if os.Getenv(partVariable) == "" {
		return
	}
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var p part
	if err == nil {
		err = json.Unmarshal(line, &p)
	}
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = io.Copy(io.Discard, in); cancel() }()
		if p.Pprof != "" {
			go func() { _ = http.ListenAndServe(p.Pprof, nil) }()
		}
		err = p.run(ctx, func() { fmt.Println("ready") })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, p.Role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}
