package customer

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

// Quota returns the command `atoll quota` with the verbs of customers.
func Quota(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "quota", Aliases: []string{"quotas"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Quotas of accounts: how many clusters, node pools, nodes and works; list, get, set",
		Long: `Shows and sets the limits of an account, and shows their use:

  clusters    clusters
  node_pools  node pools of all clusters
  nodes       nodes that the node pools can have: their replicas, or the maximum of
              their autoscaling
  works       objects that the region delivers to management clusters: two for a
              cluster, one for a node pool and one for a credential

The region refuses a creation or a change that needs more than a quota has left.
An object under deletion counts until it is gone. "list" is about your own account;
"get" and "set" are for operators.`,
		Example: `  atoll quota list
  atoll quota set --account 123456789012 clusters=20`,
	}
	cmd.AddCommand(quotaList(session))
	return cmd
}
