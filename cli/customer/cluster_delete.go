package customer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func clusterDelete(session *terminal.Session) *cobra.Command {
	var yes, force bool
	var reason string
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a cluster, its node pools and its data, for good",
		Long: `Deletes a cluster for good: its node pools, its control plane, its data. On a terminal it
asks for the cluster's name first. With --wait it returns when nothing is left.`,
		Example: `  atoll cluster delete demo --wait
  atoll cluster list --status Ready -o name | xargs -n1 atoll cluster delete --yes`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for the cluster's name")
	cmd.Flags().BoolVar(&force, "force", false,
		"for privileged callers: remove the record of a cluster whose deletion does not end; objects on its management "+
			"cluster may stay")
	cmd.Flags().StringVar(&reason, "reason", "", "with --force: why; the region records it")
	cmd.MarkFlagsRequiredTogether("force", "reason")
	f := terminal.AddWaitFlags(cmd, "gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			if !yes && cluster.DeletedAt == nil {
				if err := confirmDeletion(session, ctx, cluster.Cluster); err != nil {
					return err
				}
			}
			if err := api.DeleteCluster(ctx, client.ClusterID(cluster.ID), client.DeleteOptions{Force: force,
				Reason: reason}); err != nil {
				return err
			}
			session.Printf("deletion of cluster %s (%s) ordered\n", cluster.Name, cluster.ID)
			if !f.Wait {
				return nil
			}
			return awaitCluster(session, ctx, api, cluster.Cluster, clusterGoal{name: "gone"}, f.Timeout, session.Out)
		})
	}
	return cmd
}

// confirmDeletion asks for the name of the cluster when the input is a terminal, and returns an error
// unless the answer is that name. When the input is no terminal it does not ask.
func confirmDeletion(session *terminal.Session, ctx context.Context, cluster platform.Cluster) error {
	in, ok := session.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil
	}
	fmt.Fprintf(session.Err, "%s and all that is in it will be gone for good. Type its name to go on: ", cluster.Name)
	answer, err := readLine(ctx, in)
	if err != nil {
		return err
	}
	if strings.TrimSpace(answer) != cluster.Name {
		return errors.New("nothing was deleted")
	}
	return nil
}

// readLine reads a line, or the rest of the input. A read from a terminal cannot be cancelled: when
// ctx ends first, the reading goroutine stays until the process ends.
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
