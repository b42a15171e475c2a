package customer

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/client"
)

func policyDetach(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{
		Use: "detach NAME --principal ARN | --group NAME", Args: cobra.ExactArgs(1),
		Short:                 "Detach a policy from a principal or a group; its effect ends within a second",
		DisableFlagsInUseLine: true,
		Example: `  atoll policy detach see-shop --principal arn:aws:iam::123456789012:user/ann
  atoll policy detach see-shop --group web-team`,
	}
	return onTarget(a, cmd, func(ctx context.Context, in *client.Authorization, chosen policyOnTarget) error {
		attachments, err := in.Attachments(ctx, client.AttachmentQuery{PolicyID: chosen.policy.PolicyID,
			TargetType: chosen.kind, TargetID: chosen.id})
		if err != nil {
			return err
		}
		if len(attachments) == 0 {
			return fmt.Errorf("policy %s is not attached to %s; %s shows its attachments", chosen.policy.Name,
				chosen.target, a.withAccountFlag("atoll policy get "+chosen.policy.Name))
		}
		for _, attachment := range attachments {
			if err := in.Detach(ctx, attachment.AttachmentID); err != nil {
				return err
			}
		}
		a.session.Printf("policy %s detached from %s\n", chosen.policy.Name, chosen.target)
		return nil
	})
}
