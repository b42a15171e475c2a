package services

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/clm"
	"atoll.dev/internal/coldstart"
	"atoll.dev/internal/rest"
	"atoll.dev/internal/trace"
	"atoll.dev/pki"
)

// System is one process of a region: a plain struct of its subsystems. serviceCommand sets Name, Log and Ops. The start
// method of the service sets the others that it has, each once, before it runs what uses them. A nil subsystem is one
// that this process does not have.
type System struct {
	Name   string
	Log    *slog.Logger
	Ops    *rest.Ops     // health, readiness and metrics
	Tracer *trace.Tracer // set by startTracing, when tracing is on

	Identity *pki.Identity         // set by openIdentity
	CLM      *clmclient.Client     // of a process that calls the lifecycle manager
	Maestro  *maestroclient.Client // of a process that calls Maestro
	Database *clm.Database         // of the lifecycle manager and the sentinel
	Keys     *access.KeyStore      // of the Platform API

	identity identityFlags
	opsAddr  string
	logLevel string
}

// identityFlags are the places of a service's key and certificate.
type identityFlags struct{ dir, url, caFile, caHash, tokenFile string }

// starter is a service: its parsed flags, and how it starts. start sets the subsystems of s, runs until one of them
// fails or ctx ends, and returns nil in the second case.
type starter interface {
	start(ctx context.Context, s *System) error
}

// serviceCommand returns the subcommand of a service. The caller adds the service's own flags to it.
func serviceCommand(name, short, long string, service starter) *cobra.Command {
	s := &System{Name: name}
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			coldstart.End()
			s.Ops = rest.NewOps() // not before: its collectors cost two milliseconds, and every command makes all commands
			var level slog.Level
			if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
				return fmt.Errorf("--log-level: %w", err)
			}
			s.Log = slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("service", name)
			s.Log.Info("service starting", "version", terminal.Version, "pid", os.Getpid())
			err := service.start(cmd.Context(), s)
			if cerr := s.Tracer.Close(); cerr != nil {
				s.Log.Warn("the last spans were not sent", "error", cerr)
			}
			if err != nil {
				s.Log.Error("service failed", "error", err)
			} else {
				s.Log.Info("service stopped")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&s.opsAddr, "ops", "", "loopback address for /healthz, /readyz and /metrics")
	cmd.Flags().StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// addIdentityFlags gives a service's command the flags of an identity.
func addIdentityFlags(cmd *cobra.Command, f *identityFlags) {
	cmd.Flags().StringVar(&f.dir, "identity", "", "directory of the service's key and certificate")
	cmd.Flags().StringVar(&f.url, "pki", "", "URL of the region's CA (atoll pki)")
	cmd.Flags().StringVar(&f.caFile, "ca", "", "PEM file of the region's CA, with one root or several")
	cmd.Flags().StringVar(&f.caHash, "ca-hash", "",
		"fingerprint of the region's CA, sha256:HEX, or several with commas; the file of --ca is fetched when it has none "+
			"of these, and loses others")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "",
		"file with a join token, needed until the service has a certificate")
	for _, name := range []string{"identity", "pki", "ca"} {
		cmd.MarkFlagRequired(name)
	}
}

// makeIdentityOptional makes the flags of an identity optional, for commands that check themselves when one is needed.
func makeIdentityOptional(cmd *cobra.Command) {
	for _, name := range []string{"identity", "pki", "ca"} {
		delete(cmd.Flags().Lookup(name).Annotations, cobra.BashCompOneRequiredFlag)
	}
}

var errNoIdentity = errors.New("--identity, --pki and --ca are needed")

// isComplete reports whether all parts of an identity are given.
func (f identityFlags) isComplete() bool { return f.dir != "" && f.url != "" && f.caFile != "" }

// isEmpty reports whether no part of an identity is given. A partial identity is a mistake of the caller: it must not
// make a connection plain.
func (f identityFlags) isEmpty() bool { return f == identityFlags{} }

// parts run side by side; the first that fails ends the others. An order to stop ends the ports of serve first, as
// their requests still need the other parts, and then these.
type parts struct {
	group   *errgroup.Group
	ctx     context.Context // of the parts without a port
	stopCtx context.Context // ends at the order to stop
	end     context.CancelFunc
	started atomic.Bool

	mu    sync.Mutex
	ports int // open ports that serve has started

	// The health port closes after all parts have ended.
	opsCtx context.Context
	endOps context.CancelFunc
	ops    sync.WaitGroup
}

