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

func policyCreate(a *accountCaller) *cobra.Command {
	var file, description string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a policy from a file with statements of Cedar", Args: cobra.ExactArgs(1),
		Long: `Creates a policy. The region checks the statements against the schema of its API, and
names the position of each mistake. The policy has no effect before it is attached.`,
		Example: `  atoll policy create see-shop --file see-shop.cedar --description "read the cluster shop"
  echo 'permit (principal, action in ROSA::Action::"ReadOnly", resource);' | atoll policy create read --file -`,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the statements, - for standard input")
	cmd.Flags().StringVar(&description, "description", "", "description for people")
	_ = cmd.MarkFlagRequired("file")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := a.readPolicyFile(file)
		if err != nil {
			return err
		}
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			policy, err := in.CreatePolicy(ctx, platform.PolicyRequest{Name: args[0], Description: description, Policy: text})
			if err != nil {
				return adviseInvalid(err, file)
			}
			return o.Print(a.session.Out, policy, func(w io.Writer) {
				fmt.Fprintf(w, "policy %s created (id %s)\n", policy.Name, policy.PolicyID)
			})
		})
	}
	return cmd
}
