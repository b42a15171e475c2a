package customer

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func policyList(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the policies of the account, the managed ones first", Args: cobra.NoArgs,
		Long: `Lists the policies of the account, the managed ones first. With --principal or --group it
lists the policies that are attached to that principal or group.`,
		Example: "  atoll policy list\n  atoll policy list --group web-team",
	}
	target := addTargetFlags(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			policies, err := in.Policies(ctx)
			if err == nil && *target != (policyTarget{}) {
				policies, err = a.policiesAttachedTo(ctx, in, target, policies)
			}
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, policies, func(w io.Writer) {
				rows := [][]string{{"NAME", "ID", "KIND", "AGE", "DESCRIPTION"}}
				for _, policy := range policies {
					kind, age := "managed", "-"
					if !policy.Managed {
						kind = "own"
					}
					if policy.CreatedAt != nil {
						age = terminal.FormatAge(*policy.CreatedAt, time.Now())
					}
					rows = append(rows, []string{policy.Name, policy.PolicyID, kind, age, terminal.DashIfEmpty(policy.Description)})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}

// policiesAttachedTo returns the policies of a list that are attached to a target.
func (a *accountCaller) policiesAttachedTo(ctx context.Context, in *client.Authorization, target *policyTarget,
	policies []platform.Policy) ([]platform.Policy, error) {
	kind, id, err := target.find(ctx, a, in)
	if err != nil {
		return nil, err
	}
	attachments, err := in.Attachments(ctx, client.AttachmentQuery{TargetType: kind, TargetID: id})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(policies, func(policy platform.Policy) bool {
		return !slices.ContainsFunc(attachments, func(attachment platform.Attachment) bool {
			return attachment.PolicyID == policy.PolicyID
		})
	}), nil
}
