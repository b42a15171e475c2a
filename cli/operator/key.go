package operator

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/api/audit"
	"atoll.dev/cli/services"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/remote"
	"atoll.dev/store"
)

// The privileged account of a new region, and the principal of its first key pair.
const (
	adminAccount   = "000000000000"
	adminPrincipal = "arn:aws:iam::" + adminAccount + ":user/admin"
)

// Key returns the command `atoll key`.
func Key(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Key pairs that sign requests: create, list, disable, enable, delete; the keys that seal them",
		Long: `Makes, lists, disables and deletes key pairs and temporary credentials. It works on the
region's database, so it runs on the region's machine.`,
		Example: `  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:user/ann
  atoll key list`,
	}
	cmd.AddCommand(keyCreate(session), keyList(session), keyDisable(session), keyEnable(session), keyDelete(session),
		keyNew(session), keyImport(session), keySeal(session))
	return cmd
}

// withKeys calls f with the key store of the region whose home the session names.
func withKeys(session *terminal.Session, ctx context.Context, f func(ctx context.Context,
	keys *access.KeyStore) error) error {
	home, err := session.Home()
	if err != nil {
		return err
	}
	dsn, sealKey, err := home.PlatformStore()
	if err != nil {
		return err
	}
	keys, done, err := services.OpenKeys(ctx, dsn, sealKey, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer done()
	return f(asDatabaseOperator(ctx, ""), keys)
}

// asDatabaseOperator returns a context for changes that this process makes in the region's database itself. Their audit
// records name the user who runs the command, and action unless it is "".
func asDatabaseOperator(ctx context.Context, action string) context.Context {
	return store.WithActor(ctx, store.Actor{Principal: "system:cli",
		Audit: audit.Request{Proof: audit.ByDatabase, ProofID: userOf(ctx), Operator: true, Action: action}.Encode()})
}

// userOf returns the name of the local user, for audit records.
func userOf(ctx context.Context) string { return remote.ActorOf(asOperator(ctx)).Principal }
