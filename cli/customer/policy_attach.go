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

func policyAttach(a *authorizer) *cobra.Command {
	cmd := &cobra.Command{
		Use: "attach NAME --principal ARN | --group NAME", Args: cobra.ExactArgs(1),
		Short:                 "Attach a policy to a principal or a group; it has an effect within a second",
		DisableFlagsInUseLine: true,
		Example: `  atoll policy attach ReadOnly --principal arn:aws:iam::123456789012:user/ann
  atoll policy attach see-shop --group web-team
  atoll policy attach ReadOnly --group web-team --account 123456789012   # an operator`,
	}
	target := addTargetFlags(cmd)
	cmd.MarkFlagsOneRequired("principal", "group")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			policy, err := a.findPolicy(ctx, in, args[0])
			if err != nil {
				return err
			}
			kind, id, err := target.find(ctx, a, in)
			if err != nil {
				return err
			}
			attachment, err := in.Attach(ctx, platform.AttachmentRequest{PolicyID: policy.PolicyID, TargetType: kind,
				TargetID: id})
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, attachment, func(w io.Writer) {
				fmt.Fprintf(w, "policy %s attached to %s\n", policy.Name, target)
			})
		})
	}
	return cmd
}
