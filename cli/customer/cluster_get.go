package customer

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/release"
)

// clusterPhases are the phases that `cluster list --status` takes.
var clusterPhases = []string{"WaitingForPlacement", "Provisioning", "Ready", "Deleting", "Failed"}

func clusterList(session *terminal.Session) *cobra.Command {
	var phase string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the account's clusters", Args: cobra.NoArgs,
		Example: `  atoll cluster list -o wide
  atoll cluster list --status Ready -o name`,
	}
	cmd.Flags().StringVar(&phase, "status", "", "only clusters in this phase: "+strings.Join(clusterPhases, ", "))
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(clusterPhases,
		cobra.ShellCompDirectiveNoFileComp))
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			all, err := api.Clusters(ctx, client.ClusterQuery{Phase: platform.ClusterPhase(phase)})
			if err != nil {
				return err
			}
			names := make([]string, len(all))
			for i, cluster := range all {
				names[i] = cluster.Name
			}
			switch {
			case out.Format == "table" || out.Format == "wide":
				clusterTable(session.Out, all, out.Width(), time.Now())
				if len(all) == 0 && phase == "" {
					fmt.Fprintln(
						session.Err, "no clusters yet; make one: atoll cluster create NAME --node-pool "+
							"name=workers,replicas=2 --wait")
				}
				return nil
			default:
				return out.PrintNamed(session.Out, all, names...)
			}
		})
	}
	return cmd
}

// clusterTable prints clusters as a table.
func clusterTable(w io.Writer, all []platform.Cluster, width terminal.Width, now time.Time) {
	head := []string{"NAME", "STATUS", "VERSION", "AGE", "MESSAGE"}
	if width == terminal.Wide {
		head = []string{"NAME", "ID", "STATUS", "VERSION", "MANAGEMENT CLUSTER", "API", "CREATED BY", "TAGS", "AGE",
			"MESSAGE"}
	}
	rows := [][]string{head}
	for _, cluster := range all {
		message := cluster.Status.Message
		if cluster.Status.Phase == "Ready" {
			message = ""
		}
		version, age := terminal.Dash(cluster.Status.Version), terminal.Ago(cluster.CreatedAt, now)
		if width == terminal.Wide {
			rows = append(rows, []string{cluster.Name, cluster.ID, phaseOf(cluster), version,
				managementClusterOf(cluster), apiURL(cluster), cluster.CreatedBy,
				terminal.Dash(terminal.LabelText(cluster.Spec.Tags)), age, message})
		} else {
			rows = append(rows, []string{cluster.Name, phaseOf(cluster), version, age, message})
		}
	}
	terminal.Table(w, rows)
}

func clusterGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a cluster, its conditions and node pools", Args: cobra.ExactArgs(1),
		Example:           "  atoll cluster get demo\n  atoll cluster get demo -o yaml",
		ValidArgsFunction: completion(session, completeClusters),
	}
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			cluster, err := findCluster(ctx, api, args[0])
			if err != nil {
				return err
			}
			if out.Format != "table" {
				return out.PrintNamed(session.Out, cluster.Cluster, cluster.Name)
			}
			pools, err := api.NodePools(ctx, client.NodePoolQuery{Cluster: cluster.ID})
			if err != nil {
				return err
			}
			clusterDetails(session.Out, cluster.Cluster, pools, time.Now())
			return nil
		})
	}
	return cmd
}

