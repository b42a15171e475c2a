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

	"atoll.dev/cli/customer"
	"atoll.dev/cli/operator"
	"atoll.dev/cli/services"
	"atoll.dev/cli/terminal"
	"atoll.dev/local"
)

// Main runs one command and returns the exit code: 0, or 1 after an error, or
// 130 after Ctrl-C.
func Main(args []string, in io.Reader, out, errw io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(&terminal.Session{In: in, Out: out, Err: errw})
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

// The groups of commands in the help of atoll, by the people or programs that run them.
const useGroup, operateGroup, serviceGroup = "use", "operate", "services"

func newRoot(session *terminal.Session) *cobra.Command {
	root := &cobra.Command{
		Use:   "atoll",
		Short: "A cloud region of hosted Kubernetes control planes",
		Long: `Atoll runs a cloud region of hosted Kubernetes/OpenShift control planes.

Start a region on this machine with "atoll up", look at it with "atoll status",
create a cluster with "atoll cluster create", send work to a management
cluster with "atoll work apply".`,
		SilenceUsage: true, SilenceErrors: true, Version: terminal.Version,
		Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
	}
	home, err := local.DefaultHome()
	root.PersistentFlags().StringVar(&session.HomeDir, "home", home,
		"directory of the region on this machine; ATOLL_HOME sets the default")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		session.HomeIsGiven = cmd.Flags().Changed("home")
		if session.HomeDir == "" {
			return err
		}
		return nil
	}
	root.AddGroup(&cobra.Group{ID: useGroup, Title: "Use a region:"}, &cobra.Group{ID: operateGroup,
		Title: "Operate a region:"},
		&cobra.Group{ID: serviceGroup, Title: "Services of a region:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, cmd := range cmds {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	quota := customer.Quota(session)
	quota.AddCommand(operator.Quota(session)...)
	cluster := customer.Cluster(session)
	cluster.AddCommand(operator.Cluster(session)...)
	add(useGroup, cluster, customer.NodePool(session), customer.Image(session), customer.Policy(session),
		customer.Group(session), customer.Admin(session), customer.Link(session), customer.Login(session),
		customer.Logout(session), quota, customer.WhoAmI(session))
	add(operateGroup, operator.Up(session), operator.Down(session), operator.Status(session), operator.Env(session),
		operator.Logs(session),
		operator.Account(session), operator.Audit(session), operator.Key(session), operator.ManagementCluster(session),
		operator.Work(session), operator.Config(session), operator.Rollout(session), operator.Region(session),
		operator.Backup(), operator.CA(session))
	// Services whose operators have commands below the same word.
	authority, maestro, manager := services.PKI(), services.Maestro(), services.CLM(session)
	authority.AddCommand(operator.PKIToken(session))
	maestro.AddCommand(operator.Maestro(session)...)
	manager.AddCommand(operator.CLM(session)...)
	add(serviceGroup, authority, services.Broker(), maestro, manager, services.Sentinel(session),
		services.Adapter(session),
		services.Platform(), services.Agent(),
		services.Hosting(), services.Router(), services.Node(), services.AzureGateway(), services.ObjectStore(),
		services.RegionBackup())
	root.AddCommand(services.Supervise(session), services.Probe(session),
		services.DescribeProgram(session))
	return root
}
