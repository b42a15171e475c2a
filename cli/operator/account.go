package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// Account returns the command `atoll account`.
func Account(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "account", Aliases: []string{"accounts"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Accounts of customers and operators: create, list, get, delete",
		Long: `Provisions accounts. The principals of an account that is not provisioned may do nothing.
The root principal of a new account adds the first administrator with "atoll admin add".`,
		Example: `  atoll account create 123456789012
  atoll key create --account 123456789012 --principal arn:aws:iam::123456789012:root`,
	}
	cmd.AddCommand(accountCreate(session), accountList(session), accountGet(session), accountDelete(session))
	return cmd
}

// callAccounts calls f with a client of the Platform API. It adds the next step of the operator to the error of f. The
// error of a missing account names id.
func callAccounts(session *terminal.Session, ctx context.Context, id client.AccountID,
	f func(context.Context, *client.Client) error) error {
	api, err := session.Client()
	if err != nil {
		return err
	}
	defer api.Close()
	err = f(ctx, api)
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case !ok:
		return err
	case e.Status == http.StatusNotFound:
		return fmt.Errorf("there is no account %q; see: atoll account list", id)
	case e.Status == http.StatusForbidden:
		return fmt.Errorf("%w; accounts are for operators; see: atoll whoami", err)
	}
	return err
}

// accountKind returns "privileged" for an account whose principals operate the region, and "customer" otherwise.
func accountKind(account platform.Account) string {
	if account.Privileged {
		return "privileged"
	}
	return "customer"
}

// accountTable prints accounts as text.
func accountTable(w io.Writer, accounts ...platform.Account) {
	rows := [][]string{{"ACCOUNT", "KIND", "CREATED BY", "AGE"}}
	for _, account := range accounts {
		rows = append(rows, []string{account.AccountID, accountKind(account), terminal.DashIfEmpty(account.CreatedBy),
			terminal.FormatAge(account.CreatedAt, time.Now())})
	}
	terminal.Table(w, rows)
}
