package customer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

// Cluster returns the command `atoll cluster`.
func Cluster(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cluster", Aliases: []string{"clusters"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Clusters: create, watch, use, hibernate, upgrade, restore, rotate, trust, protect, delete",
		Long: `Kubernetes clusters that the region hosts for the caller's account: each has a control
plane of its own. NAME is a cluster's name or its id.`,
		Example: `  atoll cluster create demo --node-pool name=workers,replicas=2,instance-type=m6a.xlarge --wait
  atoll cluster kubeconfig demo --out demo.kubeconfig && kubectl --kubeconfig demo.kubeconfig get nodes
  atoll cluster delete demo --wait`,
	}
	cmd.AddCommand(
		clusterCreate(session), clusterList(session), clusterGet(session), clusterWatch(session), clusterEvents(session),
		clusterStatuses(session), clusterKubeconfig(session), clusterCredentials(session), clusterHibernate(session),
		clusterWake(session), clusterUpgrade(session), clusterRollback(session),
		clusterProtect(session), clusterUnprotect(session),
		clusterTrust(session), clusterDistrust(session), clusterBackups(session), clusterRestore(session),
		clusterRotate(session), clusterAudit(session), clusterDelete(session),
	)
	return cmd
}

// callRegion calls f with a client of the Platform API, and explains the error that f returns.
func callRegion(session *terminal.Session, ctx context.Context, f func(context.Context, *client.Client) error) error {
	api, err := session.Client()
	if err != nil {
		return err
	}
	defer api.Close()
	return explainError(f(ctx, api))
}

// callCluster finds a cluster by its id or its name and calls f with it, as callRegion.
func callCluster(session *terminal.Session, ctx context.Context, name string,
	f func(context.Context, *client.Client, client.Cluster) error) error {
	return callRegion(session, ctx, func(ctx context.Context, api *client.Client) error {
		cluster, err := findCluster(ctx, api, name)
		if err != nil {
			return err
		}
		return f(ctx, api, cluster)
	})
}

// explainError adds to an error of the Platform API every field that is wrong and the next step for
// the caller. Other errors are returned unchanged.
func explainError(err error) error {
	e, ok := errors.AsType[*remote.Error](err)
	if !ok {
		return err
	}
	var more strings.Builder
	for _, f := range e.Fields {
		if len(e.Fields) > 1 || !strings.Contains(e.Reason, f.Message) {
			fmt.Fprintf(&more, "\n  %s: %s", terminal.OneLine(f.Field), terminal.OneLine(f.Message))
		}
	}
	advice := ""
	switch {
	case e.Code == remote.CodeUnreachable:
		advice = "; is the region up? See `atoll status`"
	case e.Quota != nil:
	case e.Status == http.StatusForbidden:
		advice = "; `atoll whoami` shows who you are"
	case e.Code == "CLUSTERS-MGMT-DELETE-005":
		advice = "; that is `atoll cluster unprotect NAME`"
	case e.Status == http.StatusGone:
		advice = "; leave --cursor out to begin with what exists"
	case e.Status == http.StatusPreconditionFailed:
		advice = "; it has changed meanwhile: get it, and decide again"
	}
	if advice == "" && more.Len() == 0 {
		return err
	}
	return fmt.Errorf("%w%s%s", err, advice, more.String())
}

// findCluster finds a cluster by its id or its name. Names are unique in an account, except that a
// cluster under deletion can exist beside its successor of the same name: then findCluster returns
// the successor.
func findCluster(ctx context.Context, api *client.Client, name string) (client.Cluster, error) {
	if uuid.Validate(name) == nil {
		found, err := api.Cluster(ctx, client.ClusterID(name))
		if remote.StatusOf(err) == http.StatusNotFound {
			err = fmt.Errorf("%w; `atoll cluster list` shows what there is", err)
		}
		return found, err
	}
	matches, err := api.Clusters(ctx, client.ClusterQuery{Name: name})
	if err != nil {
		return client.Cluster{}, err
	}
	var deletingID string
	for _, cluster := range matches {
		if cluster.DeletedAt == nil {
			return api.Cluster(ctx, client.ClusterID(cluster.ID))
		}
		deletingID = cluster.ID
	}
	if deletingID != "" {
		return api.Cluster(ctx, client.ClusterID(deletingID))
	}
	return client.Cluster{},
		fmt.Errorf("there is no cluster %q in this account; `atoll cluster list` shows what there is", name)
}

// completeClusters completes the first argument with names of clusters.
func completeClusters(session *terminal.Session, cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	var words []cobra.Completion
	err := callRegion(session, ctx, func(ctx context.Context, api *client.Client) error {
		all, err := api.Clusters(ctx, client.ClusterQuery{})
		for _, cluster := range all {
			if strings.HasPrefix(cluster.Name, word) {
				words = append(words, cobra.CompletionWithDesc(cluster.Name, string(cluster.Status.Phase)))
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// phaseOf returns a cluster's phase for a table, with the power state unless that is Awake.
func phaseOf(cluster platform.Cluster) string {
	phase := string(cluster.Status.Phase)
	if p := cluster.Status.Power; p != "" && p != "Awake" {
		phase += " (" + p + ")"
	}
	return phase
}

// messageOf returns the message of a cluster's status that its owner needs. A Ready cluster has one only while a part
// of it is degraded, such as an issuer of tokens whose keys cannot be read.
func messageOf(cluster platform.Cluster) string {
	if cluster.Status.Phase == platform.ClusterPhaseReady && cluster.Status.Reason != "Degraded" {
		return ""
	}
	return cluster.Status.Message
}

// managementClusterOf returns the name of the management cluster that hosts a cluster, or "-".
func managementClusterOf(cluster platform.Cluster) string {
	if cluster.PlacementRef == nil {
		return "-"
	}
	return cmp.Or(cluster.PlacementRef.ManagementCluster, "-")
}

// apiURL returns the address of a cluster's Kubernetes API, or "-".
func apiURL(cluster platform.Cluster) string {
	if e := cluster.Status.ControlPlaneEndpoint; e != nil && e.Host != "" {
		return fmt.Sprintf("https://%s:%d", e.Host, e.Port)
	}
	return "-"
}

// completion binds a function that completes arguments to the session.
func completion(session *terminal.Session, complete func(*terminal.Session, *cobra.Command, []string, string) (
	[]cobra.Completion, cobra.ShellCompDirective)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return complete(session, cmd, args, word)
	}
}
