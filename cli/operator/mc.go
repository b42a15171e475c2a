package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
)

// ManagementCluster returns the command `atoll mc`.
func ManagementCluster(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "mc", Aliases: []string{"management-cluster"}, Args: terminal.RefuseUnknownVerb,
		RunE:  terminal.ShowHelp,
		Short: "Management clusters: register, join, cordon, drain, rebalance, revoke, list, delete",
		Example: `  atoll mc list
  atoll mc register edge-7 --label zone=north --capacity planes=40
  atoll mc join-token edge-7 --mqtt mqtt.r1.example:8883 --pki https://pki.r1.example:8443
  atoll mc cordon edge-7`}
	cmd.AddCommand(mcList(session), mcGet(session), mcOrphans(session), mcRegister(session), mcUpdate(session),
		mcDelete(session),
		mcStateCommand(session, "cordon", platform.ManagementClusterUpdateStateCordoned), mcStateCommand(session, "uncordon",
			platform.ManagementClusterUpdateStateReady),
		mcDrain(session), mcRebalance(session), mcLost(session), mcKubeconfig(session), mcBootstrap(session),
		mcJoinToken(session), mcRevoke(session), mcAllow(session))
	return cmd
}
