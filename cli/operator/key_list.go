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
	cmd := &cobra.Command{Use: "list", Short: "List key pairs, without secrets", Args: cobra.NoArgs,
		Example: "  atoll key list -o json"}
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
				rows := [][]string{{"ACCESS KEY ID", "ACCOUNT", "PRINCIPAL", "STATE", "AGE", "LAST USED"}}
				for _, p := range pairs {
					rows = append(rows, []string{p.AccessKeyID, string(p.Account), string(p.Principal), keyState(p, time.Now()),
						terminal.FormatAge(p.CreatedAt, time.Now()), terminal.FormatAge(p.LastUsedAt, time.Now())})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}

// keyState returns the state of a key pair as text: disabled, enabled, expired, or until when it is valid.
func keyState(p access.KeyPair, now time.Time) string {
	switch {
	case p.Disabled:
		return "disabled"
	case p.ExpiresAt.IsZero():
		return "enabled"
	case now.Before(p.ExpiresAt):
		return "until " + p.ExpiresAt.UTC().Format(time.RFC3339)
	}
	return "expired"
}
