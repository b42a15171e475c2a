package services

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/internal/coldstart"
	"atoll.dev/node"
	"atoll.dev/node/supervisor"
)

// Node returns the commands below `atoll node`.
func Node() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Real nodes on this machine: join, leave, run, status, image, preflight, sweep",
		Args:  terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Long: `A real node is kubelet, kube-proxy and containerd in namespaces and a cgroup of
its own. It needs root, cgroups, overlayfs, runc and nft or iptables:
"atoll node preflight" lists the missing parts.`,
	}
	image := &cobra.Command{Use: "image", Short: "Images of one node", Args: terminal.RefuseUnknownVerb,
		RunE: terminal.ShowHelp}
	image.AddCommand(nodeImageLoad())
	cmd.AddCommand(nodeRun(), nodeInit(), nodeJoin(), nodeLeave(), nodePreflight(), nodeSweep(), nodeStatus(), image)
	return cmd
}

func nodeRun() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "run --config FILE", Short: "Run one node until SIGTERM", Args: cobra.NoArgs,
		Long: `Runs the node that the file describes, and restarts its programs when they end. On
SIGTERM it ends every process of the node and removes everything except its home.
The file is JSON, with mode 0600; docs/nodes.md describes it.`,
		Example: "  atoll node run --config /var/lib/atoll/nodes/w1.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			coldstart.End()
			config, err := node.ReadConfig(file)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			signal.Ignore(syscall.SIGPIPE)
			return supervisor.Run(ctx, config, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the node's config")
	cmd.MarkFlagRequired("config")
	return cmd
}

func nodeInit() *cobra.Command {
	return &cobra.Command{
		Use: "init", Hidden: true, Args: cobra.NoArgs, Short: "The first process of a node (started by node run)",
		RunE: func(*cobra.Command, []string) error { return supervisor.RunInit() },
	}
}

func nodePreflight() *cobra.Command {
	var programs string
	cmd := &cobra.Command{
		Use: "preflight", Short: "List what this machine lacks for real nodes", Args: cobra.NoArgs,
		Long: `Lists the parts that this machine lacks for real nodes. It fails when one is missing.
It also says whether nodes have user namespaces: without them who is root in a
node can become root of this machine; and whether they have disks of their own:
without them pods can fill the disk of this machine. It tries both in the directory
of temporary files. Set TMPDIR when the homes of nodes are on another file system.`,
		Example: "  atoll node preflight -o json\n  TMPDIR=/var/lib/atoll atoll node preflight",
	}
	output := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		missing := supervisor.Preflight(programs)
		answer := preflightAnswer{Ready: len(missing) == 0, Missing: append([]supervisor.Missing{}, missing...)}
		if answer.Ready {
			answer.TriedIn = os.TempDir()
			if err := supervisor.TryUserNamespace(answer.TriedIn); err != nil {
				answer.NoUserNamespace = err.Error()
			}
			if err := supervisor.TryDisk(answer.TriedIn); err != nil {
				answer.NoDisk = err.Error()
			}
		}
		err := output.Print(cmd.OutOrStdout(), answer, answer.print)
		if err == nil && !answer.Ready {
			err = errors.New("this machine cannot run real nodes")
		}
		return err
	}
	addProgramsFlag(cmd, &programs)
	return cmd
}

// preflightAnswer is the output of `atoll node preflight`.
type preflightAnswer struct {
	Ready   bool                 `json:"ready"`
	Missing []supervisor.Missing `json:"missing"`
	// TriedIn is the directory in which user namespaces and disks were tried; "": they were not. Homes of nodes that are
	// on another file system may give another answer.
	TriedIn string `json:"triedIn,omitempty"`
	// NoUserNamespace says why nodes have no user namespaces of their own; "": they have.
	NoUserNamespace string `json:"noUserNamespace,omitempty"`
	// NoDisk says why nodes have no disks of their own; "": they have.
	NoDisk string `json:"noDisk,omitempty"`
}

