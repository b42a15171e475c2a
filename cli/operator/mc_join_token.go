package operator

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/pki"
)

// joinInstructions has the values that a management cluster's agent needs to join the region: the
// output of `atoll mc join-token -o json`.
type joinInstructions struct {
	Name      string    `json:"name"`
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
	PKI       string    `json:"pki"`
	MQTT      string    `json:"mqtt"`
	CA        string    `json:"ca"`      // PEM, of one root or two
	CAHash    string    `json:"ca_hash"` // sha256:HEX, or two separated by a comma
	Command   string    `json:"command"` // runs the agent, once the token is in NAME/token
}

func mcJoinToken(session *terminal.Session) *cobra.Command {
	var dir, out string
	j := joinInstructions{}
	ttl := pki.TokenLife
	cmd := &cobra.Command{
		Use:   "join-token NAME",
		Short: "Make a one-time join token, and print the commands that run the agent with it",
		Long: `Makes a token with which an agent gets one certificate for the management cluster NAME
within --ttl (15 minutes by default), and prints the commands that run the agent: a
shell script with the token, so send it over a safe channel. The agent makes its key on
its own machine, verifies the region's CA by the hash in the script, and renews its
certificate by itself. It needs a new token only when the certificate was revoked, or
expired more than a day ago.

Run it where the CA's directory is. --mqtt and --pki are the region's addresses as
the agent reaches them; they default to those of the region on this machine.`,
		Example: `  atoll mc join-token edge-7
  atoll mc join-token edge-7 --mqtt mqtt.r1.example:8883 --pki https://pki.r1.example:8443 -o json`,
		Args: cobra.ExactArgs(1),
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := pki.CheckConsumer(args[0]); err != nil {
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
		j.CA, j.CAHash = string(ca.CertPEM()), ca.Pin()
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
	cmd.Flags().DurationVar(&ttl, "ttl", ttl, "for how long the token is valid")
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
