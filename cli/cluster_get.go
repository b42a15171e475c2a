package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/release"
)

// clusterPhases are the phases that `cluster list --status` takes.
var clusterPhases = []string{"WaitingForPlacement", "Provisioning", "Ready", "Deleting", "Failed"}

func (c *command) clusterList() *cobra.Command {
	var phase string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the account's clusters", Args: cobra.NoArgs,
		Example: `  atoll cluster list -o wide
  atoll cluster list --status Ready -o name`,
	}
	cmd.Flags().StringVar(&phase, "status", "", "only clusters in this phase: "+strings.Join(clusterPhases, ", "))
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(clusterPhases,
		cobra.ShellCompDirectiveNoFileComp))
	out := addOutput(cmd, "wide", "name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.callRegion(cmd.Context(), func(ctx context.Context, api *client.Client) error {
			all, err := api.Clusters(ctx, client.ClusterQuery{Phase: platform.ClusterPhase(phase)})
			if err != nil {
				return err
			}
			names := make([]string, len(all))
			for i, k := range all {
				names[i] = k.Name
			}
			switch {
			case out.format == "table" || out.format == "wide":
				clusterTable(c.out, all, out.format == "wide", time.Now())
				if len(all) == 0 && phase == "" {
					fmt.Fprintln(
						c.err, "no clusters yet; make one: atoll cluster create NAME --node-pool "+
							"name=workers,replicas=2 --wait")
				}
				return nil
			default:
				return out.printNamed(c.out, all, names...)
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
		version, age := dash(k.Status.Version), ago(k.CreatedAt, now)
		if wide {
			rows = append(rows, []string{k.Name, k.ID, phaseOf(k), version, livesOn(k), apiURL(k), k.CreatedBy,
				dash(labelText(k.Spec.Tags)), age, message})
		} else {
			rows = append(rows, []string{k.Name, phaseOf(k), version, age, message})
		}
	}
	table(w, rows)
}

// dash is a text, or what stands where there is none.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func (c *command) clusterGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a cluster, its conditions and node pools", Args: cobra.ExactArgs(1),
		Example:           "  atoll cluster get demo\n  atoll cluster get demo -o yaml",
		ValidArgsFunction: c.completeClusters,
	}
	out := addOutput(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.callRegion(cmd.Context(), func(ctx context.Context, api *client.Client) error {
			k, err := clusterNamed(ctx, api, args[0])
			if err != nil {
				return err
			}
			if out.format != "table" {
				return out.printNamed(c.out, k.Cluster, k.Name)
			}
			pools, err := api.NodePools(ctx, client.NodePoolQuery{Cluster: k.ID})
			if err != nil {
				return err
			}
			clusterDetails(c.out, k.Cluster, pools, time.Now())
			return nil
		})
	}
	return cmd
}

// clusterDetails shows one cluster to people.
func clusterDetails(w io.Writer, k platform.Cluster, pools []platform.NodePool, now time.Time) {
	fmt.Fprintf(w, "%s (%s): %s", oneLine(k.Name), k.ID, phaseOf(k))
	if k.Status.Message != "" && k.Status.Phase != "Ready" {
		fmt.Fprintf(w, ": %s", oneLine(k.Status.Message))
	}
	fmt.Fprintln(w)
	facts := [][]string{
		{"created", ago(k.CreatedAt, now) + " ago by " + k.CreatedBy},
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
		{"tags", labelText(k.Spec.Tags)}, {"properties", labelText(k.Spec.Properties)},
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
		facts = append(facts, []string{"being deleted", "for " + ago(*k.DeletedAt, now)})
	}
	table(w, facts)
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
		rows = append(rows, []string{d.Type, string(d.Status), ago(d.LastTransitionTime.Time, now), d.Reason,
			d.Message})
	}
	table(w, rows)
}

func (c *command) clusterStatuses() *cobra.Command {
	cmd := &cobra.Command{
		Use: "statuses NAME", Short: "Show what each of the region's controllers reports of a cluster", Args: cobra.ExactArgs(1),
		Example: "  atoll cluster statuses demo\n  atoll cluster statuses demo -o json | jq " +
			"'.controller_statuses[].data'",
		ValidArgsFunction: c.completeClusters,
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.callRegion(cmd.Context(), func(ctx context.Context, api *client.Client) error {
			k, err := clusterNamed(ctx, api, args[0])
			if err != nil {
				return err
			}
			s, err := api.ClusterStatuses(ctx, k.ID)
			if err != nil {
				return err
			}
			return out.print(c.out, s, func(w io.Writer) { statusesTable(w, s, time.Now()) })
		})
	}
	return cmd
}

func statusesTable(w io.Writer, s platform.ClusterStatuses, now time.Time) {
	rows := [][]string{{"CONTROLLER", "GENERATION", "HEARD", "CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, cs := range s.ControllerStatuses {
		for i, d := range cs.Conditions {
			row := []string{cs.ControllerName, strconv.FormatInt(cs.ObservedGeneration, 10), ago(cs.LastUpdated, now) +
				" ago"}
			if i > 0 {
				row = []string{"", "", ""}
			}
			rows = append(rows, append(row, d.Type, string(d.Status), d.Reason, d.Message))
		}
	}
	table(w, rows)
}
