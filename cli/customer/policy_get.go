package customer

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// attachedPolicy is a policy with its attachments.
type attachedPolicy struct {
	platform.Policy
	Attachments []platform.Attachment `json:"attachments"`
}

func policyGet(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a policy, its statements, and whom it is attached to", Args: cobra.ExactArgs(1),
		Example: "  atoll policy get see-shop\n  atoll policy get see-shop -o json | jq -r .policy",
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			policy, err := a.findPolicy(ctx, in, args[0])
			if err != nil {
				return err
			}
			attachments, err := in.Attachments(ctx, client.AttachmentQuery{PolicyID: policy.PolicyID})
			if err != nil {
				return err
			}
			groups, err := groupNames(ctx, in, attachments)
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, attachedPolicy{policy.Policy, attachments}, func(w io.Writer) {
				rows := [][]string{{"Name", policy.Name}, {"ID", policy.PolicyID},
					{"Description", terminal.DashIfEmpty(policy.Description)}}
				for _, attachment := range attachments {
					target := attachment.TargetID
					if name, isGroup := groups[target]; isGroup {
						target = "group " + name
					}
					rows = append(rows, []string{"Attached to", target})
				}
				terminal.Table(w, rows)
				fmt.Fprintf(w, "\n%s\n", strings.TrimRight(policy.Policy.Policy, "\n"))
			})
		})
	}
	return cmd
}

// groupNames returns the names of the groups among the targets of attachments, by their ids.
func groupNames(ctx context.Context, in *client.Authorization, attachments []platform.Attachment) (map[string]string,
	error) {
	names := map[string]string{}
	for _, attachment := range attachments {
		if attachment.TargetType == platform.AttachmentTargetTypeGroup {
			names[attachment.TargetID] = attachment.TargetID
		}
	}
	if len(names) == 0 {
		return names, nil
	}
	groups, err := in.Groups(ctx)
	for _, group := range groups {
		if _, isTarget := names[group.GroupID]; isTarget {
			names[group.GroupID] = group.Name
		}
	}
	return names, err
}
