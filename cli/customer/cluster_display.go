package customer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// progressDisplay shows a timeline: redrawn in place on a terminal, as lines elsewhere.
type progressDisplay struct {
	timeline
	screen   *screen // nil: lines
	out      io.Writer
	frame    int
	lastWait string    // the last reason for waiting that was printed
	since    time.Time // the time of the last change of the reason for waiting
}

// newDisplay returns a display of a cluster's progress up to the stage last.
func newDisplay(out io.Writer, cluster platform.Cluster, last lastStage) *progressDisplay {
	return &progressDisplay{
		timeline: timeline{
			name: cluster.Name, phase: string(cluster.Status.Phase), begun: cluster.CreatedAt, last: last,
		},
		out: out, screen: newScreen(out, os.Getenv),
	}
}

// apply records an update and prints the line of a newly reached stage when there is no screen.
func (d *progressDisplay) apply(update clusterUpdate) {
	switch {
	// warnings repeat the message of the cluster, which the next case handles
	case update.event != nil && update.event.Type == platform.EventTypeNormal:
		if d.recordStage(string(update.event.Stage), update.event.Time, update.event.Message) && d.screen == nil {
			fmt.Fprintln(d.out, d.stageLine(string(update.event.Stage)))
		}
	case update.cluster != nil:
		before := d.waitReason
		d.phase, d.waitReason = string(update.cluster.Status.Phase), update.cluster.Status.Message
		if d.phase == "Ready" {
			d.waitReason = "the nodes of its node pools"
		}
		if d.waitReason != before {
			d.since = time.Now()
		}
	}
}

// waitLineDelay is the time without progress after which a line shows the cause of the wait.
const waitLineDelay = 2 * time.Second

// show redraws the screen, or prints a line with the cause of the wait.
func (d *progressDisplay) show() {
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
	if d.waitReason != "" && d.waitReason != d.lastWait && now.Sub(d.since) > waitLineDelay && !d.isDone() {
		d.lastWait = d.waitReason
		fmt.Fprintln(d.out, d.waitLine(now))
	}
}

// awaitReady shows the progress of a cluster until it is ready and has reached the stage last.
func awaitReady(session *terminal.Session, ctx context.Context, api *client.Client, cluster platform.Cluster,
	last lastStage, timeout time.Duration, out io.Writer) error {
	d := newDisplay(out, cluster, last)
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errWaitTimeout)
	defer cancel()
	err := followCluster(limited, api, client.ClusterID(cluster.ID), func(update clusterUpdate) error {
		if update.gone {
			return fmt.Errorf("cluster %s was deleted meanwhile", cluster.Name)
		}
		d.apply(update)
		if d.phase == "Ready" && d.isDone() {
			d.show()
			return errGoalReached
		}
		return nil
	}, func() error { d.show(); return nil })
	switch {
	case errors.Is(err, errGoalReached):
		fmt.Fprintf(out, "cluster %s is ready after %s; to use it: atoll cluster kubeconfig %s\n", cluster.Name,
			terminal.FormatDuration(d.endTime(time.Now()).Sub(d.begun)), cluster.Name)
		return nil
	case errors.Is(err, errWaitTimeout):
		why := ""
		if d.waitReason != "" {
			why = ": " + terminal.OneLine(d.waitReason)
		}
		return fmt.Errorf(
			"cluster %s is not ready within %s%s; it goes on: look with `atoll cluster watch %s`, `atoll cluster "+
				"statuses %s`", cluster.Name, timeout, why, cluster.Name, cluster.Name)
	case ctx.Err() != nil:
		fmt.Fprintf(session.Err, "cluster %s is still changing; watch it with `atoll cluster watch %s`\n",
			cluster.Name, cluster.Name)
		return ctx.Err()
	}
	return err
}
