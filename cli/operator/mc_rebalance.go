package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/fleet"
	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
)

func mcRebalance(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rebalance",
		Short: "Move clusters from fuller management clusters to emptier ones",
		Long: `Moves clusters from fuller management clusters to emptier ones, each as "atoll cluster move" does,
until the reserved shares of their capacities differ by less than a tenth, or by less than one
cluster. Only management clusters that are Ready and have a capacity take part. A cluster with an
open upgrade, restore, move or other order stays; --dry-run shows the reasons.

The command starts at most --limit moves, less those that are under way in the region, and ends.
With --wait it goes on until the region is even, with at most --limit moves at once. It can be
interrupted and repeated: moves that have begun go on, and the next call counts them. A cluster
without a backup stays: control planes move through the store of their backups.`,
		Example: `  atoll mc rebalance --dry-run
  atoll mc rebalance --limit 4 --wait
  atoll mc rebalance -o json`,
		Args: cobra.NoArgs,
	}
	limit, isDryRun, wait, timeout := 1, false, false, 10*time.Minute
	cmd.Flags().IntVar(&limit, "limit", limit, "how many clusters move at once, from 1 to 100")
	cmd.Flags().BoolVar(&isDryRun, "dry-run", false, "show the moves, and start none")
	cmd.Flags().BoolVar(&wait, "wait", false, "go on until the region is even, showing progress")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout,
		"with --wait: how long to wait for one cluster, and for moves that another command has started")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	call, out := addCLMFlags(cmd), terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 1 || limit > fleet.MaxPlannedMoves {
			return fmt.Errorf("--limit must be from 1 to %d", fleet.MaxPlannedMoves)
		}
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			r := &rebalance{planner: l, moves: moves{step: fleet.Start, parallel: limit, timeout: timeout, fleet: l,
				progress: out.Progress(session)}}
			if isDryRun {
				plan, err := l.PlanRebalance(ctx, fleet.MaxPlannedMoves, nil)
				if err != nil {
					return err
				}
				return out.Print(session.Out, plan, func(w io.Writer) { printPlan(w, plan) })
			}
			run := r.start
			if wait {
				run = r.run
			}
			ran := run(ctx)
			if ran != nil && !errors.Is(ran, errOthersMove) {
				return ran
			}
			if err := out.Print(session.Out, r.result(), r.print); err != nil || len(r.stayed) == 0 {
				return errors.Join(ran, err)
			}
			return fmt.Errorf("%d clusters did not move; remove the reasons that the output has, and repeat the command",
				len(r.stayed))
		})
	}
	return cmd
}

// rebalancePlanner is the part of the connection to the lifecycle manager that plans a rebalancing.
type rebalancePlanner interface {
	PlanRebalance(ctx context.Context, limit int, stay []cluster.ID) (fleet.RebalancePlan, error)
}

// rebalance moves clusters until the management clusters are evenly used.
type rebalance struct {
	moves
	planner rebalancePlanner
	started []outcome
	last    fleet.RebalancePlan // the plan of the last pass
}

// errOthersMove is the cause of a wait for moves that the command has not started.
var errOthersMove = errors.New("the moves that are under way have not ended in time; see: atoll cluster trace")

// plan returns the next moves: at most as many as may begin beside the moves under way. Clusters that have failed to
// move are not in it.
func (r *rebalance) plan(ctx context.Context) (next []fleet.PlannedMove, err error) {
	stay := make([]cluster.ID, 0, len(r.stayed))
	for _, s := range r.stayed {
		stay = append(stay, s.ClusterID)
	}
	if r.last, err = r.planner.PlanRebalance(ctx, r.parallel, stay); err != nil {
		return nil, err
	}
	return r.last.Moves[:max(0, min(r.parallel-r.last.Moving, len(r.last.Moves)))], nil
}

// start starts the next moves and does not wait for them.
func (r *rebalance) start(ctx context.Context) error {
	next, err := r.plan(ctx)
	if err != nil {
		return err
	}
	for _, m := range next {
		id := cluster.ID(m.ClusterID)
		p, err := r.fleet.Move(ctx, id, fleet.MoveOrder{Step: r.step, To: m.To})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			r.record(outcome{ClusterID: id, Error: explainError(err).Error()})
			continue
		}
		r.printf("%s moves from %s to %s\n", id, p.Move.From, p.Move.To)
		r.started = append(r.started, outcome{ClusterID: id, To: p.Move.To})
	}
	return nil
}

