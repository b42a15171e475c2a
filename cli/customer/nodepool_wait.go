package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// finishPoolChange reports a change, waits with --wait, and prints the node pool.
func finishPoolChange(session *terminal.Session, ctx context.Context, api *client.Client, p client.NodePool,
	verb string,
	f *terminal.WaitFlags,
	out *terminal.Output) error {
	progress := out.Progress(session)
	fmt.Fprintf(progress, "node pool %s %s: id %s, generation %d\n", p.Name, verb, p.ID, p.Generation)
	if f.Wait {
		if err := awaitPool(session, ctx, api, p.NodePool, poolReady, f.Timeout, progress); err != nil {
			return err
		}
		var err error
		if p, err = api.NodePool(ctx, client.NodePoolID(p.ID)); err != nil {
			return err
		}
	}
	return out.PrintNamed(session.Out, p.NodePool, p.Name)
}

// poolGoal is the state of a node pool that ends the wait of a command with --wait.
type poolGoal string

const (
	poolReady poolGoal = "ready" // the present generation has all its nodes
	poolGone  poolGoal = "gone"
)

// awaitPool watches a node pool until the generation of p reaches the goal.
func awaitPool(session *terminal.Session, ctx context.Context, api *client.Client, p platform.NodePool, goal poolGoal,
	timeout time.Duration, out io.Writer) error {
	start, lastText, seen := time.Now(), "", false
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errWaitTimeout)
	defer cancel()
	err := api.FollowNodePools(limited, client.ClusterID(p.ClusterID), remote.WatchOptions{}, func(e remote.Event) error {
		var now platform.NodePool
		if len(e.Object) > 0 {
			if err := json.Unmarshal(e.Object, &now); err != nil {
				return fmt.Errorf("watching node pools: %w", err)
			}
		}
		switch {
		case e.Type == remote.Relist:
			seen = false
			return nil
		case e.Type == rest.Bookmark && !seen, e.Type == rest.Deleted && now.ID == p.ID:
			if goal == poolGone {
				return errGoalReached
			}
			return fmt.Errorf("node pool %s was deleted meanwhile", p.Name)
		case now.ID != p.ID:
			return nil
		}
		seen = true
		if goal == poolReady && now.Status.ObservedGeneration >= p.Generation && now.Status.Phase == "Ready" &&
			now.Status.Ready == wantedReplicas(now.Spec) {
			return errGoalReached
		}
		text := fmt.Sprintf("%s, %d nodes, %d ready", now.Status.Phase, now.Status.Replicas, now.Status.Ready)
		if m := now.Status.Message; m != "" && now.Status.Phase != "Ready" {
			text += ": " + terminal.OneLine(m)
		}
		if text != lastText {
			lastText = text
			fmt.Fprintf(out, "  %8s  %s\n", terminal.FormatDuration(time.Since(start)), text)
		}
		return nil
	})
	switch {
	case errors.Is(err, errGoalReached),
		goal == poolGone && remote.StatusOf(err) == http.StatusNotFound: // with its cluster
		fmt.Fprintf(out, "node pool %s is %s (%s)\n", p.Name, goal, terminal.FormatDuration(time.Since(start)))
		return nil
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(session.Err, "node pool %s is still changing; look with `atoll nodepool get %s`\n", p.Name, p.ID)
		return ctx.Err()
	case errors.Is(context.Cause(limited), errWaitTimeout):
		return fmt.Errorf("node pool %s is not %s within %s%s; it goes on: look with `atoll nodepool get %s`", p.Name,
			goal, timeout, lastStateText(lastText), p.ID)
	}
	return err
}
