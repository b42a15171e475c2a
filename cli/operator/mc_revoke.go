package operator

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
	"atoll.dev/local"
	"atoll.dev/pki"
)

func mcRevoke(session *terminal.Session) *cobra.Command {
	var dir, reason string
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke a management cluster's certificates, and refuse it new ones",
		Long: `Revokes all certificates and unused join tokens of NAME. The CA signs no certificate for
NAME until "atoll mc allow NAME". The region's own broker and services close its
connections within seconds; for another broker see docs/identity.md. The objects that the
agent has applied stay in the cluster, and the cluster stays registered.

Run it on the machine with the CA's directory. It may be repeated.`,
		Example: `  atoll mc revoke edge-7 --reason "laptop stolen"`,
		Args:    cobra.ExactArgs(1),
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ca, err := openCAOf(session, dir)
		if err != nil {
			return err
		}
		rev, err := ca.Revoke(pki.Name(args[0]), pki.Command{By: userOf(cmd.Context()), Reason: reason})
		if err != nil {
			return err
		}
		return o.Print(session.Out, rev, func(w io.Writer) {
			fmt.Fprintf(
				w, "%s revoked: %d certificates, %d open join tokens; `atoll mc allow %[1]s` lets it "+
					"join again\n", rev.Name, len(rev.Certificates), rev.Tokens)
		})
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA (default: that of the region below --home)")
	cmd.Flags().StringVar(&reason, "reason", "", "why; the region records it")
	return cmd
}

func mcAllow(session *terminal.Session) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "allow NAME",
		Short: "Let a revoked management cluster join again",
		Long: `Ends the effect of "atoll mc revoke" on the name of the management cluster. Certificates
that were revoked stay revoked: the cluster joins again with a new key and a new
"atoll mc join-token". The agent of a local management cluster restarts and joins by itself.`,
		Example: "  atoll mc allow edge-7 && atoll mc join-token edge-7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			home, err := session.Home()
			if err != nil {
				return err
			}
			ca, err := openCA(home, dir)
			if err != nil {
				return err
			}
			changed, err := ca.Allow(pki.Name(args[0]), pki.Command{By: userOf(cmd.Context())})
			if err != nil {
				return err
			}
			if !changed {
				session.Printf("%s is not revoked\n", args[0])
				return nil
			}
			restarted, err := false, error(nil)
			if dir == "" {
				restarted, err = home.RestartAgent(cluster.ManagementCluster(args[0]))
			}
			switch {
			case err != nil:
				return fmt.Errorf("%s may join again, but its agent was not restarted: %w", args[0], err)
			case restarted:
				session.Printf("%s may join again; its agent was restarted and joins now\n", args[0])
			default:
				session.Printf("%s may join again, by a new `atoll mc join-token %[1]s`\n", args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA (default: that of the region below --home)")
	return cmd
}

// openCAOf opens the CA in a directory; "" is that of the region in the session's home.
func openCAOf(session *terminal.Session, dir string) (*pki.CA, error) {
	home, err := session.Home()
	if err != nil {
		return nil, err
	}
	return openCA(home, dir)
}

// openCA opens the CA in dir, by default that of the region on this machine. It returns an error
// when the home has no region, and never creates a CA there.
func openCA(home local.Home, dir string) (*pki.CA, error) {
	if dir == "" {
		if _, err := home.State(); err != nil {
			return nil, fmt.Errorf("%w, or name the CA's directory with --dir", err)
		}
		dir = home.CADir()
	}
	return pki.OpenCA(dir)
}
