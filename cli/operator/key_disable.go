package operator

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
	"atoll.dev/store"
)

func keyDisable(session *terminal.Session) *cobra.Command {
	return keyChangeCommand(session, &cobra.Command{
		Use:   "disable ACCESS_KEY_ID",
		Short: "Disable a key pair; within a second the region refuses its signatures and ends its watches",
	}, "disabled", (*access.KeyStore).Disable)
}

func keyEnable(session *terminal.Session) *cobra.Command {
	return keyChangeCommand(session, &cobra.Command{
		Use:   "enable ACCESS_KEY_ID",
		Short: "Enable a disabled key pair",
	}, "enabled", (*access.KeyStore).Enable)
}

func keyDelete(session *terminal.Session) *cobra.Command {
	return keyChangeCommand(session, &cobra.Command{
		Use:   "delete ACCESS_KEY_ID",
		Short: "Delete a key pair, with the effect of disable",
	}, "deleted", func(keys *access.KeyStore, ctx context.Context, id string) (access.KeyPair, error) {
		return access.KeyPair{AccessKeyID: id}, keys.Delete(ctx, id)
	})
}

// keyChangeCommand adds arguments, flags and the run function to a command that changes one key pair. done is the past
// participle that the output has: "disabled".
func keyChangeCommand(session *terminal.Session, cmd *cobra.Command, done string,
	change func(*access.KeyStore, context.Context, string) (access.KeyPair, error)) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.Example = "  atoll key " + cmd.Name() + " AKIAIOSFODNN7EXAMPLE"
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withKeys(session, cmd.Context(), func(ctx context.Context, keys *access.KeyStore) error {
			pair, err := change(keys, ctx, args[0])
			if errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("no key pair %s; see `atoll key list`", args[0])
			}
			if err != nil {
				return err
			}
			shown := any(pair)
			if done == "deleted" {
				shown = map[string]string{"accessKeyId": args[0]}
			}
			return o.Print(session.Out, shown, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", args[0], done) })
		})
	}
	return cmd
}