// print writes the answer for people.
func (a preflightAnswer) print(w io.Writer) {
	if !a.Ready {
		rows := [][]string{{"MISSING", "REASON", "WHAT TO DO"}}
		for _, m := range a.Missing {
			rows = append(rows, []string{m.Part, m.Reason, m.Install})
		}
		terminal.Table(w, rows)
		return
	}
	fmt.Fprintf(w, "this machine can run real nodes (tried in %s; set TMPDIR if homes of nodes are on another file "+
		"system)\n", a.TriedIn)
	if a.NoUserNamespace != "" {
		fmt.Fprintln(w, "who is root in a node can become root of this machine, because nodes have no user namespaces:",
			a.NoUserNamespace)
	}
	if a.NoDisk != "" {
		fmt.Fprintln(w, "pods can fill the disk of this machine, because nodes have no disks of their own:", a.NoDisk)
	}
}

// addProgramsFlag adds the flag of the path of atoll-node.
func addProgramsFlag(cmd *cobra.Command, programs *string) {
	beside := "atoll-node"
	if self, err := os.Executable(); err == nil {
		beside = filepath.Join(filepath.Dir(self), beside)
	}
	cmd.Flags().StringVar(programs, "programs", beside, "path of atoll-node")
}

func nodeSweep() *cobra.Command {
	return &cobra.Command{
		Use: "sweep", Short: "Remove cgroups and bridges of nodes that were killed", Args: cobra.NoArgs,
		Long: `Removes the cgroups and bridges of nodes whose processes have ended without their
supervisor. A supervisor does this for its own node when it starts. It touches no
running node.`,
		Example: "  atoll node sweep",
		RunE: func(cmd *cobra.Command, _ []string) error {
			removed, err := supervisor.Sweep()
			for _, name := range removed {
				fmt.Fprintln(cmd.OutOrStdout(), "removed", name)
			}
			return err
		},
	}
}

func nodeStatus() *cobra.Command {
	var home string
	cmd := &cobra.Command{
		Use: "status --home DIR", Short: "Show the state of one node's supervisor", Args: cobra.NoArgs,
		Example: "  atoll node status --home /var/lib/atoll/nodes/w1",
	}
	output := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		status, err := node.ReadStatus(home)
		if err != nil {
			return err
		}
		running, err := node.Running(home)
		if err != nil {
			return err
		}
		answer := struct {
			Running bool `json:"running"`
			node.Status
		}{running, status}
		return output.Print(cmd.OutOrStdout(), answer, func(w io.Writer) {
			fmt.Fprintf(w, "state %s, supervisor %d running: %t %s\n", status.State, status.Supervisor, running,
				status.Message)
			rows := [][]string{{"PROGRAM", "PID", "RESTARTS", "LAST EXIT"}}
			for _, name := range slices.Sorted(maps.Keys(status.Programs)) {
				p := status.Programs[name]
				rows = append(rows, []string{name, strconv.Itoa(p.PID), strconv.Itoa(p.Restarts), p.LastExit})
			}
			terminal.Table(w, rows)
		})
	}
	cmd.Flags().StringVar(&home, "home", "", "home of the node")
	cmd.MarkFlagRequired("home")
	return cmd
}

func nodeImageLoad() *cobra.Command {
	var home, programs string
	cmd := &cobra.Command{
		Use: "load FILE|DIR --home DIR", Short: "Import images into one node", Args: cobra.ExactArgs(1),
		Long: `Imports the images of an archive in OCI layout or of docker save, or of a
directory in OCI layout, into the node of a home. Pods name an image as the
archive does; nothing is pulled.`,
		Example: "  atoll node image load bin/demo-image.tar --home /var/lib/atoll/nodes/w1",
		RunE: func(cmd *cobra.Command, args []string) error {
			return supervisor.LoadImage(cmd.Context(), home, programs, args[0], cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&home, "home", "", "home of the node")
	cmd.MarkFlagRequired("home")
	addProgramsFlag(cmd, &programs)
	return cmd
}
