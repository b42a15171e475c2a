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

func clusterHibernate(c *terminal.Session, asleep bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "wake NAME", Short: "Keep a cluster awake from now on", Args: cobra.ExactArgs(1),
		Long: `Keeps a cluster's control plane running. A hibernated one wakes for a while whenever
somebody connects to it, without this.`,
		Example:           "  atoll cluster wake demo --wait",
		ValidArgsFunction: completion(c, completeClusters),
	}
	if asleep {
		cmd.Use, cmd.Short = "hibernate NAME", "Let a cluster sleep whenever nobody is connected"
		cmd.Long = `Stops a cluster's control plane and keeps its data. Whoever connects to it wakes it,
within seconds, and it sleeps again after ten minutes without a connection.`
		cmd.Example = "  atoll cluster hibernate demo --wait"
	}
	f := terminal.AddWaitFlags(cmd, map[bool]string{true: "asleep", false: "awake"}[asleep])
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			goal := "Awake"
			if asleep {
				goal = "Asleep"
			}
			return changeCluster(c, ctx, api, args[0], map[string]any{"hibernated": asleep}, f, out, clusterGoal{
				strings.ToLower(goal), func(k platform.Cluster) bool {
					return k.Status.Power == goal && k.Status.Phase == platform.ClusterPhaseReady
				},
			})
		})
	}
	return cmd
}

func clusterProtect(c *terminal.Session, protected bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unprotect NAME", Short: "Let a cluster be deleted again", Args: cobra.ExactArgs(1),
		Example:           "  atoll cluster unprotect demo && atoll cluster delete demo",
		ValidArgsFunction: completion(c, completeClusters),
	}
	if protected {
		cmd.Use, cmd.Short, cmd.Example = "protect NAME", "Refuse a cluster's deletion until unprotect",
			"  atoll cluster protect demo"
	}
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			return changeCluster(c, ctx, api, args[0], map[string]any{"deleteProtection": protected},
				&terminal.WaitFlags{}, out,
				clusterGoal{})
		})
	}
	return cmd
}

func clusterUpgrade(c *terminal.Session) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use: "upgrade NAME --release V", Short: "Upgrade a cluster's control plane", Args: cobra.ExactArgs(1),
		Long: `Upgrades a cluster's control plane to another version of Kubernetes. Its API is away for
the second or two of the restart. A version that its management cluster does not have is
refused, and shown as its condition.`,
		Example:           "  atoll cluster upgrade demo --release 1.36.3 --wait",
		ValidArgsFunction: completion(c, completeClusters),
	}
	cmd.Flags().StringVar(&version, "release", "", "Kubernetes version, such as 1.36.3")
	cmd.MarkFlagRequired("release")
	f := terminal.AddWaitFlags(cmd, "upgraded")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			spec := map[string]any{"hostedCluster": map[string]any{"release": map[string]any{
				"image": release.Image(version)}}}
			return changeCluster(c, ctx, api, args[0], spec, f, out, clusterGoal{
				"upgraded to " + version, func(k platform.Cluster) bool {
					return k.Status.Version == version && k.Status.Phase == platform.ClusterPhaseReady
				},
			})
		})
	}
	return cmd
}

// clusterGoal is what a change of a cluster leads to.
type clusterGoal struct {
	name    string
	reached func(platform.Cluster) bool
}

// changeCluster merges a change into a cluster's spec, and waits for what it
// leads to if that is wanted.
func changeCluster(c *terminal.Session, ctx context.Context, api *client.Client, name string, spec map[string]any,
	f *terminal.WaitFlags, out *terminal.Output, goal clusterGoal) error {
	k, err := clusterNamed(ctx, api, name)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	was := k.Generation
	if k, err = api.UpdateCluster(ctx, k.ID, patch, ""); err != nil {
		return err
	}
	progress := out.Progress(c)
	said := "changed"
	if k.Generation == was {
		said = "has that already"
	}
	fmt.Fprintf(progress, "cluster %s %s: generation %d\n", k.Name, said, k.Generation)
	if f.Wait {
		if err := awaitCluster(c, ctx, api, k.Cluster, goal, f.Timeout, progress); err != nil {
			return err
		}
		if k, err = api.Cluster(ctx, k.ID); err != nil {
			return err
		}
	}
	return out.PrintNamed(c.Out, k.Cluster, k.Name)
}

