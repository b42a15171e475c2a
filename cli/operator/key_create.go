package operator

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
)

// newKey is a key pair with its secret, which is printed once.
type newKey struct {
	access.KeyPair
	SecretAccessKey string `json:"secretAccessKey"`
	Privileged      bool   `json:"privileged"`
}

func keyCreate(session *terminal.Session) *cobra.Command {
	var account, principal string
	var privileged bool
	cmd := &cobra.Command{
		Use: "create", Short: "Make a key pair; its secret is shown once", Args: cobra.NoArgs,
		Example: "  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:root\n" +
			"  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:user/ann",
	}
	cmd.Flags().StringVar(&account, "account", adminAccount, "account, 12 digits")
	cmd.Flags().StringVar(&principal, "principal", "", "principal ARN (default the account's user/admin)")
	cmd.Flags().BoolVar(&privileged, "privileged", false, "make the account privileged: its principals operate the region")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if principal == "" {
			principal = "arn:aws:iam::" + account + ":user/admin"
		}
		return withKeys(session, cmd.Context(), func(ctx context.Context, keys *access.KeyStore) error {
			if privileged {
				if err := keys.PutAccount(ctx, access.Account{ID: account, Privileged: true}); err != nil {
					return err
				}
			}
			pair, secret, err := keys.Create(ctx, account, principal)
			if err != nil {
				return err
			}
			accounts, err := keys.Accounts(ctx)
			if err != nil {
				return err
			}
			created := newKey{KeyPair: pair, SecretAccessKey: secret}
			provisioned := false
			for _, a := range accounts {
				created.Privileged = created.Privileged || a.ID == account && a.Privileged
				provisioned = provisioned || a.ID == account
			}
			return o.Print(session.Out, created, func(w io.Writer) {
				fmt.Fprintf(
					w, "access key id      %s\nsecret access key  %s\nprincipal          %s\n\nThe secret is not "+
						"shown again.\n", pair.AccessKeyID, secret, pair.Principal)
				if !provisioned {
					fmt.Fprintf(w, "Account %s may do nothing yet: provision it with: atoll account create %s\n", account,
						account)
				}
			})
		})
	}
	return cmd
}
