package operator

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
)

func keyList(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List key pairs, without secrets", Args: cobra.NoArgs}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withKeys(session, cmd.Context(), func(ctx context.Context, keys *access.KeyStore) error {
			pairs, err := keys.List(ctx)
			if err != nil {
				return err
			}
			if pairs == nil {
				pairs = []access.KeyPair{}
			}
			return o.Print(session.Out, pairs, func(w io.Writer) {
				rows := [][]string{{"ACCESS KEY ID", "ACCOUNT", "PRINCIPAL", "STATE", "AGE"}}
				for _, p := range pairs {
					state := "enabled"
					if p.Disabled {
						state = "disabled"
					}
					rows = append(rows, []string{p.AccessKeyID, p.Account, p.Principal, state,
						terminal.Ago(p.CreatedAt, time.Now())})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}
