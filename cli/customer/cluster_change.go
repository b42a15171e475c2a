package customer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/release"
)

func clusterHibernate(session *terminal.Session) *cobra.Command {
	return powerCommand(session, powerAsleep, &cobra.Command{
		Use: "hibernate NAME", Short: "Let a cluster sleep whenever nobody is connected",
		Long: `Stops a cluster's control plane and keeps its data. A connection wakes it, within
seconds, and it sleeps again after ten minutes without a connection.`,
		Example: "  atoll cluster hibernate demo --wait",
	})
}

func clusterWake(session *terminal.Session) *cobra.Command {
	return powerCommand(session, powerAwake, &cobra.Command{
		Use: "wake NAME", Short: "Keep a cluster awake from now on",
		Long: `Keeps a cluster's control plane running. Without this, a hibernated control plane runs
from a connection until ten minutes after the last.`,
		Example: "  atoll cluster wake demo --wait",
	})
}

// power is a state of status.power that a customer can order.
type power string

const (
	powerAwake  power = "Awake"
	powerAsleep power = "Asleep"
)

// powerCommand completes a command that orders a cluster's power state.
func powerCommand(session *terminal.Session, order power, cmd *cobra.Command) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), completion(session, completeClusters)
	goal := clusterGoal{strings.ToLower(string(order)), func(cluster platform.Cluster) bool {
		return cluster.Status.Power == string(order) && cluster.Status.Phase == platform.ClusterPhaseReady
	}}
	f := terminal.AddWaitFlags(cmd, goal.name)
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			spec := map[string]any{"hibernated": order == powerAsleep}
			return changeCluster(session, ctx, api, args[0], spec, f, out, goal)
		})
	}
	return cmd
}

func clusterProtect(session *terminal.Session) *cobra.Command {
	return protectionCommand(session, protectionOn, &cobra.Command{
		Use: "protect NAME", Short: "Refuse a cluster's deletion until unprotect",
		Example: "  atoll cluster protect demo",
	})
}

func clusterUnprotect(session *terminal.Session) *cobra.Command {
	return protectionCommand(session, protectionOff, &cobra.Command{
		Use: "unprotect NAME", Short: "Let a cluster be deleted again",
		Example: "  atoll cluster unprotect demo && atoll cluster delete demo",
	})
}

// protection is the value of a cluster's deleteProtection.
type protection bool

const (
	protectionOn  protection = true
	protectionOff protection = false
)

// protectionCommand completes a command that sets a cluster's deletion protection.
func protectionCommand(session *terminal.Session, order protection, cmd *cobra.Command) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), completion(session, completeClusters)
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			spec := map[string]any{"deleteProtection": order}
			return changeCluster(session, ctx, api, args[0], spec, &terminal.WaitFlags{}, out, clusterGoal{})
		})
	}
	return cmd
}

func clusterUpgrade(session *terminal.Session) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use: "upgrade NAME --release V", Short: "Upgrade a cluster's control plane", Args: cobra.ExactArgs(1),
		Long: `Upgrades a cluster's control plane to another version of Kubernetes. Its API is away for
the second or two of the restart. A version that its management cluster does not have is
refused, and shown as its condition.`,
		Example:           "  atoll cluster upgrade demo --release 1.36.3 --wait",
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().StringVar(&version, "release", "", "Kubernetes version, such as 1.36.3")
	cmd.MarkFlagRequired("release")
	f := terminal.AddWaitFlags(cmd, "upgraded")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			spec := map[string]any{"hostedCluster": map[string]any{"release": map[string]any{
				"image": release.Image(version)}}}
			return changeCluster(session, ctx, api, args[0], spec, f, out, clusterGoal{
				"upgraded to " + version, func(cluster platform.Cluster) bool {
					return cluster.Status.Version == version && cluster.Status.Phase == platform.ClusterPhaseReady
				},
			})
		})
	}
	return cmd
}

// clusterGoal is the state that a change leads to. A nil reached means that the cluster is deleted.
type clusterGoal struct {
	name    string
	reached func(platform.Cluster) bool
}

// changeCluster merges spec into a cluster's spec. With --wait it then waits for the goal.
func changeCluster(session *terminal.Session, ctx context.Context, api *client.Client, name string, spec map[string]any,
	f *terminal.WaitFlags, out *terminal.Output, goal clusterGoal) error {
	cluster, err := findCluster(ctx, api, name)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	before := cluster.Generation
	if cluster, err = api.UpdateCluster(ctx, cluster.ID, patch, ""); err != nil {
		return err
	}
	progress := out.Progress(session)
	outcome := "changed"
	if cluster.Generation == before {
		outcome = "has that already"
	}
	fmt.Fprintf(progress, "cluster %s %s: generation %d\n", cluster.Name, outcome, cluster.Generation)
	if f.Wait {
		if err := awaitCluster(session, ctx, api, cluster.Cluster, goal, f.Timeout, progress); err != nil {
			return err
		}
		if cluster, err = api.Cluster(ctx, cluster.ID); err != nil {
			return err
		}
	}
	return out.PrintNamed(session.Out, cluster.Cluster, cluster.Name)
}