// run moves clusters until a plan has no move and none is under way. It asks for a new plan after each pass, because
// clusters come, go and grow meanwhile. While all places are taken by moves of others it looks again each second. After
// 100 clusters that failed it ends. The error is that of a plan, of moves of others that do not end, or that ctx has
// ended.
func (r *rebalance) run(ctx context.Context) error {
	var waiting time.Time // since when moves of others take all places
	for len(r.stayed) < fleet.MaxPlannedMoves {
		next, err := r.plan(ctx)
		if err != nil {
			return err
		}
		if len(next) == 0 {
			if r.last.Moving == 0 {
				return nil
			}
			if waiting.IsZero() {
				waiting = time.Now()
				r.printf("%d moves are under way; the rebalancing waits for them\n", r.last.Moving)
			}
			if time.Since(waiting) >= r.timeout {
				return errOthersMove
			}
			if pause.For(ctx, time.Second); ctx.Err() != nil {
				return context.Cause(ctx)
			}
			continue
		}
		waiting = time.Time{}
		wanted := make([]wantedMove, len(next))
		for i, m := range next {
			wanted[i] = wantedMove{id: cluster.ID(m.ClusterID), from: cluster.ManagementCluster(m.From), to: m.To}
		}
		if err := r.pass(ctx, wanted); err != nil {
			return err
		}
	}
	return nil
}

// rebalanceResult is the output of a rebalancing.
type rebalanceResult struct {
	Started []outcome              `json:"started"` // and not awaited
	Moved   []outcome              `json:"moved"`
	Stayed  []outcome              `json:"stayed"`  // the region refused their moves, or they did not end
	Staying []fleet.StayingCluster `json:"staying"` // the last plan does not move them; it has the reasons
	Moving  int                    `json:"moving"`  // when the last plan was made
	Use     []fleet.RebalanceUse   `json:"management_clusters"`
}

func (r *rebalance) result() rebalanceResult {
	return rebalanceResult{append([]outcome{}, r.started...), append([]outcome{}, r.moved...),
		append([]outcome{}, r.stayed...), r.last.Staying, r.last.Moving, r.last.ManagementClusters}
}

func (r *rebalance) print(w io.Writer) {
	if len(r.started)+len(r.moved)+len(r.stayed) == 0 {
		if r.last.Moving > 0 {
			fmt.Fprintf(w, "no move was started; %d are under way\n", r.last.Moving)
		} else {
			fmt.Fprintln(w, "nothing moves: the management clusters are evenly used, or the clusters that would move must stay")
		}
	}
	if len(r.started) > 0 {
		fmt.Fprintf(w, "%d moves were started\n", len(r.started))
	}
	if len(r.moved) > 0 {
		fmt.Fprintf(w, "%d clusters moved\n", len(r.moved))
	}
	for _, s := range r.stayed {
		fmt.Fprintf(w, "%s stays: %s\n", s.ClusterID, terminal.OneLine(s.Error))
	}
	printStaying(w, r.last.Staying)
}

// printPlan prints the use of the management clusters, the moves and the clusters that stay.
func printPlan(w io.Writer, p fleet.RebalancePlan) {
	rows := [][]string{{"MANAGEMENT CLUSTER", "USED", "AFTER"}}
	for _, u := range p.ManagementClusters {
		rows = append(rows, []string{u.Name, percent(u.Used), percent(u.UsedAfter)})
	}
	terminal.Table(w, rows)
	if len(p.Moves) > 0 {
		rows := [][]string{{"CLUSTER", "FROM", "TO"}}
		for _, m := range p.Moves {
			rows = append(rows, []string{m.ClusterID, m.From, m.To})
		}
		terminal.Table(w, rows)
	}
	fmt.Fprintf(w, "%d clusters would move; %d move now\n", len(p.Moves), p.Moving)
	printStaying(w, p.Staying)
}

func printStaying(w io.Writer, staying []fleet.StayingCluster) {
	for _, s := range staying {
		fmt.Fprintf(w, "%s stays on %s: %s\n", s.ClusterID, s.ManagementCluster, s.Reason)
	}
}

// percent returns a share in millionths as a number of percent.
func percent(millionths int64) string { return fmt.Sprintf("%d%%", (millionths+5000)/10_000) }
