package services

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

func PKI(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "The region's certificate authority",
		Args:  terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Long: `One process, "atoll pki serve", holds the region's CA and signs certificate
requests, by one-time join token or by the certificate that is to be renewed.`,
	}
	cmd.AddCommand(pkiServe(c))
	return cmd
}

func pkiServe(c *terminal.Session) *cobra.Command {
	var dir, addr, caFile string
	cmd := serviceCommand(c, "serve", "Serve the CA", "", func(ctx context.Context, s *service) error {
		p, err := s.begin(ctx)
		if err != nil {
			return err
		}
		ca, err := pki.OpenCA(dir)
		if err != nil {
			return err
		}
		if caFile != "" {
			if err := terminal.WritePublic(caFile, ca.CertPEM()); err != nil {
				return fmt.Errorf("--ca-file: %w", err)
			}
		}
		l, err := listen(addr)
		if err != nil {
			return err
		}
		server := pki.NewServer(ca)
		s.ops.Check("ca", server.Check)
		s.serve(p, l, "pki", server.TLS(), rest.Server{Handler: server.Handler(s.log)})
		return p.wait()
	})
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA; made on first use")
	cmd.Flags().StringVar(&addr, "listen", "127.0.0.1:8443", "address of the signing service")
	cmd.Flags().StringVar(&caFile, "ca-file", "", "also write the CA's certificate to this file")
	cmd.MarkFlagRequired("dir")
	return cmd
}
