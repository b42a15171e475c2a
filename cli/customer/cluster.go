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

func Cluster(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cluster", Aliases: []string{"clusters"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Clusters: create, watch, use, hibernate, upgrade, protect, delete",
		Long: `Kubernetes clusters that the region hosts for the caller's account: real control planes,
simulated nodes. NAME is a cluster's name or its id.`,
		Example: `  atoll cluster create demo --node-pool name=workers,replicas=2,instance-type=m6a.xlarge --wait
  atoll cluster kubeconfig demo --out demo.kubeconfig && kubectl --kubeconfig demo.kubeconfig get nodes
  atoll cluster delete demo --wait`,
	}
	cmd.AddCommand(clusterCreate(c), clusterList(c), clusterGet(c), clusterWatch(c), clusterEvents(c),
		clusterStatuses(c),
		clusterKubeconfig(c), clusterCredentials(c),
		clusterHibernate(c, true), clusterHibernate(c, false), clusterUpgrade(c), clusterProtect(c,
			true), clusterProtect(c, false), clusterDelete(c))
	return cmd
}

// callRegion calls f with a client of the Platform API.
func callRegion(c *terminal.Session, ctx context.Context, f func(context.Context, *client.Client) error) error {
	api, err := c.Client()
	if err != nil {
		return err
	}
	defer api.Close()
	return told(f(ctx, api))
}

// told adds to an error of the Platform API each field that is wrong, and what
// can be done.
func told(err error) error {
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
	case e.Status == http.StatusForbidden:
		advice = "; whose keys are used shows `atoll key list`"
	case e.Code == "CLUSTERS-MGMT-DELETE-005":
		advice = "; that is `atoll cluster unprotect NAME`"
	case e.Status == http.StatusGone:
		advice = "; leave --cursor out to begin with what exists"
	case e.Status == http.StatusPreconditionFailed:
		advice = "; look at it again with `atoll cluster get`"
	}
	if advice == "" && more.Len() == 0 {
		return err
	}
	return fmt.Errorf("%w%s%s", err, advice, more.String())
}

// clusterNamed finds a cluster by its id or its name. Names are unique in an
// account; one whose deletion was asked for may be there beside its successor.
func clusterNamed(ctx context.Context, api *client.Client, name string) (client.Cluster, error) {
	if uuid.Validate(name) == nil {
		found, err := api.Cluster(ctx, name)
		if remote.StatusOf(err) == http.StatusNotFound {
			err = fmt.Errorf("%w; `atoll cluster list` shows what there is", err)
		}
		return found, err
	}
	named, err := api.Clusters(ctx, client.ClusterQuery{Name: name})
	if err != nil {
		return client.Cluster{}, err
	}
	var leaving string
	for _, k := range named {
		if k.DeletedAt == nil {
			return api.Cluster(ctx, k.ID)
		}
		leaving = k.ID
	}
	if leaving != "" {
		return api.Cluster(ctx, leaving)
	}
	return client.Cluster{},
		fmt.Errorf("there is no cluster %q in this account; `atoll cluster list` shows what there is", name)
}

// completeClusters completes the first argument with names of clusters.
func completeClusters(c *terminal.Session, cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	var words []cobra.Completion
	err := callRegion(c, ctx, func(ctx context.Context, api *client.Client) error {
		all, err := api.Clusters(ctx, client.ClusterQuery{})
		for _, k := range all {
			if strings.HasPrefix(k.Name, word) {
				words = append(words, cobra.CompletionWithDesc(k.Name, string(k.Status.Phase)))
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// phaseOf is a cluster's phase for a table, with its power when it is not
// simply awake.
func phaseOf(k platform.Cluster) string {
	phase := string(k.Status.Phase)
	if p := k.Status.Power; p != "" && p != "Awake" {
		phase += " (" + p + ")"
	}
	return phase
}

// livesOn is a cluster's management cluster.
func livesOn(k platform.Cluster) string {
	if k.PlacementRef == nil {
		return "-"
	}
	return cmp.Or(k.PlacementRef.ManagementCluster, "-")
}

// apiURL is the address of a cluster's Kubernetes API.
func apiURL(k platform.Cluster) string {
	if e := k.Status.ControlPlaneEndpoint; e != nil && e.Host != "" {
		return fmt.Sprintf("https://%s:%d", e.Host, e.Port)
	}
	return "-"
}

// completion binds a function that completes arguments to the session.
func completion(c *terminal.Session, complete func(*terminal.Session, *cobra.Command, []string, string) (
	[]cobra.Completion, cobra.ShellCompDirective)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return complete(c, cmd, args, word)
	}
}
