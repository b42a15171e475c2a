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
	"sigs.k8s.io/yaml"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// news is one thing that somebody who looks on learns: an event of the
// cluster's history, or what it is now, or that it is gone.
type news struct {
	event   *platform.Event
	cluster *platform.Cluster
	gone    bool
}

// lookOn follows a cluster: it calls tell with each event since the cluster was created, and tick about ten times a
// second, until one of them returns an error (errReached when the wait is over) or ctx ends.
func lookOn(ctx context.Context, api *client.Client, id string, tell func(news) error, tick func() error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	heard := make(chan news)
	pass := func(ctx context.Context, n news) error {
		select {
		case heard <- n:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var streams errgroup.Group
	streams.Go(func() error {
		err := api.FollowClusterEvents(ctx, id, func(e platform.Event) error { return pass(ctx, news{event: &e}) })
		if remote.StatusOf(err) == http.StatusNotFound {
			return nil // the other stream says that it is gone
		}
		stop(err)
		return err
	})
	streams.Go(func() error {
		err := api.FollowClusters(ctx, remote.WatchOptions{ID: id}, seenOne(func(k *platform.Cluster) error {
			return pass(ctx, news{cluster: k, gone: k == nil})
		}))
		stop(err)
		return err
	})
	err := func() error {
		every := time.NewTicker(100 * time.Millisecond)
		defer every.Stop()
		for {
			var err error
			select {
			case n := <-heard:
				err = tell(n)
			case <-every.C:
				err = tick()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err != nil {
				return err
			}
		}
	}()
	stop(err)
	_ = streams.Wait() // what they ended with is err, or comes of it
	return err
}

// seenOne turns the events of a watch of one cluster into what it is, nil when
// it is gone. A watch begins with what exists: a cluster that its first
// bookmark comes without is gone already.
func seenOne(tell func(*platform.Cluster) error) func(remote.Event) error {
	seen := false
	return func(e remote.Event) error {
		switch {
		case e.Type == remote.Relist:
			seen = false
			return nil
		case e.Type == rest.Deleted, e.Type == rest.Bookmark && !seen:
			return tell(nil)
		case len(e.Object) == 0:
			return nil
		}
		seen = true
		var k platform.Cluster
		if err := json.Unmarshal(e.Object, &k); err != nil {
			return fmt.Errorf("watching clusters: %w", err)
		}
		return tell(&k)
	}
}

// display shows a timeline: drawn again and again on a terminal, as lines
// elsewhere.
type display struct {
	timeline
	screen *screen // nil: lines
	out    io.Writer
	frame  int
	told   string    // the last thing that was said of waiting
	since  time.Time // when the reason for waiting became what it is
}

func newDisplay(out io.Writer, k platform.Cluster, nodes bool) *display {
	d := &display{timeline: timeline{name: k.Name, phase: string(k.Status.Phase), begun: k.CreatedAt, nodes: nodes},
		out: out}
	d.screen = screenOf(out, os.Getenv)
	return d
}

// learn takes in what became known.
func (d *display) learn(n news) {
	switch {
	// others say what a stage waits for, as the cluster does
	case n.event != nil && n.event.Type == platform.EventTypeNormal:
		if d.reach(string(n.event.Stage), n.event.Time, n.event.Message) && d.screen == nil {
			fmt.Fprintln(d.out, d.tell(string(n.event.Stage)))
		}
	case n.cluster != nil:
		was := d.waits
		d.phase, d.waits = string(n.cluster.Status.Phase), n.cluster.Status.Message
		if d.phase == "Ready" {
			d.waits = "the nodes of its node pools"
		}
		if d.waits != was {
			d.since = time.Now()
		}
	}
}

// patience is after what time without progress a line says what is waited for.
const patience = 2 * time.Second

// show brings what is to be seen up to date.
func (d *display) show() {
	now := time.Now()
	if d.screen != nil {
		if c, ok := d.screen.canvas(len(clusterStages) + 2); ok {
			c.tick = d.frame
			d.frame++
			d.screen.redraw(d.draw(c, now))
			return
		}
		d.screen = nil // it became too small; from here on lines
	}
	if d.waits != "" && d.waits != d.told && now.Sub(d.since) > patience && !d.done() {
		d.told = d.waits
		fmt.Fprintln(d.out, d.tellWait(now))
	}
}

// awaitReady shows how a cluster comes to life, until it is ready and, if it
// has node pools, so are their nodes.
func awaitReady(c *terminal.Session, ctx context.Context, api *client.Client, k platform.Cluster, nodes bool,
	timeout time.Duration, out io.Writer) error {
	d := newDisplay(out, k, nodes)
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errLate)
	defer cancel()
	err := lookOn(limited, api, k.ID, func(n news) error {
		if n.gone {
			return fmt.Errorf("cluster %s was deleted meanwhile", k.Name)
		}
		d.learn(n)
		if d.phase == "Ready" && d.done() {
			d.show()
			return errReached
		}
		return nil
	}, func() error { d.show(); return nil })
	switch {
	case errors.Is(err, errReached):
		fmt.Fprintf(out, "cluster %s is ready after %s; to use it: atoll cluster kubeconfig %s\n", k.Name,
			terminal.Took(d.end(time.Now()).Sub(d.begun)), k.Name)
		return nil
	case errors.Is(err, errLate):
		why := ""
		if d.waits != "" {
			why = ": " + terminal.OneLine(d.waits)
		}
		return fmt.Errorf(
			"cluster %s is not ready within %s%s; it goes on: look with `atoll cluster watch %s`, `atoll cluster "+
				"statuses %s`", k.Name, timeout, why, k.Name, k.Name)
	case ctx.Err() != nil:
		fmt.Fprintf(c.Err, "cluster %s goes on without you; look on with `atoll cluster watch %s`\n", k.Name, k.Name)
		return ctx.Err()
	}
	return err
}

// errLate is why a wait ends that took too long.
var errLate = errors.New("too late")

func clusterWatch(c *terminal.Session) *cobra.Command {
	var cursor string
	cmd := &cobra.Command{
		Use:   "watch [NAME]",
		Short: "Look on how a cluster comes to life, or at all clusters, until Ctrl-C",
		Long: `With a NAME it draws the cluster's stages and how long each took, in place on a terminal,
a line each elsewhere. Without one it shows all clusters, and then each change. With
-o json each line is an event with a cursor, from where --cursor continues later.`,
		Example: `  atoll cluster watch demo
  atoll cluster watch -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completion(c, completeClusters),
	}
	cmd.Flags().StringVar(&cursor, "cursor", "", "with -o: go on from the cursor of an earlier event")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			o := remote.WatchOptions{Cursor: cursor}
			name := ""
			if len(args) > 0 {
				k, err := clusterNamed(ctx, api, args[0])
				if err != nil {
					return err
				}
				if out.Format == "table" {
					return watchOne(c, ctx, api, k.Cluster)
				}
				o.ID, name = k.ID, k.Name
			}
			if out.Format == "table" {
				c.Printf(clusterLine, "TIME", "EVENT", "NAME", "STATUS", "VERSION", "MESSAGE")
			}
			return api.FollowClusters(ctx, o, func(e remote.Event) error { return showCluster(c, e, out, name) })
		})
	}
	return cmd
}

// watchOne draws one cluster until Ctrl-C, or until it is gone.
func watchOne(c *terminal.Session, ctx context.Context, api *client.Client, k platform.Cluster) error {
	pools, err := api.NodePools(ctx, client.NodePoolQuery{Cluster: k.ID})
	if err != nil {
		return err
	}
	d := newDisplay(c.Out, k, len(pools) > 0)
	err = lookOn(ctx, api, k.ID, func(n news) error {
		if n.gone {
			d.phase = "Deleted"
			d.show()
			return errReached
		}
		d.learn(n)
		return nil
	}, func() error { d.show(); return nil })
	if errors.Is(err, errReached) {
		c.Printf("cluster %s is gone\n", k.Name)
		return nil
	}
	return err
}

// clusterLine is a line of a table whose end nobody knows yet.
const clusterLine = "%-12s  %-8s  %-24s  %-20s  %-8s  %s\n"

// showCluster prints one event of a watch.
func showCluster(c *terminal.Session, e remote.Event, out *terminal.Output, _ string) error {
	switch out.Format {
	case "json":
		line, err := json.Marshal(e)
		if err == nil {
			_, err = c.Out.Write(append(line, '\n'))
		}
		return err
	case "yaml":
		text, err := yaml.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(c.Out, "---\n%s", text)
		}
		return err
	}
	if e.Type == remote.Relist {
		_, err := fmt.Fprintln(c.Err, "changes may have been missed; what exists follows")
		return err
	}
	if len(e.Object) == 0 {
		return nil
	}
	var k platform.Cluster
	if err := json.Unmarshal(e.Object, &k); err != nil {
		return fmt.Errorf("watching clusters: %w", err)
	}
	if out.Format == "name" {
		_, err := fmt.Fprintf(c.Out, "%s %s\n", e.Type, k.Name)
		return err
	}
	_, err := fmt.Fprintf(c.Out, clusterLine, time.Now().Format("15:04:05.000"), e.Type, k.Name, phaseOf(k),
		dash(k.Status.Version), terminal.OneLine(k.Status.Message))
	return err
}

func clusterEvents(c *terminal.Session) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events NAME",
		Short: "Show what happened to a cluster",
		Example: `  atoll cluster events demo
  atoll cluster events demo --follow`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(c, completeClusters),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens, until Ctrl-C or the cluster is gone")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			k, err := clusterNamed(ctx, api, args[0])
			if err != nil {
				return err
			}
			if follow {
				return followEvents(c, ctx, api, k.ID, out)
			}
			all, err := api.ClusterEvents(ctx, k.ID)
			if err != nil {
				return err
			}
			return out.Print(c.Out, platform.EventList{Items: all}, func(w io.Writer) {
				rows := [][]string{{"TIME", "SINCE", "TYPE", "STAGE", "REASON", "MESSAGE"}}
				for _, e := range all {
					rows = append(rows, []string{e.Time.Local().Format("15:04:05.000"), sinceText(e), string(e.Type),
						dash(string(e.Stage)), e.Reason, e.Message})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}

func sinceText(e platform.Event) string {
	return terminal.Took(time.Duration(e.SinceMs) * time.Millisecond)
}

// eventLine is a line of a table whose end nobody knows yet.
const eventLine = "%-12s  %8s  %-7s  %-13s  %-24s  %s\n"

func followEvents(c *terminal.Session, ctx context.Context, api *client.Client, id string, out *terminal.Output) error {
	if out.Format == "table" {
		c.Printf(eventLine, "TIME", "SINCE", "TYPE", "STAGE", "REASON", "MESSAGE")
	}
	err := api.FollowClusterEvents(ctx, id, func(e platform.Event) error {
		switch out.Format {
		case "json":
			line, err := json.Marshal(e)
			if err == nil {
				_, err = c.Out.Write(append(line, '\n'))
			}
			return err
		case "yaml":
			text, err := yaml.Marshal(e)
			if err == nil {
				_, err = fmt.Fprintf(c.Out, "---\n%s", text)
			}
			return err
		}
		_, err := fmt.Fprintf(c.Out, eventLine, e.Time.Local().Format("15:04:05.000"), sinceText(e), e.Type,
			dash(string(e.Stage)), terminal.OneLine(e.Reason), terminal.OneLine(e.Message))
		return err
	})
	if remote.StatusOf(err) == http.StatusNotFound {
		fmt.Fprintln(c.Err, "the cluster is gone")
		return nil
	}
	return err
}

// errReached ends a watch: what the command waits for is so.
var errReached = errors.New("reached")
