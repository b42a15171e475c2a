package customer

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// rotationPoll is the interval at which `cluster rotate --wait` reads the state of a rotation.
const rotationPoll = 500 * time.Millisecond

func clusterRotate(session *terminal.Session) *cobra.Command {
	var key, step string
	cmd := &cobra.Command{
		Use: "rotate NAME --key KEY --step STEP", Args: cobra.ExactArgs(1),
		Short: "Replace a key of a cluster's control plane, in two steps",
		Long: `Replaces a key that somebody else may know, in two steps. After "prepare" the control plane uses a new
key and still accepts the old one; after "complete" it accepts the new key only. Each step restarts the
control plane once: connections wait for some seconds.

  service-account   signs the tokens of service accounts. Between the steps, programs outside of the
                    cluster get new tokens; kubelets renew those of pods within an hour.
  encryption        encrypts the Secrets in etcd. "prepare" encrypts all of them again.
  ca                signs the certificates of clients, nodes and the API server. Between the steps, make
                    new kubeconfigs; the old ones end with "complete". Local nodes are replaced after
                    "prepare" as for an upgrade; machines of yours leave and join again. "complete" waits
                    until no node has a certificate of the old CA, and names the nodes that have one.

"atoll cluster get NAME" shows how far the rotations are.`,
		Example: `  atoll cluster rotate demo --key service-account --step prepare --wait
  atoll cluster rotate demo --key service-account --step complete --wait
  atoll cluster rotate demo --key encryption --step prepare -o json
  atoll cluster rotate demo --key ca --step prepare --wait`,
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().StringVar(&key, "key", "", "service-account, encryption or ca (required)")
	cmd.Flags().StringVar(&step, "step", "", "prepare or complete (required)")
	_, _ = cmd.MarkFlagRequired("key"), cmd.MarkFlagRequired("step")
	for flag, words := range map[string][]string{
		"key": {string(platform.RotatedKeyServiceAccount), string(platform.RotatedKeyEncryption),
			string(platform.RotatedKeyCa)},
		"step": {string(platform.RotationRequestStepPrepare), string(platform.RotationRequestStepComplete)},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	f := terminal.AddWaitFlags(cmd, "prepared or completed")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := platform.RotationRequest{Key: platform.RotatedKey(key), Step: platform.RotationRequestStep(step)}
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			rotation, err := api.RotateKey(ctx, client.ClusterID(cluster.ID), request)
			if err != nil {
				return err
			}
			if f.Wait {
				rotation, err = awaitRotation(ctx, api, cluster.Cluster, rotation, f.Timeout, out.Progress(session))
				if err != nil {
					return err
				}
			}
			return out.Print(session.Out, rotation, func(w io.Writer) { rotationDetails(w, cluster.Name, rotation) })
		})
	}
	return cmd
}

// awaitRotation waits for the end of a step and prints each change of its state. The error is that of a rotation that
// failed, or that the timeout has passed.
func awaitRotation(ctx context.Context, api *client.Client, of platform.Cluster, rotation platform.Rotation,
	timeout time.Duration, out io.Writer) (platform.Rotation, error) {
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errWaitTimeout)
	defer cancel()
	tick := time.NewTicker(rotationPoll)
	defer tick.Stop()
	last := ""
	for {
		cluster, err := api.Cluster(limited, client.ClusterID(of.ID))
		if limited.Err() != nil {
			return rotation, fmt.Errorf("%w: the rotation is %s; it goes on (see: atoll cluster get %s)",
				context.Cause(limited), rotation.Phase, of.Name)
		}
		if err != nil {
			return rotation, err
		}
		for _, r := range cluster.Status.Rotations {
			if r.ID == rotation.ID && r.Key == rotation.Key {
				rotation = r
			}
		}
		switch rotation.Phase {
		case platform.RotationPhasePrepared, platform.RotationPhaseCompleted:
			return rotation, nil
		case platform.RotationPhaseFailed:
			return rotation, fmt.Errorf("the rotation of the %s key failed: %s", rotation.Key,
				terminal.OneLine(rotation.Message))
		}
		if text := rotationText(rotation); text != last {
			last = text
			fmt.Fprintf(out, "%s: %s\n", of.Name, text)
		}
		select {
		case <-limited.Done():
		case <-tick.C:
		}
	}
}

// rotationText returns the state of a rotation in one line.
func rotationText(r platform.Rotation) string {
	text := string(r.Phase)
	if r.Message != "" {
		text += ": " + terminal.OneLine(r.Message)
	}
	return text
}

// rotationDetails prints a rotation as text, with the next step.
func rotationDetails(w io.Writer, name string, r platform.Rotation) {
	fmt.Fprintf(w, "the %s key of %s: %s\n", r.Key, name, rotationText(r))
	switch r.Phase {
	case platform.RotationPhasePrepared:
		fmt.Fprintf(w, "next: atoll cluster rotate %s --key %s --step complete\n", name, r.Key)
	case platform.RotationPhasePreparing, platform.RotationPhaseCompleting:
		fmt.Fprintf(w, "see: atoll cluster get %s\n", name)
	}
}
