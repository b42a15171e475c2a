package customer

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/release"
)

func clusterGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a cluster, its conditions and node pools", Args: cobra.ExactArgs(1),
		Example:           "  atoll cluster get demo\n  atoll cluster get demo -o yaml",
		ValidArgsFunction: completion(session, completeClusters),
	}
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			if out.Format != "table" {
				return out.PrintNamed(session.Out, cluster.Cluster, cluster.Name)
			}
			pools, err := api.NodePools(ctx, client.NodePoolQuery{Cluster: client.ClusterID(cluster.ID)})
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
	if message := messageOf(cluster); message != "" {
		fmt.Fprintf(w, ": %s", terminal.OneLine(message))
	}
	fmt.Fprintln(w)
	facts := [][]string{
		{"created", terminal.FormatAge(cluster.CreatedAt, now) + " ago by " + cluster.CreatedBy},
		{"generation", strconv.FormatInt(cluster.Generation, 10)},
		{"release", releaseOf(cluster.Spec)},
		{"version", terminal.DashIfEmpty(cluster.Status.Version)},
		{"upgrade", terminal.OneLine(upgradeText(cluster))},
		{"management cluster", managementClusterOf(cluster)},
		{"Kubernetes API", apiURL(cluster)},
	}
	for _, fact := range []struct {
		name, text string
	}{
		{"display name", cluster.Spec.DisplayName}, {"project", cluster.TargetProjectID},
		{"tags", terminal.LabelText(cluster.Spec.Tags)}, {"properties", terminal.LabelText(cluster.Spec.Properties)},
		{"power", cluster.Status.Power},
		{"size", sizeText(cluster.Status.Size)},
	} {
		if fact.text != "" {
			facts = append(facts, []string{fact.name, fact.text})
		}
	}
	if cluster.Spec.Hibernated != nil && *cluster.Spec.Hibernated {
		facts = append(facts, []string{"hibernated", "asleep until a client connects"})
	}
	if cluster.Spec.DeleteProtection {
		facts = append(facts, []string{"deletion", "protected"})
	}
	for _, r := range cluster.Status.Rotations {
		facts = append(facts, []string{string(r.Key) + " key", rotationText(r)})
	}
	if cluster.DeletedAt != nil {
		facts = append(facts, []string{"being deleted", "for " + terminal.FormatAge(*cluster.DeletedAt, now)})
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
		rows = append(rows, []string{d.Type, string(d.Status), terminal.FormatAge(d.LastTransitionTime.Time, now), d.Reason,
			d.Message})
	}
	terminal.Table(w, rows)
}

// upgradeText describes the last upgrade of a cluster and whether the cluster can go back.
func upgradeText(cluster platform.Cluster) string {
	u := cluster.Status.Upgrade
	if u == nil {
		return "-"
	}
	text := fmt.Sprintf("from %s to %s: %s", u.From, u.To, u.Phase)
	if u.Phase == platform.ClusterUpgradePhaseSoaking && u.SoakUntil != nil && u.CanRollBack {
		text += fmt.Sprintf(" until %s; it can go back without a loss: atoll cluster rollback %s",
			u.SoakUntil.UTC().Format(time.RFC3339), cluster.Name)
	}
	if u.EmulatedVersion != "" {
		text += "; until then it has the APIs and features of " + u.EmulatedVersion
	}
	if u.Message != "" {
		text += "; " + u.Message
	}
	return text
}