// clusterDetails prints one cluster with its conditions and node pools as text.
func clusterDetails(w io.Writer, cluster platform.Cluster, pools []platform.NodePool, now time.Time) {
	fmt.Fprintf(w, "%s (%s): %s", terminal.OneLine(cluster.Name), cluster.ID, phaseOf(cluster))
	if cluster.Status.Message != "" && cluster.Status.Phase != "Ready" {
		fmt.Fprintf(w, ": %s", terminal.OneLine(cluster.Status.Message))
	}
	fmt.Fprintln(w)
	facts := [][]string{
		{"created", terminal.Ago(cluster.CreatedAt, now) + " ago by " + cluster.CreatedBy},
		{"generation", strconv.FormatInt(cluster.Generation, 10)},
		{"release", releaseOf(cluster.Spec)},
		{"version", terminal.Dash(cluster.Status.Version)},
		{"management cluster", managementClusterOf(cluster)},
		{"Kubernetes API", apiURL(cluster)},
	}
	for _, fact := range []struct {
		name, text string
	}{
		{"display name", cluster.Spec.DisplayName}, {"project", cluster.TargetProjectID},
		{"tags", terminal.LabelText(cluster.Spec.Tags)}, {"properties", terminal.LabelText(cluster.Spec.Properties)},
		{"power", cluster.Status.Power},
	} {
		if fact.text != "" {
			facts = append(facts, []string{fact.name, fact.text})
		}
	}
	if cluster.Spec.Hibernated != nil && *cluster.Spec.Hibernated {
		facts = append(facts, []string{"hibernated", "asleep until asked"})
	}
	if cluster.Spec.DeleteProtection {
		facts = append(facts, []string{"deletion", "protected"})
	}
	if cluster.DeletedAt != nil {
		facts = append(facts, []string{"being deleted", "for " + terminal.Ago(*cluster.DeletedAt, now)})
	}
	terminal.Table(w, facts)
	fmt.Fprintln(w)
	conditionTable(w, cluster.Status.Conditions, now)
	fmt.Fprintln(w)
	if len(pools) == 0 {
		fmt.Fprintf(w, "no node pools; make one: atoll nodepool create NAME --cluster %s --replicas 2\n", cluster.Name)
		return
	}
	poolTable(w, pools, nil, terminal.Narrow, now)
}

// releaseOf returns the version that a spec requests, or "-".
func releaseOf(s platform.ClusterSpec) string {
	if s.HostedCluster == nil || s.HostedCluster.Release == nil {
		return "-"
	}
	return release.VersionOf(s.HostedCluster.Release.Image)
}

// conditionTable prints conditions as a table.
func conditionTable(w io.Writer, conditions []platform.Condition, now time.Time) {
	rows := [][]string{{"CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, d := range conditions {
		rows = append(rows, []string{d.Type, string(d.Status), terminal.Ago(d.LastTransitionTime.Time, now), d.Reason,
			d.Message})
	}
	terminal.Table(w, rows)
}

func clusterStatuses(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "statuses NAME",
		Short: "Show what each of the region's controllers reports of a cluster",
		Args:  cobra.ExactArgs(1),
		Example: "  atoll cluster statuses demo\n  atoll cluster statuses demo -o json | jq " +
			"'.controller_statuses[].data'",
		ValidArgsFunction: completion(session, completeClusters),
	}
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			cluster, err := findCluster(ctx, api, args[0])
			if err != nil {
				return err
			}
			s, err := api.ClusterStatuses(ctx, cluster.ID)
			if err != nil {
				return err
			}
			return out.Print(session.Out, s, func(w io.Writer) { statusesTable(w, s, time.Now()) })
		})
	}
	return cmd
}

// statusesTable prints one row for each condition that a controller reports.
func statusesTable(w io.Writer, s platform.ClusterStatuses, now time.Time) {
	rows := [][]string{{"CONTROLLER", "GENERATION", "HEARD", "CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, cs := range s.ControllerStatuses {
		for i, d := range cs.Conditions {
			row := []string{cs.ControllerName, strconv.FormatInt(cs.ObservedGeneration, 10),
				terminal.Ago(cs.LastUpdated, now) +
					" ago"}
			if i > 0 {
				row = []string{"", "", ""}
			}
			rows = append(rows, append(row, d.Type, string(d.Status), d.Reason, d.Message))
		}
	}
	terminal.Table(w, rows)
}
