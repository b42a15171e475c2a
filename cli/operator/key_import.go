package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
	"atoll.dev/local"
	"atoll.dev/store"
)

// keyNew and keyImport make the first key pair for `up`: keyNew generates it, `up` saves it in the
// home, and keyImport then adds it to the region. So an interrupted `up` never leaves a
// key pair in the region whose secret is lost.
func keyNew(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "new", Hidden: true, Short: "Generate a key pair that is in no region yet",
		Args: cobra.NoArgs}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		id, secret, err := access.NewKeyPair()
		if err != nil {
			return err
		}
		return o.Print(session.Out, local.Credentials{AccessKeyID: id, SecretAccessKey: secret, Account: adminAccount,
			Principal: adminPrincipal}, func(io.Writer) {})
	}
	return cmd
}

func keyImport(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use:    "import FILE",
		Hidden: true,
		Short:  "Add a key pair to the region, and make its account privileged",
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var cred local.Credentials
			if err := json.Unmarshal(data, &cred); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return withKeys(session, cmd.Context(), func(ctx context.Context, keys *access.KeyStore) error {
				account := cluster.Account(cred.Account)
				if err := keys.PutAccount(ctx, access.Account{ID: account, Privileged: true}); err != nil {
					return err
				}
				_, err := keys.Import(ctx, cred.AccessKeyID, cred.SecretAccessKey, account, policy.Principal(cred.Principal))
				if errors.Is(err, store.ErrExists) {
					return nil
				}
				return err
			})
		},
	}
}
