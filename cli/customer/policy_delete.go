package customer

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/client"
)

func policyDelete(a *accountCaller) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a policy; refused while it is attached", Args: cobra.ExactArgs(1),
		Example: "  atoll policy delete see-shop",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
				policy, err := a.findPolicy(ctx, in, args[0])
				if err != nil {
					return err
				}
				if err := in.DeletePolicy(ctx, policy.PolicyID); err != nil {
					if policy.Managed {
						return err
					}
					return a.adviseInUse(err, "atoll policy get "+policy.Name,
						"atoll policy detach "+policy.Name+" --principal ARN | --group NAME")
				}
				a.session.Printf("policy %s deleted\n", policy.Name)
				return nil
			})
		},
	}
}
