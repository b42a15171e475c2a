package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/fleet"
	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
)

// drainFlags are the flags of "atoll mc drain" and "atoll mc lost".
type drainFlags struct {
	move     bool
	parallel int
	timeout  time.Duration // of one cluster
}

func mcDrain(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "Place no more clusters on a management cluster; with --move, move its clusters to others",
		Long: `Places no more clusters on a management cluster, and marks it for emptying. With --move the
command then moves its clusters to others, one after another or --parallel at once, each as
"atoll cluster move" does. A cluster that cannot move stays, and does not stop the others.

The command can be interrupted and repeated: moves that have begun go on, and it goes on with
the clusters that are left. "atoll mc uncordon" ends the drain.`,
		Example: `  atoll mc drain edge-7
  atoll mc drain edge-7 --move --parallel 4
  atoll mc uncordon edge-7`,
		Args: cobra.ExactArgs(1),
	}
	f := &drainFlags{}
	cmd.Flags().BoolVar(&f.move, "move", false, "move the clusters to other management clusters, showing progress")
	cmd.Flags().IntVar(&f.parallel, "parallel", 1, "with --move: how many clusters move at once")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 10*time.Minute, "with --move: how long to wait for one cluster")
	call, out := addCLMFlags(cmd), terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		if !f.move {
			return updateMC(session, cmd.Context(), args[0], draining(), out)
		}
		return drainManagementCluster(session, cmd.Context(), call, out,
			&drain{moves: f.moves(fleet.Start), from: cluster.ManagementCluster(args[0])})
	}
	return cmd
}

// draining returns the change after which a management cluster gets no more clusters, and is marked for emptying.
func draining() platform.ManagementClusterUpdate {
	return platform.ManagementClusterUpdate{State: platform.ManagementClusterUpdateStateDraining}
}

// moves returns the moves of a command with these flags, without a connection to the lifecycle manager.
func (f *drainFlags) moves(step fleet.MoveStep) moves {
	return moves{step: step, parallel: f.parallel, timeout: f.timeout}
}

func (f *drainFlags) check() error {
	if f.parallel < 1 {
		return errors.New("--parallel must be at least 1")
	}
	return nil
}

// drainManagementCluster sets the state Draining, connects d to the lifecycle manager, runs d and prints its result. It
// returns an error when clusters stay.
func drainManagementCluster(session *terminal.Session, ctx context.Context, call *clmFlags, out *terminal.Output,
	d *drain) error {
	api, err := session.Client()
	if err != nil {
		return err
	}
	if _, err := api.UpdateManagementCluster(ctx, string(d.from), draining()); err != nil {
		return err
	}
	return callCLM(session, ctx, call, func(ctx context.Context, l *clmConnection) error {
		d.fleet, d.progress = l, out.Progress(session)
		if err := d.run(ctx); err != nil {
			return err
		}
		if err := out.Print(session.Out, d.result(), d.print); err != nil || len(d.stayed) == 0 {
			return err
		}
		return fmt.Errorf("%d clusters stay on %s; remove the reasons that the output has, and repeat the command",
			len(d.stayed), d.from)
	})
}

// drain moves all clusters of a management cluster, or recovers them elsewhere.
type drain struct {
	moves
	from cluster.ManagementCluster
}

// drainResult is the output of a drain.
type drainResult struct {
	ManagementCluster cluster.ManagementCluster `json:"management_cluster"`
	Moved             []outcome                 `json:"moved"`
	Stayed            []outcome                 `json:"stayed"`
}

// run moves clusters until the management cluster has none but those that cannot move. It lists again after each pass:
// a cluster may have been placed there while the first pass ran. The error is that of a list, or that ctx has ended.
func (d *drain) run(ctx context.Context) error {
	for {
		ids, err := d.fleet.PlacedOn(ctx, d.from)
		if err != nil {
			return err
		}
		ids = slices.DeleteFunc(ids, d.hasTried)
		if len(ids) == 0 {
			return nil
		}
		d.printf("%d clusters are on %s\n", len(ids), d.from)
		wanted := make([]wantedMove, len(ids))
		for i, id := range ids {
			wanted[i] = wantedMove{id: id, from: d.from}
		}
		if err := d.pass(ctx, wanted); err != nil {
			return err
		}
	}
}

func (d *drain) result() drainResult {
	return drainResult{d.from, append([]outcome{}, d.moved...), append([]outcome{}, d.stayed...)}
}

func (d *drain) print(w io.Writer) {
	fmt.Fprintf(w, "%d clusters %s from %s, %d stay\n", len(d.moved), d.past(), d.from, len(d.stayed))
}
