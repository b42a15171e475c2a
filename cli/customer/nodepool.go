package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/instancetype"
	"atoll.dev/internal/rest"
)

// NodePool returns the command `atoll nodepool`.
func NodePool(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "nodepool", Aliases: []string{"nodepools"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Node pools of clusters: create, list, scale, delete",
		Long: `Node pools of the account's clusters. Their nodes are simulated: pods are scheduled to
them and reported as running, and no container runs. NAME is a node pool's name, with
--cluster, or its id.`,
		Example: `  atoll nodepool create workers --cluster demo --replicas 3 --instance-type m6a.2xlarge
  atoll nodepool scale workers 5 --cluster demo --wait`,
	}
	cmd.AddCommand(poolCreate(session), poolList(session), poolGet(session), poolScale(session), poolDelete(session))
	return cmd
}

// addClusterFlag gives cmd the flag --cluster.
func addClusterFlag(session *terminal.Session, cmd *cobra.Command) *string {
	name := cmd.Flags().StringP("cluster", "c", "", "name or id of the cluster")
	_ = cmd.RegisterFlagCompletionFunc("cluster", func(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		return completeClusters(session, cmd, nil, word)
	})
	return name
}

// completePools completes the first argument with the names of node pools of the cluster that
// --cluster names.
func completePools(session *terminal.Session, cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	var words []cobra.Completion
	err := callRegion(session, ctx, func(ctx context.Context, api *client.Client) error {
		q := client.NodePoolQuery{}
		if name := cmd.Flag("cluster").Value.String(); name != "" {
			cluster, err := findCluster(ctx, api, name)
			if err != nil {
				return err
			}
			q.Cluster = cluster.ID
		}
		pools, err := api.NodePools(ctx, q)
		for _, p := range pools {
			if strings.HasPrefix(p.Name, word) {
				words = append(words, cobra.CompletionWithDesc(p.Name, readyText(p)+" ready"))
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// findPool finds a node pool by its id, or by its name in a cluster. Without a cluster the name
// must be unique among the account's node pools.
func findPool(ctx context.Context, api *client.Client, cluster, name string) (client.NodePool, error) {
	if uuid.Validate(name) == nil {
		return api.NodePool(ctx, name)
	}
	q := client.NodePoolQuery{Name: name}
	if cluster != "" {
		owner, err := findCluster(ctx, api, cluster)
		if err != nil {
			return client.NodePool{}, err
		}
		q.Cluster = owner.ID
	}
	found, err := api.NodePools(ctx, q)
	switch {
	case err != nil:
		return client.NodePool{}, err
	case len(found) == 0:
		return client.NodePool{}, fmt.Errorf("there is no node pool %q; `atoll nodepool list` shows what there is",
			name)
	case len(found) > 1 && cluster == "":
		return client.NodePool{}, fmt.Errorf("%d clusters have a node pool %q; name one with --cluster", len(found),
			name)
	}
	for _, p := range found {
		if p.DeletedAt == nil {
			return api.NodePool(ctx, p.ID)
		}
	}
	return api.NodePool(ctx, found[0].ID)
}

func poolCreate(session *terminal.Session) *cobra.Command {
	s := poolSettings{}
	var replicas int32
	var repair bool
	var taints []string
	cmd := &cobra.Command{
		Use: "create NAME --cluster CLUSTER", Short: "Create a node pool", Args: cobra.ExactArgs(1),
		Example: `  atoll nodepool create workers --cluster demo --replicas 3 --instance-type m6a.2xlarge --wait
  atoll nodepool create gpu --cluster demo --replicas 1 --label tier=gpu --taint gpu=true:NoSchedule`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cluster := addClusterFlag(session, cmd)
	cmd.MarkFlagRequired("cluster")
	cmd.Flags().Int32Var(&replicas, "replicas", 2, "nodes")
	cmd.Flags().StringVar(&s.instanceType, "instance-type", "",
		"what machines they would be, such as m6a.xlarge (default: the region's)")
	_ = cmd.RegisterFlagCompletionFunc("instance-type", cobra.FixedCompletions(instancetype.Names(),
		cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringToStringVar(&s.labels, "label", nil, "label of the nodes, k=v; repeatable")
	cmd.Flags().StringArrayVar(&taints, "taint", nil, "taint of the nodes, k=v:EFFECT; repeatable")
	cmd.Flags().BoolVar(&repair, "auto-repair", true, "replace lost nodes")
	cmd.Flags().StringVar(&s.displayName, "display-name", "", "a name for people")
	f := terminal.AddWaitFlags(cmd, "ready")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.replicas = &replicas
		if cmd.Flags().Changed("auto-repair") {
			s.autoRepair = &repair
		}
		for _, t := range taints {
			if err := s.taint(t); err != nil {
				return fmt.Errorf("--taint: %w", err)
			}
		}
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			owner, err := findCluster(ctx, api, *cluster)
			if err != nil {
				return err
			}
			request := platform.NodePoolRequest{ClusterID: owner.ID, Name: args[0]}
			if err := decodeStrict(s.spec(), &request.Spec); err != nil {
				return err
			}
			p, err := api.CreateNodePool(ctx, request)
			if err != nil {
				return err
			}
			return finishPoolChange(session, ctx, api, p, "accepted", f, out)
		})
	}
	return cmd
}

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
		if p, err = api.NodePool(ctx, p.ID); err != nil {
			return err
		}
	}
	return out.PrintNamed(session.Out, p.NodePool, p.Name)
}

// wantedReplicas returns the number of nodes that a spec requests.
func wantedReplicas(s platform.NodePoolSpec) int {
	switch {
	case s.NodePool != nil && s.NodePool.Replicas != nil:
		return int(*s.NodePool.Replicas)
	case s.Replicas != nil:
		return int(*s.Replicas)
	}
	return 0
}

// readyText returns READY/REQUESTED nodes.
func readyText(p platform.NodePool) string {
	return fmt.Sprintf("%d/%d", p.Status.Ready, wantedReplicas(p.Spec))
}

// poolGoal is what a command with --wait waits for.
type poolGoal string

const (
	poolReady poolGoal = "ready" // the present generation has all its nodes
	poolGone  poolGoal = "gone"
)

// awaitPool watches a node pool until the generation of p reaches the goal.
func awaitPool(session *terminal.Session, ctx context.Context, api *client.Client, p platform.NodePool, goal poolGoal,
	timeout time.Duration, out io.Writer) error {
	start, lastText, seen := time.Now(), "", false
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	err := api.FollowNodePools(limited, p.ClusterID, remote.WatchOptions{}, func(e remote.Event) error {
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
			fmt.Fprintf(out, "  %8s  %s\n", terminal.Took(time.Since(start)), text)
		}
		return nil
	})
	switch {
	case errors.Is(err, errGoalReached), goal == poolGone && remote.StatusOf(err) == http.StatusNotFound: // with its cluster
		fmt.Fprintf(out, "node pool %s is %s (%s)\n", p.Name, goal, terminal.Took(time.Since(start)))
		return nil
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(session.Err, "node pool %s goes on without you; look with `atoll nodepool get %s`\n", p.Name, p.ID)
		return ctx.Err()
	case errors.Is(context.Cause(limited), errTimeout):
		return fmt.Errorf("node pool %s is not %s within %s%s; it goes on: look with `atoll nodepool get %s`", p.Name,
			goal, timeout, lastStateText(lastText), p.ID)
	}
	return err
}

func poolScale(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "scale NAME REPLICAS", Short: "Set how many nodes a node pool has", Args: cobra.ExactArgs(2),
		Example:           "  atoll nodepool scale workers 5 --cluster demo --wait",
		ValidArgsFunction: completion(session, completePools),
	}
	cluster := addClusterFlag(session, cmd)
	f := terminal.AddWaitFlags(cmd, "ready")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		replicas, err := strconv.ParseInt(args[1], 10, 32)
		if err != nil {
			return fmt.Errorf("%q is no number of nodes", args[1])
		}
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			p, err := findPool(ctx, api, *cluster, args[0])
			if err != nil {
				return err
			}
			verb := fmt.Sprintf("scaled from %d to %d", wantedReplicas(p.Spec), replicas)
			if wantedReplicas(p.Spec) == int(replicas) {
				verb = "has that already"
			}
			if p, err = api.UpdateNodePool(ctx, p.ID, fmt.Appendf(nil, `{"spec":{"nodePool":{"replicas":%d}}}`,
				replicas), ""); err != nil {
				return err
			}
			return finishPoolChange(session, ctx, api, p, verb, f, out)
		})
	}
	return cmd
}

func poolDelete(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a node pool; its nodes are drained first", Args: cobra.ExactArgs(1),
		Example:           "  atoll nodepool delete workers --cluster demo --wait",
		ValidArgsFunction: completion(session, completePools),
	}
	cluster := addClusterFlag(session, cmd)
	f := terminal.AddWaitFlags(cmd, "gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			p, err := findPool(ctx, api, *cluster, args[0])
			if err != nil {
				return err
			}
			if err := api.DeleteNodePool(ctx, p.ID, ""); err != nil {
				return err
			}
			session.Printf("deletion of node pool %s (%s) ordered\n", p.Name, p.ID)
			if !f.Wait {
				return nil
			}
			return awaitPool(session, ctx, api, p.NodePool, poolGone, f.Timeout, session.Out)
		})
	}
	return cmd
}
