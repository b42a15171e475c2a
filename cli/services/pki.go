package services

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/audit"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/remote"
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
	cmd.Flags().StringVar(&f.caFile, "ca-file", "", "also write the CA's certificate to this file")
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
	if f.caFile != "" {
		if err := terminal.WritePublic(f.caFile, ca.CertPEM()); err != nil {
			return fmt.Errorf("--ca-file: %w", err)
		}
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
	return p.wait()
}

// caAudit is the source of the CA's audit records: certificates that were used after their renewal.
type caAudit struct{ service *remote.Service }

// ReadAudit implements audit.Source.
func (c caAudit) ReadAudit(ctx context.Context, after string, limit int, wait time.Duration) (audit.Page, error) {
	return c.service.ReadAudit(ctx, "/v1"+audit.Path, after, limit, wait)
}
