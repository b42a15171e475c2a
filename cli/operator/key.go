package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/services"
	"atoll.dev/cli/terminal"
	"atoll.dev/local"
	"atoll.dev/store"
)

// adminAccount is the privileged account of a new region's first key pair.
const (
	adminAccount   = "000000000000"
	adminPrincipal = "arn:aws:iam::" + adminAccount + ":user/admin"
)

func Key(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "Key pairs that sign requests", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Long: "Makes, lists and disables key pairs. It works on the region's database, so it runs where the region " +
			"does.",
	}
	cmd.AddCommand(keyCreate(session), keyList(session), keyDisable(session), keyNew(session), keyImport(session))
	return cmd
}

// withKeys calls f with the key store of the home.
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
	return f(store.WithActor(ctx, store.Actor{Principal: "system:cli"}), keys)
}

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
		Example: "  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:user/ann",
	}
	cmd.Flags().StringVar(&account, "account", adminAccount, "account, 12 digits")
	cmd.Flags().StringVar(&principal, "principal", "", "principal ARN (default the account's user/admin)")
	cmd.Flags().BoolVar(&privileged, "privileged", false, "make the account privileged: it may do everything")
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
			for _, a := range accounts {
				created.Privileged = created.Privileged || a.ID == account && a.Privileged
			}
			return o.Print(session.Out, created, func(w io.Writer) {
				fmt.Fprintf(
					w, "access key id      %s\nsecret access key  %s\nprincipal          %s\n\nThe secret is not "+
						"shown again.\n", pair.AccessKeyID, secret, pair.Principal)
				if !created.Privileged {
					fmt.Fprintf(w, "Account %s may do nothing yet: --privileged lets it do everything.\n", account)
				}
			})
		})
	}
	return cmd
}

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

// keyNew and keyImport make the first key pair for `up`: keyNew generates it, `up` saves it in the
// home, and keyImport then adds it to the region. An interrupted `up` so never leaves a key whose
// secret is lost.
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
				if err := keys.PutAccount(ctx, access.Account{ID: cred.Account, Privileged: true}); err != nil {
					return err
				}
				_, err := keys.Import(ctx, cred.AccessKeyID, cred.SecretAccessKey, cred.Account, cred.Principal)
				if errors.Is(err, store.ErrExists) {
					return nil
				}
				return err
			})
		},
	}
}
