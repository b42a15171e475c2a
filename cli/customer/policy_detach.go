package customer

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/client"
)

func policyDetach(a *authorizer) *cobra.Command {
	cmd := &cobra.Command{
		Use: "detach NAME --principal ARN | --group NAME", Args: cobra.ExactArgs(1),
		Short:                 "Detach a policy from a principal or a group; its effect ends within a second",
		DisableFlagsInUseLine: true,
		Example: `  atoll policy detach see-shop --principal arn:aws:iam::123456789012:user/ann
  atoll policy detach see-shop --group web-team`,
	}
	target := addTargetFlags(cmd)
	cmd.MarkFlagsOneRequired("principal", "group")
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
			attachments, err := in.Attachments(ctx, client.AttachmentQuery{PolicyID: policy.PolicyID, TargetType: kind,
				TargetID: id})
			if err != nil {
				return err
			}
			if len(attachments) == 0 {
				return fmt.Errorf("policy %s is not attached to %s; %s shows its attachments", policy.Name, target,
					a.hint("atoll policy get "+policy.Name))
			}
			for _, attachment := range attachments {
				if err := in.Detach(ctx, attachment.AttachmentID); err != nil {
					return err
				}
			}
			a.session.Printf("policy %s detached from %s\n", policy.Name, target)
			return nil
		})
	}
	return cmd
}
