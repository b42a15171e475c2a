package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
)

// newKey is a key pair with its secret, which is printed once.
type newKey struct {
	access.KeyPair
	SecretAccessKey string `json:"secretAccessKey"`
	SessionToken    string `json:"sessionToken,omitempty"`
	Privileged      bool   `json:"privileged"`
}

func keyCreate(session *terminal.Session) *cobra.Command {
	var account, principal, sessionName string
	var privileged bool
	var valid time.Duration
	cmd := &cobra.Command{
		Use: "create", Short: "Make a key pair; its secret is shown once", Args: cobra.NoArgs,
		Example: "  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:root\n" +
			"  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:user/ann\n" +
			"  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:role/deployer --session 1h " +
			"--session-name ci",
	}
	cmd.Flags().StringVar(&account, "account", adminAccount, "account, 12 digits")
	cmd.Flags().StringVar(&principal, "principal", "", "principal ARN (default the account's user/admin)")
	cmd.Flags().BoolVar(&privileged, "privileged", false, "make the account privileged: its principals operate the region")
	cmd.Flags().DurationVar(&valid, "session", 0,
		"make temporary credentials, valid for this time, at most 12h; those of a role act as a session of the role")
	cmd.Flags().StringVar(&sessionName, "session-name", "", "name of the role's session (default atoll)")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if principal == "" {
			principal = "arn:aws:iam::" + account + ":user/admin"
		}
		return withKeys(session, cmd.Context(), func(ctx context.Context, keys *access.KeyStore) error {
			id := cluster.Account(account)
			if privileged {
				if err := keys.PutAccount(ctx, access.Account{ID: id, Privileged: true}); err != nil {
					return err
				}
			}
			created, err := createKey(ctx, keys, id, principal, sessionName, valid)
			if err != nil {
				return err
			}
			accounts, err := keys.Accounts(ctx)
			if err != nil {
				return err
			}
			provisioned := false
			for _, a := range accounts {
				created.Privileged = created.Privileged || a.ID == id && a.Privileged
				provisioned = provisioned || a.ID == id
			}
			return o.Print(session.Out, created, func(w io.Writer) {
				fmt.Fprintf(w, "access key id      %s\nsecret access key  %s\nprincipal          %s\n", created.AccessKeyID,
					created.SecretAccessKey, created.Principal)
				if created.SessionToken != "" {
					fmt.Fprintf(w, "session token      %s\nexpires            %s\n", created.SessionToken,
						created.ExpiresAt.Format(time.RFC3339))
				}
				fmt.Fprint(w, "\nThe secret is not shown again.\n")
				if !provisioned {
					fmt.Fprintf(w, "Account %s may do nothing yet: provision it with: atoll account create %s\n", account,
						account)
				}
			})
		})
	}
	return cmd
}

// createKey creates a key pair when valid is 0, and temporary credentials that expire after valid otherwise.
func createKey(ctx context.Context, keys *access.KeyStore, account cluster.Account, principal, sessionName string,
	valid time.Duration) (newKey, error) {
	if valid == 0 {
		if sessionName != "" {
			return newKey{}, errors.New("--session-name needs --session, such as --session 1h")
		}
		pair, secret, err := keys.Create(ctx, account, policy.Principal(principal))
		return newKey{KeyPair: pair, SecretAccessKey: secret}, err
	}
	if sessionName == "" && strings.Contains(principal, ":role/") {
		sessionName = "atoll"
	}
	s, err := keys.CreateSession(ctx, account, policy.Principal(principal), sessionName, valid)
	return newKey{KeyPair: s.KeyPair, SecretAccessKey: s.Secret, SessionToken: s.Token}, err
}
