package customer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// restorePoll is the interval at which `cluster restore --wait` reads the state of a restore.
const restorePoll = 500 * time.Millisecond

func clusterRestore(session *terminal.Session) *cobra.Command {
	var at, as string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "restore NAME --at TIME", Args: cobra.ExactArgs(1),
		Short: "Restore a cluster to a second, in place or as a new cluster",
		Long: `Restores a cluster's control plane to a second of its backups: every write that was
acknowledged before is there, and none that began more than a second later.

In place, the Kubernetes API does not answer for some seconds. The endpoint, the authority and all
credentials stay; nodes and node pools follow the cluster's present orders. With --as a new
cluster begins with the data, and gets an authority and credentials of its own; make its
node pools with "atoll nodepool create". --dry-run shows which objects a restore in place
would change, and changes nothing.`,
		Example: `  atoll cluster restore demo --at 2027-01-02T15:04:05Z --dry-run
  atoll cluster restore demo --at 2027-01-02T15:04:05Z --wait
  atoll cluster restore demo --at 2027-01-02T15:04:05Z --as demo-yesterday --wait`,
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().StringVar(&at, "at", "", "the second, in RFC 3339, such as 2027-01-02T15:04:05Z (required)")
	cmd.Flags().StringVar(&as, "as", "", "name of a new cluster that begins with the data")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show which objects would change; waits for the answer")
	_ = cmd.MarkFlagRequired("at")
	f := terminal.AddWaitFlags(cmd, "restored")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		moment, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return fmt.Errorf("--at %q is not a time in RFC 3339, such as 2027-01-02T15:04:05Z", at)
		}
		if dryRun && as != "" {
			return errors.New("--dry-run shows what a restore in place would change; leave --as out")
		}
		request := platform.RestoreRequest{At: moment, DryRun: dryRun, Name: as}
		if as != "" {
			request.Mode = platform.RestoreRequestModeClone
		}
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			restore, err := api.Restore(ctx, client.ClusterID(cluster.ID), request)
			if err != nil {
				return err
			}
			progress := out.Progress(session)
			if f.Wait || dryRun {
				if restore, err = awaitRestore(ctx, api, restore, f.Timeout, progress); err != nil {
					return err
				}
			}
			return out.Print(session.Out, restore, func(w io.Writer) { restoreDetails(w, args[0], as, restore) })
		})
	}
	return cmd
}

// awaitRestore waits for the end of a restore and prints each change of its state. The error is that of a restore that
// failed, or that the timeout has passed.
func awaitRestore(ctx context.Context, api *client.Client, restore platform.Restore, timeout time.Duration,
	out io.Writer) (platform.Restore, error) {
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errWaitTimeout)
	defer cancel()
	tick := time.NewTicker(restorePoll)
	defer tick.Stop()
	last := ""
	for {
		b, err := api.Backups(limited, client.ClusterID(restore.ClusterID))
		if limited.Err() != nil {
			return restore, fmt.Errorf("%w: the restore is %s; it goes on (see: atoll cluster backups %s)",
				context.Cause(limited), restoreText(restore), restore.ClusterID)
		}
		if err != nil {
			return restore, err
		}
		if b.Restore == nil || b.Restore.ID != restore.ID {
			return restore, fmt.Errorf("the restore %s was replaced by another one", restore.ID)
		}
		restore = *b.Restore
		if text := restoreText(restore); text != last {
			last = text
			fmt.Fprintln(out, text)
		}
		switch restore.Phase {
		case platform.RestorePhaseCompleted:
			return restore, nil
		case platform.RestorePhaseFailed:
			return restore, fmt.Errorf("the restore failed and has changed nothing: %s", terminal.OneLine(restore.Message))
		}
		select {
		case <-limited.Done():
		case <-tick.C:
		}
	}
}

// restoreDetails prints a restore as text.
func restoreDetails(w io.Writer, name, as string, r platform.Restore) {
	switch {
	case r.Changes != nil:
		fmt.Fprintf(w, "a restore of %s to %s would create %d objects, change %d and delete %d\n", name,
			r.At.Format(time.RFC3339), r.Changes.Created, r.Changes.Updated, r.Changes.Deleted)
		if len(r.Changes.Kinds) > 0 {
			fmt.Fprintln(w)
			changeTable(w, *r.Changes)
		}
	case r.Phase == platform.RestorePhaseCompleted && as != "":
		fmt.Fprintf(w, "cluster %s has the data of %s as of %s; its node pools: atoll nodepool create NAME --cluster %s\n",
			as, name, r.At.Format(time.RFC3339), as)
	case r.Phase == platform.RestorePhaseCompleted:
		fmt.Fprintf(w, "cluster %s is restored to %s\n", name, r.At.Format(time.RFC3339))
	case as != "":
		fmt.Fprintf(w, "cluster %s (%s) begins with the data of %s; see: atoll cluster backups %s\n", as, r.ClusterID, name,
			as)
	default:
		fmt.Fprintf(w, "the restore of %s is ordered; see: atoll cluster backups %s\n", name, name)
	}
}

// changeTable prints the changes of a dry run.
func changeTable(w io.Writer, changes platform.RestoreChanges) {
	rows := [][]string{{"KIND", "CREATED", "CHANGED", "DELETED", "SOME OF THEM"}}
	for _, k := range changes.Kinds {
		rows = append(rows, []string{k.Kind, strconv.Itoa(k.Created), strconv.Itoa(k.Updated), strconv.Itoa(k.Deleted),
			strings.Join(k.Names, ", ")})
	}
	terminal.Table(w, rows)
	if changes.Left > 0 {
		fmt.Fprintf(w, "and %d kinds more\n", changes.Left)
	}
}
