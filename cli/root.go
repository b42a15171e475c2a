package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"atoll.dev/local"
)

// version is set by the linker.
var version = "development"

// command is what every verb needs: the streams, and the home it works on.
type command struct {
	in        io.Reader
	out, err  io.Writer
	homeDir   string
	homeGiven bool // by the flag, which is stronger than any variable
}

// Main runs one command and returns the exit code: 0, or 1 after an error, or
// 130 after Ctrl-C.
func Main(args []string, in io.Reader, out, errw io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(&command{in: in, out: out, err: errw})
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return 130
	default:
		fmt.Fprintln(errw, "atoll:", err)
		return 1
	}
}

func newRoot(c *command) *cobra.Command {
	root := &cobra.Command{
		Use:   "atoll",
		Short: "A cloud region of hosted Kubernetes control planes",
		Long: `Atoll runs a cloud region of hosted Kubernetes/OpenShift control planes.

Start a region on this machine with "atoll up", look at it with "atoll status",
ask it for a cluster with "atoll cluster create", send work to a management
cluster with "atoll work apply".`,
		SilenceUsage: true, SilenceErrors: true, Version: version,
		Args: knownVerb, RunE: showHelp,
	}
	home, err := local.DefaultHome()
	root.PersistentFlags().StringVar(&c.homeDir, "home", home,
		"directory of the region on this machine; ATOLL_HOME sets the default")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		c.homeGiven = cmd.Flags().Changed("home")
		if c.homeDir == "" {
			return err
		}
		return nil
	}
	const use, operate, services = "use", "operate", "services"
	root.AddGroup(&cobra.Group{ID: use, Title: "Use a region:"}, &cobra.Group{ID: operate, Title: "Operate a region:"},
		&cobra.Group{ID: services, Title: "Services of a region:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, cmd := range cmds {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add(use, c.cluster(), c.nodepool())
	add(operate, c.up(), c.down(), c.status(), c.env(), c.logs(), c.key(), c.mc(), c.work())
	add(services, c.pki(), c.broker(), c.maestro(), c.clm(), c.sentinel(), c.adapter(), c.platform(), c.agent(),
		c.hosting(), c.router())
	root.AddCommand(c.supervise(), c.probe())
	return root
}

// knownVerb and showHelp are for commands that only hold others: without a verb
// they show them, with an unknown one they fail.
func knownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q for %q; see `%s --help`", args[0], cmd.CommandPath(), cmd.CommandPath())
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func (c *command) home() (local.Home, error) { return local.OpenHome(c.homeDir) }

func (c *command) printf(format string, args ...any) { fmt.Fprintf(c.out, format, args...) }
