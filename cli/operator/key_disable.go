package operator

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
	"atoll.dev/store"
)

func keyDisable(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use:   "disable ACCESS_KEY_ID",
		Short: "Disable a key pair; the region refuses its signatures within a second",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withKeys(session, cmd.Context(), func(ctx context.Context, keys *access.KeyStore) error {
				if _, err := keys.Disable(ctx, args[0]); errors.Is(err, store.ErrNotFound) {
					return fmt.Errorf("no key pair %s; see `atoll key list`", args[0])
				} else if err != nil {
					return err
				}
				session.Printf("%s disabled\n", args[0])
				return nil
			})
		},
	}
}
