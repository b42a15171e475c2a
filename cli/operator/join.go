package operator

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/local"
	"atoll.dev/pki"
)

// joinInstructions are what a management cluster's agent needs to join: the output of `atoll mc
// join-token -o json`.
type joinInstructions struct {
	Name      string    `json:"name"`
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
	PKI       string    `json:"pki"`
	MQTT      string    `json:"mqtt"`
	CA        string    `json:"ca"`      // PEM
	CAHash    string    `json:"ca_hash"` // sha256:HEX
	Command   string    `json:"command"` // runs the agent, once the token is in NAME/token
}

func mcJoinToken(session *terminal.Session) *cobra.Command {
	var dir, out string
	j := joinInstructions{}
	ttl := pki.TokenLife
	cmd := &cobra.Command{
		Use:   "join-token NAME",
		Short: "Make a one-time join token and say how to run the agent with it",
		Long: `Makes a token by which one key gets one certificate of the management cluster
NAME, within 15 minutes, and prints the commands that run its agent: a shell script
that holds the token, so send it over a safe channel. The agent makes its key where
it runs, believes the region's CA for its hash, and renews its certificate by itself;
the token is needed again only after 90 days of absence or a revocation.

Run it where the CA's directory is. --mqtt and --pki are the region's addresses as
the agent reaches them; they default to those of the region on this machine.`,
		Example: `  atoll mc join-token edge-7
  atoll mc join-token edge-7 --mqtt mqtt.r1.example:8883 --pki https://pki.r1.example:8443 -o json`,
		Args: cobra.ExactArgs(1),
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := pki.ValidConsumer(args[0]); err != nil {
			return err
		}
		home, err := session.Home()
		if err != nil {
			return err
		}
		if out == "" {
			mqtt, signing, err := home.JoinAddresses()
			if err != nil && (j.MQTT == "" || j.PKI == "") {
				return fmt.Errorf("name the region's addresses with --mqtt and --pki: %w", err)
			}
			if j.MQTT == "" {
				j.MQTT = mqtt
			}
			if j.PKI == "" {
				j.PKI = signing
			}
		}
		ca, err := openCA(home, dir)
		if err != nil {
			return err
		}
		j.Name, j.ExpiresAt = args[0], time.Now().Add(ttl).UTC().Truncate(time.Second)
		if j.Token, err = ca.CreateToken(pki.Name(args[0]), ttl); err != nil {
			return err
		}
		if out != "" {
			return terminal.WritePrivate(out, []byte(j.Token+"\n"))
		}
		j.CA, j.CAHash = string(ca.CertPEM()), pki.Fingerprint(ca.Certificate())
		j.Command = j.agentCommand()
		return o.Print(session.Out, j, func(w io.Writer) {
			fmt.Fprintf(w, `# %s joins the region by this, once, until %s. Run it where the agent shall run,
# beside agent.kubeconfig, which "atoll mc bootstrap" makes in the cluster.
mkdir -p -m 700 %[1]s
(umask 077; echo %[3]s > %[1]s/token)
%[4]s
`, j.Name, j.ExpiresAt.Format("2006-01-02 15:04:05 UTC"), j.Token, j.Command)
		})
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA (default: that of the region below --home)")
	cmd.Flags().StringVar(&j.MQTT, "mqtt", "", "the broker, host:port")
	cmd.Flags().StringVar(&j.PKI, "pki", "", "URL of the signing service, https://host:port")
	cmd.Flags().StringVar(&out, "out", "", "write the token to a file, and print nothing")
	cmd.Flags().DurationVar(&ttl, "ttl", ttl, "how long the token is good for")
	return cmd
}

// agentCommand returns the command line of the agent. It names the file of the token, not the
// token: every user of a machine can read command lines.
func (j joinInstructions) agentCommand() string {
	q := terminal.ShellQuote
	return fmt.Sprintf(`atoll agent --consumer-name %[1]s --kubeconfig agent.kubeconfig \
  --mqtt %[2]s --pki %[3]s --ca %[1]s/ca.pem --ca-hash %[4]s \
  --identity %[1]s/identity --token-file %[1]s/token --data-dir %[1]s/store`, q(j.Name), q(j.MQTT), q(j.PKI), q(j.CAHash))
}

func mcRevoke(session *terminal.Session) *cobra.Command {
	var dir, reason string
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Make a management cluster's certificates worthless and keep it out",
		Long: `Revokes all certificates and open join tokens of NAME, and bars the name: nothing is
signed for it until "atoll mc allow NAME". The region's own broker and services cut
its connections off within seconds; for another broker see docs/identity.md. What the
agent applied in the cluster stays there, and the cluster stays registered.

Run it where the CA's directory is. To revoke again is no error.`,
		Example: `  atoll mc revoke edge-7 --reason "laptop stolen"`,
		Args:    cobra.ExactArgs(1),
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		home, err := session.Home()
		if err != nil {
			return err
		}
		ca, err := openCA(home, dir)
		if err != nil {
			return err
		}
		rev, err := ca.Revoke(pki.Name(args[0]), reason)
		if err != nil {
			return err
		}
		return o.Print(session.Out, rev, func(w io.Writer) {
			fmt.Fprintf(
				w, "%s revoked: %d certificates, %d open join tokens; `atoll mc allow %[1]s` lets it join again\n", rev.Name, len(rev.Certificates), rev.Tokens)
		})
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA (default: that of the region below --home)")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}

func mcAllow(session *terminal.Session) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "allow NAME",
		Short: "Let a revoked management cluster join again",
		Long: `Lifts the bar that "atoll mc revoke" set. What was revoked stays revoked: the cluster
joins again with a new key and a new "atoll mc join-token". The agent of a local
management cluster is restarted and does so by itself.`,
		Example: "  atoll mc allow edge-7 && atoll mc join-token edge-7",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := session.Home()
			if err != nil {
				return err
			}
			ca, err := openCA(home, dir)
			if err != nil {
				return err
			}
			changed, err := ca.Allow(pki.Name(args[0]))
			if err != nil {
				return err
			}
			if !changed {
				session.Printf("%s is not revoked\n", args[0])
				return nil
			}
			restarted, err := false, error(nil)
			if dir == "" {
				restarted, err = home.RestartAgent(args[0])
			}
			switch {
			case err != nil:
				return fmt.Errorf("%s may join again, but its agent was not restarted: %w", args[0], err)
			case restarted:
				session.Printf("%s may join again; its agent does\n", args[0])
			default:
				session.Printf("%s may join again, by a new `atoll mc join-token %[1]s`\n", args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the CA (default: that of the region below --home)")
	return cmd
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
