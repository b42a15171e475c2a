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

	"atoll.dev/cli/terminal"
	"atoll.dev/internal/rest"
	"atoll.dev/internal/trace"
	"atoll.dev/pki"
)

// service is what all services have: a log, a port for health and metrics,
// parts that run until one fails or the process is told to stop.
type service struct {
	name     string
	log      *slog.Logger
	ops      *rest.Ops
	opsAddr  string
	identity identityFlags
	logLevel string
	tracer   *trace.Tracer // nil unless startTracing was called and tracing is on
}

// identityFlags say where a service finds its key and certificate.
type identityFlags struct{ dir, url, caFile, caHash, tokenFile string }

// serviceCommand makes the subcommand of a service: its own flags are added to
// the command that is returned; run is called when they are parsed.
func serviceCommand(c *terminal.Session, name, short, long string, run func(ctx context.Context,
	s *service) error) *cobra.Command {
	s := &service{name: name, ops: rest.NewOps()}
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var level slog.Level
			if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
				return fmt.Errorf("--log-level: %w", err)
			}
			s.log = slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("service", name)
			s.log.Info("service starting", "version", terminal.Version, "pid", os.Getpid())
			err := run(cmd.Context(), s)
			if cerr := s.tracer.Close(); cerr != nil {
				s.log.Warn("the last spans were not sent", "error", cerr)
			}
			if err != nil {
				s.log.Error("service failed", "error", err)
			} else {
				s.log.Info("service stopped")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&s.opsAddr, "ops", "", "loopback address for /healthz, /readyz and /metrics")
	cmd.Flags().StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// addIdentity gives a service's command the flags of an identity.
func addIdentity(cmd *cobra.Command, f *identityFlags) {
	cmd.Flags().StringVar(&f.dir, "identity", "", "directory of the service's key and certificate")
	cmd.Flags().StringVar(&f.url, "pki", "", "URL of the region's CA (atoll pki)")
	cmd.Flags().StringVar(&f.caFile, "ca", "", "PEM file of the region's CA")
	cmd.Flags().StringVar(&f.caHash, "ca-hash", "",
		"fingerprint of the region's CA, sha256:HEX; fetches the file of --ca when it is not there")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "file with a join token, until there is a certificate")
	for _, name := range []string{"identity", "pki", "ca"} {
		cmd.MarkFlagRequired(name)
	}
}

// optionalIdentity is for commands that say themselves when one is needed.
func optionalIdentity(cmd *cobra.Command) {
	for _, name := range []string{"identity", "pki", "ca"} {
		delete(cmd.Flags().Lookup(name).Annotations, cobra.BashCompOneRequiredFlag)
	}
}

var errNoIdentity = errors.New("--identity, --pki and --ca are needed")

// given says whether there is to be an identity.
func (f identityFlags) given() bool { return f.dir != "" && f.url != "" && f.caFile != "" }

// empty says whether nothing of an identity was given. A part of one is a
// mistake, and no reason to go on without.
func (f identityFlags) empty() bool { return f == identityFlags{} }

// parts run side by side; the first that fails ends the others.
type parts struct {
	group   *errgroup.Group
	ctx     context.Context
	started atomic.Bool

	// What says how the service is outlives its parts.
	opsCtx context.Context
	endOps context.CancelFunc
	ops    sync.WaitGroup
}

// begin starts the health port, before anything that may have to wait.
func (s *service) begin(ctx context.Context) (*parts, error) {
	group, ctx := errgroup.WithContext(ctx)
	p := &parts{group: group, ctx: ctx}
	p.opsCtx, p.endOps = context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, s.ops.Drain)
	s.ops.Check("start", func(context.Context) error {
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
	p.aside(func(w *rest.Server) { w.Name = s.name + " ops" }, s, l)
	return p, nil
}

func (p *parts) run(f func(context.Context) error) {
	p.group.Go(func() error { return f(p.ctx) })
}

// wait says that all parts are there, and returns when they have ended: nil
// when the process was told to stop.
func (p *parts) wait() error {
	p.started.Store(true)
	err := p.group.Wait()
	p.endOps()
	p.ops.Wait()
	return err
}

// aside serves health and metrics on l until all parts have ended.
func (p *parts) aside(describe func(*rest.Server), s *service, l net.Listener) {
	server := &rest.Server{Handler: rest.Observe(rest.Options{Log: s.log}, s.ops.Handler()), Log: s.log}
	describe(server)
	p.ops.Go(func() {
		if err := server.Run(p.opsCtx, l); err != nil {
			p.run(func(context.Context) error { return err })
		}
	})
}

// startTracing makes the service's tracer, if on, or HYPERFLEET_TRACING_ENABLED,
// which is stronger, says so. The standard variables OTEL_* say the rest.
func (s *service) startTracing(ctx context.Context, name string, on bool) (err error) {
	if text := os.Getenv("HYPERFLEET_TRACING_ENABLED"); text != "" {
		if on, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("HYPERFLEET_TRACING_ENABLED=%q is neither true nor false", text)
		}
	}
	if on {
		s.tracer, err = trace.Open(ctx, trace.Options{Service: name, Version: terminal.Version, Logger: s.log})
	}
	return err
}

// openIdentity gets the service's identity and keeps it fresh.
func (s *service) openIdentity(p *parts, name pki.Name) (*pki.Identity, error) {
	if s.identity.caHash != "" {
		if err := pki.PinCA(p.ctx, s.identity.url, s.identity.caHash, s.identity.caFile); err != nil {
			return nil, err
		}
	}
	id, err := pki.OpenIdentity(p.ctx, pki.IdentityOptions{
		Dir: s.identity.dir, Name: name, URL: s.identity.url, CAFile: s.identity.caFile, TokenFile: s.identity.tokenFile, Logger: s.log,
	})
	if err != nil {
		return nil, err
	}
	s.ops.Check("certificate", id.Check)
	p.run(id.Run)
	return id, nil
}

func listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return l, nil
}

// serve runs an HTTPS port.
func (s *service) serve(p *parts, l net.Listener, name string, config *tls.Config, server rest.Server) {
	server.Name, server.TLS, server.Log = name, config, s.log
	p.run(func(ctx context.Context) error { return server.Run(ctx, l) })
}
