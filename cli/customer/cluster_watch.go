package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// clusterUpdate is one update of a followed cluster: an event of its history, its present state, or
// its deletion.
type clusterUpdate struct {
	event   *platform.Event
	cluster *platform.Cluster
	gone    bool
}

// followCluster follows a cluster. It calls onUpdate with each update, beginning with the events
// since the creation, and onTick ten times a second, both from one goroutine. It returns the first
// error of either (errGoalReached when the caller has seen enough), the error of a stream, or the
// cause of the end of ctx.
func followCluster(ctx context.Context, api *client.Client, id string, onUpdate func(clusterUpdate) error,
	onTick func() error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	updates := make(chan clusterUpdate)
	send := func(ctx context.Context, update clusterUpdate) error {
		select {
		case updates <- update:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var streams errgroup.Group
	streams.Go(func() error {
		err := api.FollowClusterEvents(ctx, id, func(e platform.Event) error {
			return send(ctx, clusterUpdate{event: &e})
		})
		if remote.StatusOf(err) == http.StatusNotFound {
			return nil // the other stream reports the deletion
		}
		stop(err)
		return err
	})
	streams.Go(func() error {
		err := api.FollowClusters(ctx, remote.WatchOptions{ID: id}, clusterHandler(func(k *platform.Cluster) error {
			return send(ctx, clusterUpdate{cluster: k, gone: k == nil})
		}))
		stop(err)
		return err
	})
	err := func() error {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			var err error
			select {
			case update := <-updates:
				err = onUpdate(update)
			case <-ticker.C:
				err = onTick()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err != nil {
				return err
			}
		}
	}()
	stop(err)
	_ = streams.Wait() // their errors are err or a consequence of it
	return err
}

// clusterHandler returns a handler for the watch of one cluster. It calls onState with the cluster
// after each change, and with nil when the cluster is deleted. A watch begins with the existing
// clusters: when the first bookmark arrives before the cluster, the cluster is deleted already.
func clusterHandler(onState func(*platform.Cluster) error) func(remote.Event) error {
	seen := false
	return func(e remote.Event) error {
		switch {
		case e.Type == remote.Relist:
			seen = false
			return nil
		case e.Type == rest.Deleted, e.Type == rest.Bookmark && !seen:
			return onState(nil)
		case len(e.Object) == 0:
			return nil
		}
		seen = true
		var cluster platform.Cluster
		if err := json.Unmarshal(e.Object, &cluster); err != nil {
			return fmt.Errorf("watching clusters: %w", err)
		}
		return onState(&cluster)
	}
}

// display shows a timeline: redrawn in place on a terminal, as lines elsewhere.
type display struct {
	timeline
	screen   *screen // nil: lines
	out      io.Writer
	frame    int
	lastWait string    // the last reason for waiting that was printed
	since    time.Time // the time of the last change of the reason for waiting
}

// newDisplay returns a display of a cluster's progress up to the stage last.
func newDisplay(out io.Writer, cluster platform.Cluster, last lastStage) *display {
	return &display{
		timeline: timeline{
			name: cluster.Name, phase: string(cluster.Status.Phase), begun: cluster.CreatedAt, last: last,
		},
		out: out, screen: newScreen(out, os.Getenv),
	}
}

// apply records an update and prints the line of a newly reached stage when there is no screen.
func (d *display) apply(update clusterUpdate) {
	switch {
	// warnings repeat the message of the cluster, which the next case handles
	case update.event != nil && update.event.Type == platform.EventTypeNormal:
		if d.reach(string(update.event.Stage), update.event.Time, update.event.Message) && d.screen == nil {
			fmt.Fprintln(d.out, d.stageLine(string(update.event.Stage)))
		}
	case update.cluster != nil:
		before := d.waits
		d.phase, d.waits = string(update.cluster.Status.Phase), update.cluster.Status.Message
		if d.phase == "Ready" {
			d.waits = "the nodes of its node pools"
		}
		if d.waits != before {
			d.since = time.Now()
		}
	}
}

// waitLineDelay is the time without progress after which a line shows what the cluster waits for.
const waitLineDelay = 2 * time.Second

// show redraws the screen, or prints what the cluster waits for.
func (d *display) show() {
	now := time.Now()
	if d.screen != nil {
		if c, ok := d.screen.canvas(len(clusterStages) + 2); ok {
			c.tick = d.frame
			d.frame++
			d.screen.redraw(d.draw(c, now))
			return
		}
		d.screen = nil // the terminal became too small: print lines from now on
	}
	if d.waits != "" && d.waits != d.lastWait && now.Sub(d.since) > waitLineDelay && !d.done() {
		d.lastWait = d.waits
		fmt.Fprintln(d.out, d.waitLine(now))
	}
}

// awaitReady shows the progress of a cluster until it is ready and has reached the stage last.
func awaitReady(session *terminal.Session, ctx context.Context, api *client.Client, cluster platform.Cluster,
	last lastStage, timeout time.Duration, out io.Writer) error {
	d := newDisplay(out, cluster, last)
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	err := followCluster(limited, api, cluster.ID, func(update clusterUpdate) error {
		if update.gone {
			return fmt.Errorf("cluster %s was deleted meanwhile", cluster.Name)
		}
		d.apply(update)
		if d.phase == "Ready" && d.done() {
			d.show()
			return errGoalReached
		}
		return nil
	}, func() error { d.show(); return nil })
	switch {
	case errors.Is(err, errGoalReached):
		fmt.Fprintf(out, "cluster %s is ready after %s; to use it: atoll cluster kubeconfig %s\n", cluster.Name,
			terminal.Took(d.end(time.Now()).Sub(d.begun)), cluster.Name)
		return nil
	case errors.Is(err, errTimeout):
		why := ""
		if d.waits != "" {
			why = ": " + terminal.OneLine(d.waits)
		}
		return fmt.Errorf(
			"cluster %s is not ready within %s%s; it goes on: look with `atoll cluster watch %s`, `atoll cluster "+
				"statuses %s`", cluster.Name, timeout, why, cluster.Name, cluster.Name)
	case ctx.Err() != nil:
		fmt.Fprintf(session.Err, "cluster %s goes on without you; look on with `atoll cluster watch %s`\n",
			cluster.Name, cluster.Name)
		return ctx.Err()
	}
	return err
}

// errTimeout is the cause of the end of a wait that took longer than --timeout.
var errTimeout = errors.New("too late")

func clusterWatch(session *terminal.Session) *cobra.Command {
	var cursor string
	cmd := &cobra.Command{
		Use:   "watch [NAME]",
		Short: "Show the progress of a cluster, or the changes of all clusters, until Ctrl-C",
		Long: `With a NAME it draws the cluster's stages and how long each took, in place on a terminal,
a line each elsewhere. Without one it shows all clusters, and then each change. With
-o json each line is an event with a cursor, from where --cursor continues later.`,
		Example: `  atoll cluster watch demo
  atoll cluster watch -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().StringVar(&cursor, "cursor", "", "with -o: go on from the cursor of an earlier event")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			o := remote.WatchOptions{Cursor: cursor}
			if len(args) > 0 {
				cluster, err := findCluster(ctx, api, args[0])
				if err != nil {
					return err
				}
				if out.Format == "table" {
					return watchOne(session, ctx, api, cluster.Cluster)
				}
				o.ID = cluster.ID
			}
			if out.Format == "table" {
				session.Printf(clusterLine, "TIME", "EVENT", "NAME", "STATUS", "VERSION", "MESSAGE")
			}
			return api.FollowClusters(ctx, o, func(e remote.Event) error { return showCluster(session, e, out) })
		})
	}
	return cmd
}

// watchOne shows one cluster until Ctrl-C or its deletion.
func watchOne(session *terminal.Session, ctx context.Context, api *client.Client, cluster platform.Cluster) error {
	pools, err := api.NodePools(ctx, client.NodePoolQuery{Cluster: cluster.ID})
	if err != nil {
		return err
	}
	d := newDisplay(session.Out, cluster, lastStageWith(len(pools)))
	err = followCluster(ctx, api, cluster.ID, func(update clusterUpdate) error {
		if update.gone {
			d.phase = "Deleted"
			d.show()
			return errGoalReached
		}
		d.apply(update)
		return nil
	}, func() error { d.show(); return nil })
	if errors.Is(err, errGoalReached) {
		session.Printf("cluster %s is gone\n", cluster.Name)
		return nil
	}
	return err
}

// clusterLine is the format of a row of a table that is printed while it grows.
const clusterLine = "%-12s  %-8s  %-24s  %-20s  %-8s  %s\n"

// showCluster prints one event of a watch.
func showCluster(session *terminal.Session, e remote.Event, out *terminal.Output) error {
	if printed, err := out.PrintEvent(session.Out, e); printed || err != nil {
		return err
	}
	if e.Type == remote.Relist {
		_, err := fmt.Fprintln(session.Err, "changes may have been missed; what exists follows")
		return err
	}
	if len(e.Object) == 0 {
		return nil
	}
	var cluster platform.Cluster
	if err := json.Unmarshal(e.Object, &cluster); err != nil {
		return fmt.Errorf("watching clusters: %w", err)
	}
	if out.Format == "name" {
		_, err := fmt.Fprintf(session.Out, "%s %s\n", e.Type, cluster.Name)
		return err
	}
	_, err := fmt.Fprintf(session.Out, clusterLine, time.Now().Format("15:04:05.000"), e.Type, cluster.Name,
		phaseOf(cluster),
		terminal.Dash(cluster.Status.Version), terminal.OneLine(cluster.Status.Message))
	return err
}

func clusterEvents(session *terminal.Session) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events NAME",
		Short: "Show what happened to a cluster",
		Example: `  atoll cluster events demo
  atoll cluster events demo --follow`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show further events until Ctrl-C or the cluster is gone")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			cluster, err := findCluster(ctx, api, args[0])
			if err != nil {
				return err
			}
			if follow {
				return followEvents(session, ctx, api, cluster.ID, out)
			}
			all, err := api.ClusterEvents(ctx, cluster.ID)
			if err != nil {
				return err
			}
			return out.Print(session.Out, platform.EventList{Items: all}, func(w io.Writer) {
				rows := [][]string{{"TIME", "SINCE", "TYPE", "STAGE", "REASON", "MESSAGE"}}
				for _, e := range all {
					rows = append(rows, []string{e.Time.Local().Format("15:04:05.000"), sinceText(e), string(e.Type),
						terminal.Dash(string(e.Stage)), e.Reason, e.Message})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}

// sinceText returns the time from the creation of the cluster to the event.
func sinceText(e platform.Event) string {
	return terminal.Took(time.Duration(e.SinceMs) * time.Millisecond)
}

// eventLine is the format of a row of a table that is printed while it grows.
const eventLine = "%-12s  %8s  %-7s  %-13s  %-24s  %s\n"

// followEvents prints each event of a cluster until Ctrl-C or the deletion of the cluster.
func followEvents(session *terminal.Session, ctx context.Context, api *client.Client, id string,
	out *terminal.Output) error {
	if out.Format == "table" {
		session.Printf(eventLine, "TIME", "SINCE", "TYPE", "STAGE", "REASON", "MESSAGE")
	}
	err := api.FollowClusterEvents(ctx, id, func(e platform.Event) error {
		if printed, err := out.PrintEvent(session.Out, e); printed || err != nil {
			return err
		}
		_, err := fmt.Fprintf(session.Out, eventLine, e.Time.Local().Format("15:04:05.000"), sinceText(e), e.Type,
			terminal.Dash(string(e.Stage)), terminal.OneLine(e.Reason), terminal.OneLine(e.Message))
		return err
	})
	if remote.StatusOf(err) == http.StatusNotFound {
		fmt.Fprintln(session.Err, "the cluster is gone")
		return nil
	}
	return err
}

// errGoalReached ends a watch when the goal of the command is reached.
var errGoalReached = errors.New("reached")
