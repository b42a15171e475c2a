package customer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

// accountCaller calls the Platform API about the administrators, groups and policies of one account: the
// caller's, or that of the flag --account.
type accountCaller struct {
	session *terminal.Session
	account client.AccountID
}

// addAccountFlag gives cmd and its verbs the flag --account.
func addAccountFlag(session *terminal.Session, cmd *cobra.Command) *accountCaller {
	a := &accountCaller{session: session}
	cmd.PersistentFlags().StringVar((*string)(&a.account), "account", "",
		"account, 12 digits; for operators (default the caller's own account)")
	return a
}

var accountPattern = regexp.MustCompile(`^[0-9]{12}$`)

// call calls f with the Authorization of the account, and explains the error that f returns.
func (a *accountCaller) call(ctx context.Context, f func(context.Context, *client.Authorization) error) error {
	if a.account != "" && !accountPattern.MatchString(string(a.account)) {
		return fmt.Errorf("--account %q is not 12 digits", a.account)
	}
	return callRegion(a.session, ctx, func(ctx context.Context, api *client.Client) error {
		return f(ctx, api.Authorization(a.account))
	})
}

// listCommand completes a command without arguments that reads a list of the account and prints it, as a table or with
// --output.
func listCommand[T any](a *accountCaller, cmd *cobra.Command,
	read func(*client.Authorization, context.Context) ([]T, error), printTable func(io.Writer, []T)) *cobra.Command {
	cmd.Args = cobra.NoArgs
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			list, err := read(in, ctx)
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, list, func(w io.Writer) { printTable(w, list) })
		})
	}
	return cmd
}

// withAccountFlag returns the text of a command that a message proposes, for the same account.
func (a *accountCaller) withAccountFlag(command string) string {
	if a.account != "" {
		command += " --account " + string(a.account)
	}
	return "`" + command + "`"
}

// adviseNotFound adds to an error with status 404 the command that lists what exists.
func (a *accountCaller) adviseNotFound(err error, command string) error {
	if remote.StatusOf(err) != http.StatusNotFound {
		return err
	}
	return fmt.Errorf("%w; %s shows what there is", err, a.withAccountFlag(command))
}

// findPolicy finds a policy by its id or name.
func (a *accountCaller) findPolicy(ctx context.Context, in *client.Authorization, name string) (client.Policy, error) {
	policy, err := in.FindPolicy(ctx, name)
	return policy, a.adviseNotFound(err, "atoll policy list")
}

// adviseInUse adds to the error of a policy or group that is in use the commands that end the use.
func (a *accountCaller) adviseInUse(err error, show, detach string) error {
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Code != "policy-in-use" && e.Code != "group-in-use" {
		return err
	}
	return fmt.Errorf("%w: %s shows them, %s deletes one", err, a.withAccountFlag(show), a.withAccountFlag(detach))
}
