package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
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
			&drain{from: cluster.ManagementCluster(args[0]), step: fleet.Start, flags: f})
	}
	return cmd
}

// draining returns the change after which a management cluster gets no more clusters, and is marked for emptying.
func draining() platform.ManagementClusterUpdate {
	return platform.ManagementClusterUpdate{State: platform.ManagementClusterUpdateStateDraining}
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

// mover is the part of the connection to the lifecycle manager that a drain uses.
type mover interface {
	PlacedOn(ctx context.Context, managementCluster cluster.ManagementCluster) ([]cluster.ID, error)
	Move(ctx context.Context, id cluster.ID, o fleet.MoveOrder) (fleet.Placement, error)
	Placement(ctx context.Context, id cluster.ID) (fleet.Placement, error)
}

// drain moves all clusters of a management cluster, or recovers them elsewhere.
type drain struct {
	from  cluster.ManagementCluster
	step  fleet.MoveStep // Start or Recover
	flags *drainFlags
	fleet mover

	mu       sync.Mutex
	progress io.Writer
	moved    []outcome
	stayed   []outcome
}

// outcome is the result of a drain for one cluster: To is its new management cluster, or Error the reason why it stays.
type outcome struct {
	ClusterID cluster.ID `json:"cluster_id"`
	To        string     `json:"to,omitempty"`
	Error     string     `json:"error,omitempty"`
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
		slots := make(chan struct{}, d.flags.parallel)
		var moves sync.WaitGroup
		for _, id := range ids {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				break
			}
			moves.Go(func() {
				defer func() { <-slots }()
				d.moveOne(ctx, id)
			})
		}
		moves.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// hasTried reports whether the drain has moved, or tried to move, a cluster.
func (d *drain) hasTried(id cluster.ID) bool {
	is := func(r outcome) bool { return r.ClusterID == id }
	return slices.ContainsFunc(d.moved, is) || slices.ContainsFunc(d.stayed, is)
}

// moveOne moves a cluster, or waits for the move away that has begun, and records what became of it.
func (d *drain) moveOne(ctx context.Context, id cluster.ID) {
	p, err := d.fleet.Placement(ctx, id)
	if err == nil && !d.isLeaving(p) {
		p, err = d.fleet.Move(ctx, id, fleet.MoveOrder{Step: d.step})
	}
	if err == nil {
		p, err = awaitMove(ctx, d.fleet, p, d.step, d.flags.timeout, io.Discard)
	}
	if ctx.Err() != nil {
		return // a move goes on, and the next drain waits for it; a recovery goes on without being awaited
	}
	r := outcome{ClusterID: id}
	if err != nil {
		r.Error = explainError(err).Error()
		d.printf("%s stays: %s\n", id, terminal.OneLine(r.Error))
	} else {
		r.To = p.Move.To
		d.printf("%s %s: it is on %s\n", id, d.past(), r.To)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.stayed = append(d.stayed, r)
	} else {
		d.moved = append(d.moved, r)
	}
}

// isLeaving reports whether a move of the cluster away from the drained management cluster has begun. A recovery has no
// such state: the placement changes when it begins.
func (d *drain) isLeaving(p fleet.Placement) bool {
	return d.step == fleet.Start && p.Move != nil && p.Move.Phase == fleet.Moving && p.Move.From == string(d.from)
}

// past returns the word for what the drain has done with a cluster.
func (d *drain) past() string {
	if d.step == fleet.Recover {
		return "recovered"
	}
	return "moved"
}

func (d *drain) printf(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.progress, format, args...)
}

func (d *drain) result() drainResult {
	return drainResult{d.from, append([]outcome{}, d.moved...), append([]outcome{}, d.stayed...)}
}

func (d *drain) print(w io.Writer) {
	fmt.Fprintf(w, "%d clusters %s from %s, %d stay\n", len(d.moved), d.past(), d.from, len(d.stayed))
}
