package customer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func policyCheck(a *accountCaller) *cobra.Command {
	var question platform.AuthorizationRequest
	var cluster string
	cmd := &cobra.Command{
		Use: "check --principal ARN --action ACTION", Args: cobra.NoArgs, DisableFlagsInUseLine: true,
		Short: "Show whether a principal may take an action, and which policies decide",
		Long: `Shows the decision that a request of another principal would get: ALLOW or DENY, the
reason, and the policies that decided. Nothing is executed. The exit code is 0 for both
decisions. With --cluster, the question is about that cluster and its tags; with
--resource also, about a node pool or a credential of the cluster.`,
		Example: `  atoll policy check --principal arn:aws:iam::123456789012:user/ann --action ListClusters
  atoll policy check --principal arn:aws:iam::123456789012:user/ann --action DescribeCluster --cluster shop
  atoll policy check --principal arn:aws:iam::123456789012:user/ann --action CreateCluster --tag env=dev -o json`,
	}
	cmd.Flags().StringVar(&question.Principal, "principal", "", "ARN of a principal of the account")
	cmd.Flags().StringVar(&question.Action, "action", "", "action, such as DescribeCluster")
	cmd.Flags().StringVar(&question.Resource, "resource", "",
		"resource, such as arn:aws:rosa:REGION:ACCOUNT:nodepool/ID (default * or the cluster)")
	cmd.Flags().StringVar(&cluster, "cluster", "", "name or id of a cluster of the caller's account")
	cmd.Flags().StringToStringVar(&question.ResourceTags, "tag", nil,
		"tag of the resource, k=v; repeatable (default those of the cluster)")
	cmd.Flags().StringVar(&question.Context.SourceIP, "source-ip", "", "address that the request comes from")
	_ = cmd.MarkFlagRequired("principal")
	_ = cmd.MarkFlagRequired("action")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cluster != "" && a.account != "" {
			return errors.New("--cluster is for the caller's own account; with --account, give --resource and --tag")
		}
		if cluster != "" {
			if err := a.askAboutCluster(cmd.Context(), &question, cluster); err != nil {
				return err
			}
		}
		question.Resource = cmp.Or(question.Resource, "*")
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			decision, err := in.Check(ctx, question)
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, decision, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %s\n", decision.Decision, cmp.Or(decision.Reason, "no reason"))
				if len(decision.Policies) > 0 {
					fmt.Fprintf(w, "policies: %s\n", strings.Join(decision.Policies, ", "))
				}
			})
		})
	}
	return cmd
}

// askAboutCluster completes a question with a cluster of the caller's account and its tags.
func (a *accountCaller) askAboutCluster(ctx context.Context, question *platform.AuthorizationRequest,
	name string) error {
	return callRegion(a.session, ctx, func(ctx context.Context, api *client.Client) error {
		found, err := findCluster(ctx, api, name)
		if err != nil {
			return err
		}
		question.ClusterID = found.ID
		if question.ResourceTags == nil {
			question.ResourceTags = found.Spec.Tags
		}
		if question.Resource == "" {
			question.Resource = "arn:aws:rosa::" + found.Account + ":cluster/" + found.ID
		}
		return nil
	})
}