// awaitCluster watches a cluster until it has reached the goal at the generation of cluster or a
// later one, and prints each change of its state. It returns an error when the timeout has passed
// or the cluster was deleted meanwhile.
func awaitCluster(session *terminal.Session, ctx context.Context, api *client.Client, cluster platform.Cluster,
	goal clusterGoal,
	timeout time.Duration, out io.Writer) error {
	start, lastText := time.Now(), ""
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	err := api.FollowClusters(limited, remote.WatchOptions{ID: cluster.ID},
		clusterHandler(func(now *platform.Cluster) error {
			if now == nil {
				if goal.reached == nil {
					return errGoalReached
				}
				return fmt.Errorf("cluster %s was deleted meanwhile", cluster.Name)
			}
			text := phaseOf(*now)
			if m := now.Status.Message; m != "" && now.Status.Phase != "Ready" {
				text += ": " + terminal.OneLine(m)
			}
			if goal.reached != nil && now.Status.ObservedGeneration >= cluster.Generation && goal.reached(*now) {
				return errGoalReached
			}
			if text != lastText {
				lastText = text
				fmt.Fprintf(out, "  %8s  %s\n", terminal.Took(time.Since(start)), text)
			}
			return nil
		}))
	switch {
	case errors.Is(err, errGoalReached):
		fmt.Fprintf(out, "cluster %s is %s (%s)\n", cluster.Name, goal.name, terminal.Took(time.Since(start)))
		return nil
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(session.Err, "cluster %s goes on without you; look on with `atoll cluster watch %s`\n",
			cluster.Name, cluster.Name)
		return ctx.Err()
	case errors.Is(context.Cause(limited), errTimeout):
		return fmt.Errorf("cluster %s is not %s within %s%s; it goes on: look with `atoll cluster get %s`",
			cluster.Name,
			goal.name, timeout, lastStateText(lastText), cluster.Name)
	}
	return err
}

// lastStateText returns the last observed state for an error message, "" when nothing was observed.
func lastStateText(state string) string {
	if state == "" {
		return ""
	}
	return ": it is " + state
}

func clusterDelete(session *terminal.Session) *cobra.Command {
	var yes, force bool
	var reason string
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a cluster with all that is in it",
		Long: `Deletes a cluster for good: its node pools, its control plane, its data. On a terminal it
asks for the cluster's name first. With --wait it returns when nothing is left.`,
		Example: `  atoll cluster delete demo --wait
  atoll cluster list --status Ready -o name | xargs -n1 atoll cluster delete --yes`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&force, "force", false,
		"for privileged callers: remove the record of a cluster whose deletion does not end; what was made for it "+
			"may stay")
	cmd.Flags().StringVar(&reason, "reason", "", "with --force: why, for the record")
	cmd.MarkFlagsRequiredTogether("force", "reason")
	f := terminal.AddWaitFlags(cmd, "gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			cluster, err := findCluster(ctx, api, args[0])
			if err != nil {
				return err
			}
			if !yes && cluster.DeletedAt == nil {
				if err := confirm(session, ctx, cluster.Cluster); err != nil {
					return err
				}
			}
			if err := api.DeleteCluster(ctx, cluster.ID, client.Deletion{Force: force, Reason: reason}); err != nil {
				return err
			}
			session.Printf("deletion of cluster %s (%s) ordered\n", cluster.Name, cluster.ID)
			if !f.Wait {
				return nil
			}
			return awaitCluster(session, ctx, api, cluster.Cluster, clusterGoal{name: "gone"}, f.Timeout, session.Out)
		})
	}
	return cmd
}

// confirm asks for the name of the cluster when the input is a terminal, and returns an error
// unless the answer is that name. When the input is no terminal it does not ask.
func confirm(session *terminal.Session, ctx context.Context, cluster platform.Cluster) error {
	in, ok := session.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil
	}
	fmt.Fprintf(session.Err, "%s and all that is in it will be gone for good. Type its name to go on: ", cluster.Name)
	answer, err := readLine(ctx, in)
	if err != nil {
		return err
	}
	if strings.TrimSpace(answer) != cluster.Name {
		return errors.New("nothing was deleted")
	}
	return nil
}

// readLine reads a line, or the rest of the input. A read from a terminal cannot be cancelled: when
// ctx ends first, the reading goroutine stays until the process ends.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type answer struct {
		line string
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(in).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		read <- answer{line, err}
	}()
	select {
	case a := <-read:
		return a.line, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
