package customer

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func adminAdd(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{Use: "add ARN", Short: "Make a principal an administrator", Args: cobra.ExactArgs(1),
		Example: "  atoll admin add arn:aws:iam::123456789012:user/ann"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			admin, err := in.AddAdmin(ctx, args[0])
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, admin, func(w io.Writer) {
				fmt.Fprintf(w, "%s is an administrator\n", admin.PrincipalArn)
			})
		})
	}
	return cmd
}
