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

func clusterList(c *terminal.Session) *cobra.Command {
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
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			all, err := api.Clusters(ctx, client.ClusterQuery{Phase: platform.ClusterPhase(phase)})
			if err != nil {
				return err
			}
			names := make([]string, len(all))
			for i, k := range all {
				names[i] = k.Name
			}
			switch {
			case out.Format == "table" || out.Format == "wide":
				clusterTable(c.Out, all, out.Format == "wide", time.Now())
				if len(all) == 0 && phase == "" {
					fmt.Fprintln(
						c.Err, "no clusters yet; make one: atoll cluster create NAME --node-pool "+
							"name=workers,replicas=2 --wait")
				}
				return nil
			default:
				return out.PrintNamed(c.Out, all, names...)
			}
		})
	}
	return cmd
}

func clusterTable(w io.Writer, all []platform.Cluster, wide bool, now time.Time) {
	head := []string{"NAME", "STATUS", "VERSION", "AGE", "MESSAGE"}
	if wide {
		head = []string{"NAME", "ID", "STATUS", "VERSION", "MANAGEMENT CLUSTER", "API", "CREATED BY", "TAGS", "AGE",
			"MESSAGE"}
	}
	rows := [][]string{head}
	for _, k := range all {
		message := k.Status.Message
		if k.Status.Phase == "Ready" {
			message = ""
		}
		version, age := dash(k.Status.Version), terminal.Ago(k.CreatedAt, now)
		if wide {
			rows = append(rows, []string{k.Name, k.ID, phaseOf(k), version, livesOn(k), apiURL(k), k.CreatedBy,
				dash(terminal.LabelText(k.Spec.Tags)), age, message})
		} else {
			rows = append(rows, []string{k.Name, phaseOf(k), version, age, message})
		}
	}
	terminal.Table(w, rows)
}

// dash is a text, or what stands where there is none.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func clusterGet(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a cluster, its conditions and node pools", Args: cobra.ExactArgs(1),
		Example:           "  atoll cluster get demo\n  atoll cluster get demo -o yaml",
		ValidArgsFunction: completion(c, completeClusters),
	}
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			k, err := clusterNamed(ctx, api, args[0])
			if err != nil {
				return err
			}
			if out.Format != "table" {
				return out.PrintNamed(c.Out, k.Cluster, k.Name)
			}
			pools, err := api.NodePools(ctx, client.NodePoolQuery{Cluster: k.ID})
			if err != nil {
				return err
			}
			clusterDetails(c.Out, k.Cluster, pools, time.Now())
			return nil
		})
	}
	return cmd
}

// clusterDetails shows one cluster to people.
func clusterDetails(w io.Writer, k platform.Cluster, pools []platform.NodePool, now time.Time) {
	fmt.Fprintf(w, "%s (%s): %s", terminal.OneLine(k.Name), k.ID, phaseOf(k))
	if k.Status.Message != "" && k.Status.Phase != "Ready" {
		fmt.Fprintf(w, ": %s", terminal.OneLine(k.Status.Message))
	}
	fmt.Fprintln(w)
	facts := [][]string{
		{"created", terminal.Ago(k.CreatedAt, now) + " ago by " + k.CreatedBy},
		{"generation", strconv.FormatInt(k.Generation, 10)},
		{"release", releaseOf(k.Spec)},
		{"version", dash(k.Status.Version)},
		{"management cluster", livesOn(k)},
		{"Kubernetes API", apiURL(k)},
	}
	for _, fact := range []struct {
		name, text string
	}{
		{"display name", k.Spec.DisplayName}, {"project", k.TargetProjectID},
		{"tags", terminal.LabelText(k.Spec.Tags)}, {"properties", terminal.LabelText(k.Spec.Properties)},
		{"power", k.Status.Power},
	} {
		if fact.text != "" {
			facts = append(facts, []string{fact.name, fact.text})
		}
	}
	if k.Spec.Hibernated != nil && *k.Spec.Hibernated {
		facts = append(facts, []string{"hibernated", "asleep until asked"})
	}
	if k.Spec.DeleteProtection {
		facts = append(facts, []string{"deletion", "protected"})
	}
	if k.DeletedAt != nil {
		facts = append(facts, []string{"being deleted", "for " + terminal.Ago(*k.DeletedAt, now)})
	}
	terminal.Table(w, facts)
	fmt.Fprintln(w)
	conditionTable(w, k.Status.Conditions, now)
	fmt.Fprintln(w)
	if len(pools) == 0 {
		fmt.Fprintf(w, "no node pools; make one: atoll nodepool create NAME --cluster %s --replicas 2\n", k.Name)
		return
	}
	poolTable(w, pools, nil, false, now)
}

// releaseOf is the version that a spec asks for.
func releaseOf(s platform.ClusterSpec) string {
	if s.HostedCluster == nil || s.HostedCluster.Release == nil {
		return "-"
	}
	return release.VersionOf(s.HostedCluster.Release.Image)
}

func conditionTable(w io.Writer, conditions []platform.Condition, now time.Time) {
	rows := [][]string{{"CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, d := range conditions {
		rows = append(rows, []string{d.Type, string(d.Status), terminal.Ago(d.LastTransitionTime.Time, now), d.Reason,
			d.Message})
	}
	terminal.Table(w, rows)
}

func clusterStatuses(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "statuses NAME", Short: "Show what each of the region's controllers reports of a cluster", Args: cobra.ExactArgs(1),
		Example: "  atoll cluster statuses demo\n  atoll cluster statuses demo -o json | jq " +
			"'.controller_statuses[].data'",
		ValidArgsFunction: completion(c, completeClusters),
	}
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			k, err := clusterNamed(ctx, api, args[0])
			if err != nil {
				return err
			}
			s, err := api.ClusterStatuses(ctx, k.ID)
			if err != nil {
				return err
			}
			return out.Print(c.Out, s, func(w io.Writer) { statusesTable(w, s, time.Now()) })
		})
	}
	return cmd
}

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
