package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

// clusterGoal is the state that a change leads to. A nil reached means that the cluster is deleted.
type clusterGoal struct {
	name    string
	reached func(platform.Cluster) bool
	// failed returns why the goal will not be reached, "" while it may be; nil: it may always be.
	failed func(platform.Cluster) string
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
	if cluster, err = api.UpdateCluster(ctx, client.ClusterID(cluster.ID), patch, ""); err != nil {
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
		if cluster, err = api.Cluster(ctx, client.ClusterID(cluster.ID)); err != nil {
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
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errWaitTimeout)
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
			if goal.failed != nil && now.Status.ObservedGeneration >= cluster.Generation {
				if why := goal.failed(*now); why != "" {
					return fmt.Errorf("cluster %s is not %s: %s", cluster.Name, goal.name, why)
				}
			}
			if text != lastText {
				lastText = text
				fmt.Fprintf(out, "  %8s  %s\n", terminal.FormatDuration(time.Since(start)), text)
			}
			return nil
		}))
	switch {
	case errors.Is(err, errGoalReached):
		fmt.Fprintf(out, "cluster %s is %s (%s)\n", cluster.Name, goal.name, terminal.FormatDuration(time.Since(start)))
		return nil
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(session.Err, "cluster %s is still changing; watch it with `atoll cluster watch %s`\n",
			cluster.Name, cluster.Name)
		return ctx.Err()
	case errors.Is(context.Cause(limited), errWaitTimeout):
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
