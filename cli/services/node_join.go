package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"atoll.dev/node"
	"atoll.dev/node/join"
	"atoll.dev/node/supervisor"
)

// joinedHome is the default home of a machine that joins a cluster.
const joinedHome = "/var/lib/atoll/node"

func nodeJoin() *cobra.Command {
	var tokenFile, home, programs, cpu, memory string
	var images []string
	cmd := &cobra.Command{
		Use: "join --token-file FILE", Short: "Make this machine a node of a cluster, until SIGTERM", Args: cobra.NoArgs,
		Long: `Makes this machine a node of the node pool whose token "atoll nodepool join-token" has
printed, and runs it until SIGTERM. The machine needs root and what "atoll node
preflight" lists; it dials the cluster's endpoint only, and nobody dials it. A token
is for one machine. After a kill or a restart the same command continues, also
without the token. When the cluster has removed the machine, the command ends with
an error that says so; "atoll node leave" removes what is left.`,
		Example: `  echo eyJhZGRyZXNzIjoi... | atoll node join --token-file -
  atoll node join`,
	}
	cmd.Flags().StringVar(&tokenFile, "token-file", "",
		"file with the token of the node pool; - is the standard input")
	cmd.Flags().StringVar(&home, "home", joinedHome, "directory for all that the node keeps, at most 64 bytes long")
	cmd.Flags().StringVar(&cpu, "cpu", "", "processors of the node (default: the machine's)")
	cmd.Flags().StringVar(&memory, "memory", "", "memory of the node (default: the machine's, less 512Mi)")
	cmd.Flags().StringArrayVar(&images, "image", nil, "archive of images that the node imports; repeatable")
	addProgramsFlag(cmd, &programs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		signal.Ignore(syscall.SIGPIPE)
		o := join.Options{Home: home, Programs: programs, Images: images, Logf: printTo(cmd.ErrOrStderr())}
		if err := supervisor.MissingError(supervisor.Preflight(programs)); err != nil {
			return err
		}
		var err error
		if o.Resources, err = sizeOfNode(cpu, memory); err != nil {
			return err
		}
		if o.Invitation, err = readInvitation(tokenFile, cmd.InOrStdin()); err != nil {
			return err
		}
		config, err := join.Join(ctx, o)
		if err != nil {
			return err
		}
		return runJoined(ctx, config, o.Logf)
	}
	return cmd
}

// runJoined runs the node of a machine that has joined until ctx ends or Follow reports that the cluster has removed
// it.
func runJoined(ctx context.Context, config node.Config, logf func(string, ...any)) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	go func() {
		err := join.Follow(running, config.Home, logf)
		cancel() // nothing of a removed node may run
		followed <- err
	}()
	err := supervisor.Run(running, config, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	cancel()
	followErr := <-followed
	if errors.Is(followErr, join.ErrRemoved) {
		followErr = fmt.Errorf("%w; remove what is left with: atoll node leave --home %s "+
			"(with --force when the cluster was deleted)", followErr, config.Home)
	}
	return errors.Join(err, followErr)
}

// sizeOfNode returns the machine's size as a node; the values of --cpu and --memory replace it where they are set.
func sizeOfNode(cpu, memory string) (node.Resources, error) {
	size, err := join.MachineSize()
	if err != nil {
		return size, err
	}
	for _, f := range []struct {
		flag, text string
		to         *resource.Quantity
	}{{"cpu", cpu, &size.CPU}, {"memory", memory, &size.Memory}} {
		if f.text == "" {
			continue
		}
		if *f.to, err = resource.ParseQuantity(f.text); err != nil {
			return size, fmt.Errorf("--%s %s: %w", f.flag, f.text, err)
		}
	}
	return size, nil
}

// readInvitation reads the file with the token; it returns nil when there is none.
func readInvitation(file string, in io.Reader) (*node.Invitation, error) {
	if file == "" {
		return nil, nil
	}
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		defer f.Close()
		in = f
	}
	const most = 128 << 10 // ParseInvitation accepts less
	data, err := io.ReadAll(io.LimitReader(in, most))
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	i, err := node.ParseInvitation(string(data))
	return &i, err
}

// printTo returns a function that prints lines to w.
func printTo(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
}

func nodeLeave() *cobra.Command {
	var home string
	var force bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "leave", Short: "Take this machine out of its cluster", Args: cobra.NoArgs,
		Long: `Has the cluster move the pods of this machine's node to other nodes and delete the
node, then ends the node's processes on this machine and deletes its home.`,
		Example: "  atoll node leave\n  atoll node leave --force",
	}
	cmd.Flags().StringVar(&home, "home", joinedHome, "home of the node")
	cmd.Flags().BoolVar(&force, "force", false, "send the cluster no request; it keeps a node that is not ready")
	cmd.Flags().DurationVar(&limit, "timeout", 15*time.Minute, "how long the pods may take to move")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		leave := func() error { return join.StopAndDelete(ctx, home) }
		if !force {
			leave = func() error {
				limited, cancel := context.WithTimeout(ctx, limit)
				defer cancel()
				return join.Leave(limited, home, printTo(cmd.ErrOrStderr()))
			}
		}
		if err := leave(); err != nil {
			return err
		}
		removed, err := supervisor.Sweep()
		for _, name := range removed {
			fmt.Fprintln(cmd.OutOrStdout(), "removed", name)
		}
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), "this machine has left its cluster")
		}
		return err
	}
	return cmd
}
