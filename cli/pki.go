package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

func (c *command) pki() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "The region's certificate authority",
		Args:  knownVerb, RunE: showHelp,
		Long: `One process, "atoll pki serve", holds the region's CA and signs certificate
requests, by one-time join token or by the certificate that is to be renewed.`,
	}
	cmd.AddCommand(c.pkiServe(), c.pkiToken())
	return cmd
}

func (c *command) pkiServe() *cobra.Command {
	var dir, addr, caFile string
	cmd := c.serviceCommand("serve", "Serve the CA", "", func(ctx context.Context, s *service) error {
		p, err := s.begin(ctx)
		if err != nil {
			return err
		}
		ca, err := pki.OpenCA(dir)
		if err != nil {
			return err
		}
		if caFile != "" {
			if err := writePublic(caFile, ca.CertPEM()); err != nil {
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

func (c *command) pkiToken() *cobra.Command {
	var dir, out string
	ttl := pki.TokenLife
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Make a one-time join token for system:SERVICE",
		Long: `Makes a token by which one key gets one certificate with this common name. Run it
where the CA's directory is. For a management cluster, "atoll mc join-token" says
what to do with the token, too.`,
		Example: "  atoll pki token system:maestro --dir /var/lib/atoll/pki --out token",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := c.home()
			if err != nil {
				return err
			}
			ca, err := openCA(home, dir)
			if err != nil {
				return err
			}
			token, err := ca.CreateToken(pki.Name(args[0]), ttl)
			if err != nil {
				return err
			}
			if out != "" {
				return writePrivate(out, []byte(token+"\n"))
			}
			c.printf("%s\n", token)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA (default: that of the region below --home)")
	cmd.Flags().StringVar(&out, "out", "", "write the token to a file, not to standard output")
	cmd.Flags().DurationVar(&ttl, "ttl", ttl, "how long it is good for")
	return cmd
}

// writePublic replaces a file that everybody may read, whole or not at all.
func writePublic(path string, data []byte) error { return writeWhole(path, data, 0o644) }
