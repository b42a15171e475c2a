package operator

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
	"atoll.dev/internal/pause"
)

func keySeal(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "seal", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "The keys that seal secrets of key pairs and links: status, rotate, drop",
		Long: `The key file of the Platform API (--seal-key) has one key in each line. The Platform API encrypts
(seals) new secrets with the first key and decrypts secrets with any of them. A rotation adds a key
and makes it the first one. The Platform API then encrypts all secrets with it in the background, and
after that the old key can be dropped.`,
		Example: `  atoll key seal rotate
  atoll key seal status
  atoll key seal drop 0a1b2c3d4e5f`,
	}
	cmd.AddCommand(keySealStatus(session), keySealRotate(session), keySealDrop(session))
	return cmd
}

func keySealStatus(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show the keys, and how many documents are sealed with each",
		Args: cobra.NoArgs, Example: "  atoll key seal status -o json"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withKeys(session, cmd.Context(), func(ctx context.Context, keys *access.KeyStore) error {
			uses, err := keys.SealKeys(ctx)
			if err != nil {
				return err
			}
			return o.Print(session.Out, uses, func(w io.Writer) {
				rows := [][]string{{"KEY", "STATE", "DOCUMENTS", "SEALED AGAIN", "PLACE"}}
				for _, u := range uses {
					rows = append(rows, []string{u.ID, sealKeyState(u), strconv.Itoa(u.Documents), strconv.Itoa(u.Resealed),
						terminal.DashIfEmpty(string(u.Place))})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}

// sealKeyState returns what a key is used for now, as text.
func sealKeyState(u access.SealKeyUse) string {
	switch {
	case u.Seals:
		return "seals"
	case u.IsMissing:
		return "missing in the file"
	case u.Documents == 0:
		return "can be dropped"
	}
	return "opens"
}

func keySealRotate(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "rotate", Short: "Seal with a new key from now on", Args: cobra.NoArgs,
		Long: `Adds a new key to the key file, and makes it the first when all processes have read it. Then the
Platform API seals all secrets again in the background. The audit log has a record of the rotation.
A rotation does not protect a key pair whose secret has leaked: disable that key pair.`,
		Example: "  atoll key seal rotate"}
	o := terminal.AddOutputFlag(cmd)
	place := cmd.Flags().String("kms", "", "unix:///PATH: a KMS v2 plugin of Kubernetes wraps the new key, and the file "+
		"has it wrapped; file: the file has the key itself (default: as the present key)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withSealKeys(session, cmd.Context(), "RotateSealKey", func(ctx context.Context, keys *access.KeyStore) error {
			id, err := keys.AddSealKey(ctx, access.KeyPlace(*place))
			if err != nil {
				return err
			}
			if !pause.For(ctx, keyFileRead) {
				return fmt.Errorf("interrupted: key %s was added, and no secret is sealed with it yet; "+
					"drop it (atoll key seal drop %s), and rotate again", id, id)
			}
			if err := keys.PromoteSealKey(ctx, id); err != nil {
				return err
			}
			return o.Print(session.Out, access.SealKeyUse{ID: id, Seals: true}, func(w io.Writer) {
				fmt.Fprintf(w, "%s seals from now on. When `atoll key seal status` shows that the old key can be dropped, "+
					"do so: atoll key seal drop KEY\n", id)
			})
		})
	}
	return cmd
}

func keySealDrop(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "drop KEY", Short: "Remove a key with which no secret is sealed any more",
		Args: cobra.ExactArgs(1), Example: "  atoll key seal drop 0a1b2c3d4e5f"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := sealKeyFile(session)
		if err != nil {
			return err
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		// A process that has not read the file since its last change may still seal with the key.
		if !pause.For(cmd.Context(), min(keyFileRead, max(0, keyFileRead-time.Since(info.ModTime())))) {
			return cmd.Context().Err()
		}
		return withSealKeys(session, cmd.Context(), "DropSealKey", func(ctx context.Context, keys *access.KeyStore) error {
			if err := keys.DropSealKey(ctx, args[0]); err != nil {
				return err
			}
			return o.Print(session.Out, map[string]string{"id": args[0]}, func(w io.Writer) {
				fmt.Fprintf(w, "%s dropped\n", args[0])
			})
		})
	}
	return cmd
}

// withSealKeys is withKeys for a command that changes the key file. The audit record of the change names action.
func withSealKeys(session *terminal.Session, ctx context.Context, action string, f func(ctx context.Context,
	keys *access.KeyStore) error) error {
	return withKeys(session, ctx, func(ctx context.Context, keys *access.KeyStore) error {
		return f(asDatabaseOperator(ctx, action), keys)
	})
}

// sealKeyFile returns the key file of the region on this machine.
func sealKeyFile(session *terminal.Session) (string, error) {
	home, err := session.Home()
	if err != nil {
		return "", err
	}
	_, file, err := home.PlatformStore()
	return file, err
}
