package customer

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func policyUpdate(a *accountCaller) *cobra.Command {
	var file, description string
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Replace the statements of a policy, also while it is attached",
		Args: cobra.ExactArgs(1), Example: "  atoll policy update see-shop --file see-shop.cedar",
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the statements, - for standard input")
	cmd.Flags().StringVar(&description, "description", "", "description for people (default the present one)")
	_ = cmd.MarkFlagRequired("file")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := a.readPolicyFile(file)
		if err != nil {
			return err
		}
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			found, err := a.findPolicy(ctx, in, args[0])
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("description") {
				description = found.Description
			}
			policy, err := in.ReplacePolicy(ctx, found.PolicyID, platform.PolicyRequest{Name: found.Name,
				Description: description, Policy: text}, found.ETag)
			if err != nil {
				return adviseInvalid(err, file)
			}
			return o.Print(a.session.Out, policy, func(w io.Writer) { fmt.Fprintf(w, "policy %s updated\n", policy.Name) })
		})
	}
	return cmd
}
