package customer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// Link returns the command `atoll link`.
func Link(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "link", Aliases: []string{"links"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Links of people of the issuer to principals of an account: create, codes, withdraw, redeem, list, delete",
		Long: `A person who signs in with "atoll login" is the principal that a link names. An administrator makes a code
for a principal, and the person redeems it, once. The region refuses the token of a person without a link.`,
		Example: `  atoll link create --principal arn:aws:iam::123456789012:user/ann > code   # an administrator
  atoll login && atoll link redeem < code                                     # ann
  atoll link codes                                                            # codes that nobody has redeemed`,
	}
	a := addAccountFlag(session, cmd)
	cmd.AddCommand(linkCreate(a), linkCodes(a), linkWithdraw(a), linkRedeem(session), linkList(a), linkDelete(a))
	return cmd
}

func linkCreate(a *accountCaller) *cobra.Command {
	var r platform.LinkCodeRequest
	var valid time.Duration
	cmd := &cobra.Command{
		Use: "create", Args: cobra.NoArgs, Short: "Make a code with which one person links to a principal, once",
		Long: `Makes a code and prints it; it is not shown again. The first person who redeems it acts as the principal from
then on: send it to that person over a channel that nobody else can read.`,
		Example: `  atoll link create --principal arn:aws:iam::123456789012:user/ann
  atoll link create --account 123456789012 --principal arn:aws:iam::123456789012:user/boss --admin   # an operator`,
	}
	cmd.Flags().StringVar(&r.PrincipalArn, "principal", "", "ARN of the principal, a user or the root of the account")
	cmd.Flags().BoolVar(&r.Admin, "admin", false, "make the principal an administrator of the account")
	cmd.Flags().DurationVar(&valid, "valid", 24*time.Hour, "how long the code can be redeemed, at most 168h")
	_ = cmd.MarkFlagRequired("principal")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if valid < time.Second {
			return fmt.Errorf("--valid %s is less than a second", valid)
		}
		r.ValidSeconds = int(valid.Seconds())
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			code, err := in.CreateLinkCode(ctx, r)
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, code, func(w io.Writer) {
				fmt.Fprintln(w, code.Code)
				fmt.Fprintf(a.session.Err, "one person links himself to %s with it until %s: atoll link redeem\n",
					code.PrincipalArn, code.ExpiresAt.Format(time.RFC3339))
			})
		})
	}
	return cmd
}

// maxCodeLine bounds what `atoll link redeem` reads.
const maxCodeLine = 256

func linkRedeem(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "redeem", Args: cobra.NoArgs, Short: "Link yourself to an account, by a code from standard input",
		Long:    `Reads a code from standard input and links the identity of "atoll login" by it.`,
		Example: "  atoll link redeem < code",
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		fmt.Fprint(session.Err, "code: ")
		line, err := bufio.NewReader(io.LimitReader(session.In, maxCodeLine)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading the code: %w", err)
		}
		fmt.Fprintln(session.Err)
		code := strings.TrimSpace(line)
		if code == "" {
			return errors.New("standard input has no code; an administrator makes one with: atoll link create")
		}
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			link, err := api.RedeemLink(ctx, code)
			if err != nil {
				return err
			}
			return o.Print(session.Out, link, func(w io.Writer) { fmt.Fprintf(w, "you are %s\n", link.PrincipalArn) })
		})
	}
	return cmd
}

func linkList(a *accountCaller) *cobra.Command {
	return listCommand(a, &cobra.Command{Use: "list", Short: "List the links of the account",
		Example: "  atoll link list -o json"}, (*client.Authorization).Links, printLinks)
}

func printLinks(w io.Writer, links []platform.Link) {
	rows := [][]string{{"LINK", "PRINCIPAL", "SUBJECT", "ISSUER", "AGE"}}
	for _, l := range links {
		rows = append(rows, []string{l.ID, l.PrincipalArn, l.Subject, l.Issuer, terminal.FormatAge(l.CreatedAt, time.Now())})
	}
	terminal.Table(w, rows)
}

func linkDelete(a *accountCaller) *cobra.Command {
	return &cobra.Command{
		Use: "delete LINK", Short: "Remove a link: the region then refuses the person's tokens", Args: cobra.ExactArgs(1),
		Long: `Removes a link. Requests with a token of the person are refused within a second, and open watches end.
The principal keeps its policies, and its key pairs if it has some. Link codes that name it or that it
created are withdrawn.`,
		Example: "  atoll link delete link-3f2a...",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
				if err := in.DeleteLink(ctx, args[0]); err != nil {
					return a.adviseNotFound(err, "atoll link list")
				}
				a.session.Printf("%s is removed\n", args[0])
				return nil
			})
		},
	}
}