// startOps starts the health port. Call it before anything that may wait for another service.
func (s *System) startOps(ctx context.Context) (*parts, error) {
	p := &parts{stopCtx: ctx}
	ctx, p.end = context.WithCancel(context.WithoutCancel(ctx))
	p.group, p.ctx = errgroup.WithContext(ctx)
	p.opsCtx, p.endOps = context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(p.ctx, s.Ops.Drain)
	context.AfterFunc(p.stopCtx, func() {
		s.Ops.Drain()
		p.updatePorts(0)
	})
	s.Ops.Check("start", func(context.Context) error {
		if !p.started.Load() {
			return errors.New("the service is starting")
		}
		return nil
	})
	if s.opsAddr == "" {
		return p, nil
	}
	l, err := listen(s.opsAddr)
	if err != nil {
		return nil, err
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		l.Close()
		return nil, fmt.Errorf("--ops %s: health and metrics need no identity, so they stay on loopback", s.opsAddr)
	}
	p.serveOps(func(w *rest.Server) { w.Name = s.Name + " ops" }, s, l)
	return p, nil
}

// updatePorts adds change to the number of open ports. After the order to stop it ends the other parts when no port is
// left.
func (p *parts) updatePorts(change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports += change
	if p.ports == 0 && p.stopCtx.Err() != nil {
		p.end()
	}
}

// run starts a part. A part that returns context.Canceled while the parts end has not failed.
func (p *parts) run(f func(context.Context) error) {
	p.group.Go(func() error {
		err := f(p.ctx)
		if p.ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
}

// runToEnd starts a part that ends with the context only: its error is the context's and fails nothing.
func (p *parts) runToEnd(f func(context.Context) error) {
	p.run(func(ctx context.Context) error {
		_ = f(ctx)
		return nil
	})
}

// wait marks the service as started and returns when all parts have ended: nil when ctx was cancelled.
func (p *parts) wait() error {
	p.started.Store(true)
	err := p.group.Wait()
	p.end()
	p.endOps()
	p.ops.Wait()
	return err
}

// serveOps serves health and metrics on l until all parts have ended, so that they can be read
// while parts stop.
func (p *parts) serveOps(describe func(*rest.Server), s *System, l net.Listener) {
	server := &rest.Server{Handler: rest.Observe(rest.Options{Log: s.Log}, s.Ops.Handler()), Log: s.Log}
	describe(server)
	p.ops.Go(func() {
		if err := server.Run(p.opsCtx, l); err != nil {
			p.run(func(context.Context) error { return err })
		}
	})
}

// tracing is whether a service's configuration enables tracing.
type tracing bool

const tracingOff tracing = false

// startTracing opens the service's tracer when tracing is enabled. HYPERFLEET_TRACING_ENABLED
// overrides the configuration. The standard variables OTEL_* configure the exporter.
func (s *System) startTracing(ctx context.Context, name string, configured tracing) (err error) {
	enabled := bool(configured)
	if text := os.Getenv("HYPERFLEET_TRACING_ENABLED"); text != "" {
		if enabled, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("HYPERFLEET_TRACING_ENABLED=%q is neither true nor false", text)
		}
	}
	if enabled {
		s.Tracer, err = trace.Open(ctx, trace.Options{Service: name, Version: terminal.Version, Logger: s.Log})
	}
	return err
}

// openIdentity loads or requests the service's certificate, and renews it while the service runs.
func (s *System) openIdentity(p *parts, name pki.Name) (*pki.Identity, error) {
	if s.identity.caHash != "" {
		if err := pki.PinCA(p.ctx, s.identity.url, s.identity.caHash, s.identity.caFile); err != nil {
			return nil, err
		}
	}
	id, err := pki.OpenIdentity(p.ctx, pki.IdentityOptions{
		Dir: s.identity.dir, Name: name, URL: s.identity.url, CAFile: s.identity.caFile,
		TokenFile: s.identity.tokenFile, Logger: s.Log,
	})
	if err != nil {
		return nil, err
	}
	s.Ops.Check("certificate", id.Check)
	p.run(id.Run)
	s.Identity = id
	return id, nil
}

// listen opens a TCP listener.
func listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return l, nil
}

// serve runs an HTTPS port until the order to stop and for the server's drain, or until a part fails.
func (s *System) serve(p *parts, l net.Listener, name string, config *tls.Config, server rest.Server) {
	server.Name, server.TLS, server.Log = name, config, s.Log
	p.updatePorts(1)
	p.run(func(ctx context.Context) error {
		defer p.updatePorts(-1)
		server.Failed = ctx.Done() // the order to stop ends the parts after the ports only
		ctx, end := context.WithCancel(ctx)
		defer end()
		defer context.AfterFunc(p.stopCtx, end)()
		return server.Run(ctx, l)
	})
}
