package services

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/audit"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pause"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

// PKI returns the command of the certificate authority.
func PKI() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "The region's certificate authority",
		Args:  terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Long: `One process, "atoll pki serve", holds the region's issuing CAs and signs certificate
requests, by one-time join token or by the certificate that is to be renewed. "atoll ca"
shows the issuing CAs, and takes the root's key off this machine.`,
	}
	cmd.AddCommand(pkiServe())
	return cmd
}

// pkiService is `atoll pki serve`.
type pkiService struct {
	dir    string
	addr   string
	caFile string
}

func pkiServe() *cobra.Command {
	f := &pkiService{}
	cmd := serviceCommand("serve", "Serve the CA", "", f)
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory of the CA; made on first use")
	cmd.Flags().StringVar(&f.addr, "listen", "127.0.0.1:8443", "address of the signing service")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "",
		"also write the CA's certificate to this file, and again when the root changes")
	cmd.MarkFlagRequired("dir")
	return cmd
}

func (f *pkiService) start(ctx context.Context, s *System) error {
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	ca, err := pki.OpenCA(f.dir)
	if err != nil {
		return err
	}
	roots := rootsFile{ca: ca, path: f.caFile}
	if err := roots.write(); err != nil {
		return err
	}
	l, err := listen(f.addr)
	if err != nil {
		return err
	}
	server := pki.NewServer(ca)
	s.Ops.Check("ca", server.Check)
	s.Ops.Registry.MustRegister(server)
	s.serve(p, l, "pki", server.TLS(), rest.Server{Handler: server.Handler(s.Log)})
	p.run(func(ctx context.Context) error { return server.Run(ctx, s.Log) })
	p.run(func(ctx context.Context) error { return roots.follow(ctx, s.Log) })
	return p.wait()
}

// rootsFile is the file of --ca-file; its path is "" for none.
type rootsFile struct {
	ca      *pki.CA
	path    string
	written []byte
}

// write writes the certificates of the region's roots, unless they are those that it has written last.
func (f *rootsFile) write() error {
	now := f.ca.CertPEM()
	if f.path == "" || bytes.Equal(now, f.written) {
		return nil
	}
	if err := terminal.WritePublic(f.path, now); err != nil {
		return fmt.Errorf("--ca-file: %w", err)
	}
	f.written = now
	return nil
}

// lookAtRoots is the interval at which follow looks for other roots: "atoll ca root" has changed them in the CA's
// directory.
const lookAtRoots = 5 * time.Second

// follow writes the file again when the roots have changed, until ctx is done.
func (f *rootsFile) follow(ctx context.Context, log *slog.Logger) error {
	for pause.For(ctx, lookAtRoots) {
		if err := f.write(); err != nil {
			log.LogAttrs(ctx, slog.LevelWarn, "the file of the roots is not written, the next round tries again",
				slog.Any("error", err))
		}
	}
	return nil
}

// caAudit is the source of the CA's audit records: certificates that were used after their renewal.
type caAudit struct{ service *remote.Service }

// ReadAudit implements audit.Source.
func (c caAudit) ReadAudit(ctx context.Context, after string, limit int, wait time.Duration) (audit.Page, error) {
	return c.service.ReadAudit(ctx, "/v1"+audit.Path, after, limit, wait)
}