// awaitCluster watches a cluster until it is what was wanted, for the
// generation that k has, and shows what it says meanwhile.
func awaitCluster(c *terminal.Session, ctx context.Context, api *client.Client, k platform.Cluster, goal clusterGoal,
	timeout time.Duration, out io.Writer) error {
	begun, told := time.Now(), ""
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errLate)
	defer cancel()
	err := api.FollowClusters(limited, remote.WatchOptions{ID: k.ID}, seenOne(func(now *platform.Cluster) error {
		if now == nil {
			if goal.reached == nil {
				return errReached
			}
			return fmt.Errorf("cluster %s was deleted meanwhile", k.Name)
		}
		text := phaseOf(*now)
		if m := now.Status.Message; m != "" && now.Status.Phase != "Ready" {
			text += ": " + terminal.OneLine(m)
		}
		if goal.reached != nil && now.Status.ObservedGeneration >= k.Generation && goal.reached(*now) {
			return errReached
		}
		if text != told {
			told = text
			fmt.Fprintf(out, "  %8s  %s\n", terminal.Took(time.Since(begun)), text)
		}
		return nil
	}))
	switch {
	case errors.Is(err, errReached):
		fmt.Fprintf(out, "cluster %s is %s (%s)\n", k.Name, goal.name, terminal.Took(time.Since(begun)))
		return nil
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(c.Err, "cluster %s goes on without you; look on with `atoll cluster watch %s`\n", k.Name, k.Name)
		return ctx.Err()
	case errors.Is(context.Cause(limited), errLate):
		return fmt.Errorf("cluster %s is not %s within %s%s; it goes on: look with `atoll cluster get %s`", k.Name,
			goal.name, timeout, soFar(told), k.Name)
	}
	return err
}

// soFar is what was last heard of something that is waited for.
func soFar(told string) string {
	if told == "" {
		return ""
	}
	return ": it is " + told
}

func clusterDelete(c *terminal.Session) *cobra.Command {
	var yes, force bool
	var reason string
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a cluster with all that is in it",
		Long: `Deletes a cluster for good: its node pools, its control plane, its data. On a terminal it
asks for the cluster's name first. With --wait it returns when nothing is left.`,
		Example: `  atoll cluster delete demo --wait
  atoll cluster list --status Ready -o name | xargs -n1 atoll cluster delete --yes`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(c, completeClusters),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&force, "force", false,
		"for privileged callers: remove the record of a cluster whose deletion does not end; what was made for it "+
			"may stay")
	cmd.Flags().StringVar(&reason, "reason", "", "with --force: why, for the record")
	cmd.MarkFlagsRequiredTogether("force", "reason")
	f := terminal.AddWaitFlags(cmd, "gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			k, err := clusterNamed(ctx, api, args[0])
			if err != nil {
				return err
			}
			if !yes && k.DeletedAt == nil {
				if err := confirm(c, ctx, k.Cluster); err != nil {
					return err
				}
			}
			if err := api.DeleteCluster(ctx, k.ID, client.Deletion{Force: force, Reason: reason}); err != nil {
				return err
			}
			c.Printf("deletion of cluster %s (%s) ordered\n", k.Name, k.ID)
			if !f.Wait {
				return nil
			}
			return awaitCluster(c, ctx, api, k.Cluster, clusterGoal{name: "gone"}, f.Timeout, c.Out)
		})
	}
	return cmd
}

// confirm asks, where somebody is there to answer, whether a cluster is to go.
func confirm(c *terminal.Session, ctx context.Context, k platform.Cluster) error {
	in, ok := c.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil
	}
	fmt.Fprintf(c.Err, "%s and all that is in it will be gone for good. Type its name to go on: ", k.Name)
	answer, err := readLine(ctx, in)
	if err != nil {
		return err
	}
	if strings.TrimSpace(answer) != k.Name {
		return errors.New("nothing was deleted")
	}
	return nil
}

// readLine reads a line, or what there is of one. Nothing ends a read of a
// terminal, so who is interrupted leaves it behind: it ends with the process.
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
