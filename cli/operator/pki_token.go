package operator

import (
	"atoll.dev/cli/terminal"
	"atoll.dev/pki"
	"github.com/spf13/cobra"
)

// PKIToken returns the command `atoll pki token`.
func PKIToken(session *terminal.Session) *cobra.Command {
	var dir, out string
	ttl := pki.TokenLife
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Make a one-time join token for system:SERVICE",
		Long: `Makes a token by which one key gets one certificate with this common name. Run it
where the CA's directory is. For a management cluster, "atoll mc join-token" also
shows the agent's command.`,
		Example: "  atoll pki token system:maestro --dir /var/lib/atoll/pki --out token",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ca, err := openCAOf(session, dir)
			if err != nil {
				return err
			}
			token, err := ca.CreateToken(pki.Name(args[0]), ttl)
			if err != nil {
				return err
			}
			if out != "" {
				return terminal.WritePrivate(out, []byte(token+"\n"))
			}
			session.Printf("%s\n", token)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA (default: that of the region below --home)")
	cmd.Flags().StringVar(&out, "out", "", "write the token to a file, not to standard output")
	cmd.Flags().DurationVar(&ttl, "ttl", ttl, "for how long the token is valid")
	return cmd
}
