package customer

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

// Policy returns the command `atoll policy`.
func Policy(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Aliases: []string{"policies"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Policies: create, update, list, get, attach, detach, check, delete",
		Long: `A policy has statements of Cedar that permit or forbid actions. It has an effect once it is
attached to a principal or a group. The region has managed policies in every account:
ReadOnly, ClusterAdmin, NodePoolAdmin, PolicyAdmin, Operator, AllActions. NAME is a
policy's name or its id.`,
		Example: `  atoll policy create see-shop --file see-shop.cedar
  atoll policy attach see-shop --principal arn:aws:iam::123456789012:user/ann
  atoll policy check --principal arn:aws:iam::123456789012:user/ann --action DescribeCluster --cluster shop`,
	}
	a := addAccountFlag(session, cmd)
	cmd.AddCommand(policyCreate(a), policyUpdate(a), policyList(a), policyGet(a), policyAttach(a), policyDetach(a),
		policyCheck(a), policyDelete(a))
	return cmd
}

// readPolicyFile reads the statements of a policy.
func (a *accountCaller) readPolicyFile(file string) (string, error) {
	text, err := a.session.ReadFile(file)
	return string(text), err
}

// adviseInvalid adds the name of the file to the error of invalid statements.
func adviseInvalid(err error, file string) error {
	if e, ok := errors.AsType[*remote.Error](err); ok && e.Code == "invalid-policy" {
		return fmt.Errorf("%s: %w", file, err)
	}
	return err
}

// policyTarget is the principal or the group that a policy is attached to, as the flags name it.
type policyTarget struct{ principal, group string }

// addTargetFlags gives cmd the flags --principal and --group, of which a caller gives one.
func addTargetFlags(cmd *cobra.Command) *policyTarget {
	t := &policyTarget{}
	cmd.Flags().StringVar(&t.principal, "principal", "", "ARN of a user or a role of the account")
	cmd.Flags().StringVar(&t.group, "group", "", "name or id of a group")
	cmd.MarkFlagsMutuallyExclusive("principal", "group")
	return t
}

// find returns the type and the id of the target.
func (t *policyTarget) find(ctx context.Context, a *accountCaller, in *client.Authorization) (
	kind platform.AttachmentRequestTargetType, id string, err error) {
	if t.group == "" {
		return platform.AttachmentRequestTargetTypeUser, t.principal, nil
	}
	group, err := a.findGroup(ctx, in, t.group)
	return platform.AttachmentRequestTargetTypeGroup, group.GroupID, err
}

// String returns the target for a message.
func (t *policyTarget) String() string {
	if t.group != "" {
		return "group " + t.group
	}
	return t.principal
}
