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

func policyAttach(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{
		Use: "attach NAME --principal ARN | --group NAME", Args: cobra.ExactArgs(1),
		Short:                 "Attach a policy to a principal or a group; it has an effect within a second",
		DisableFlagsInUseLine: true,
		Example: `  atoll policy attach ReadOnly --principal arn:aws:iam::123456789012:user/ann
  atoll policy attach see-shop --group web-team
  atoll policy attach ReadOnly --group web-team --account 123456789012   # an operator`,
	}
	o := terminal.AddOutputFlag(cmd)
	return onTarget(a, cmd, func(ctx context.Context, in *client.Authorization, chosen policyOnTarget) error {
		attachment, err := in.Attach(ctx, platform.AttachmentRequest{PolicyID: chosen.policy.PolicyID,
			TargetType: chosen.kind, TargetID: chosen.id})
		if err != nil {
			return err
		}
		return o.Print(a.session.Out, attachment, func(w io.Writer) {
			fmt.Fprintf(w, "policy %s attached to %s\n", chosen.policy.Name, chosen.target)
		})
	})
}

// policyOnTarget has the arguments of attach and detach: a policy, and a principal or group.
type policyOnTarget struct {
	policy client.Policy
	target *policyTarget
	kind   platform.AttachmentRequestTargetType
	id     string // of the target
}

// onTarget completes a command with the argument POLICY and the flags of a target: it finds the two and calls do.
func onTarget(a *accountCaller, cmd *cobra.Command,
	do func(context.Context, *client.Authorization, policyOnTarget) error) *cobra.Command {
	chosen := policyOnTarget{target: addTargetFlags(cmd)}
	cmd.MarkFlagsOneRequired("principal", "group")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) (err error) {
			if chosen.policy, err = a.findPolicy(ctx, in, args[0]); err != nil {
				return err
			}
			if chosen.kind, chosen.id, err = chosen.target.find(ctx, a, in); err != nil {
				return err
			}
			return do(ctx, in, chosen)
		})
	}
	return cmd
}
