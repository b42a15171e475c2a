package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
	"atoll.dev/local"
)

// stopLimit bounds `down`, and the `down` that Ctrl-C of `up` executes.
const stopLimit = 15 * time.Second

// Up returns the command `atoll up`.
func Up(session *terminal.Session) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a region on this machine, or go on where an earlier start stopped",
		Long: `Starts every process of a region and registers its local management clusters as
management-01, management-02, ... It shows a line for each stage and serves until
Ctrl-C, which stops the region as "atoll down" does; with --detach it returns when the
region serves.

On a running region it changes nothing; with a larger --management-clusters it adds
some. All files are below --home, where the next "atoll up" uses them again.`,
		Example: `  atoll up
  atoll up --detach --management-clusters 2
  atoll up --home /tmp/r1 --region eu-north-9
  atoll up --nodes local                       # nodes that run pods; as root
  atoll up --azure                             # for programs of Azure's SDKs
  atoll up --backups                           # see: atoll backup --help
  atoll up --backups --recover-lost-after 30m  # clusters of a lost management cluster go on elsewhere`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			home, err := session.Home()
			if err != nil {
				return err
			}
			options, err := f.read(cmd)
			if err != nil {
				return err
			}
			if _, err := home.State(); options.Region == "" && err != nil {
				options.Region = "local-1"
			}
			as := attached
			if f.detach {
				as = detached
			}
			return startRegion(session, cmd.Context(), home, options, as)
		},
	}
	f.add(cmd)
	return cmd
}

// upFlags are the flags of `atoll up`.
type upFlags struct {
	options                          local.UpOptions
	detach, insecure, azure, backups bool
	traces, nodes                    string
	warmPlanes                       int
	lostAfter                        time.Duration
}

func (f *upFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.options.Region, "region", "",
		"name of a new region, also the region of AWS signatures (default local-1)")
	cmd.Flags().IntVar(&f.options.ManagementClusters, "management-clusters", 0,
		"number of local management clusters (default: as they are, 1 in a new region)")
	cmd.Flags().BoolVar(&f.insecure, "insecure-listen", false,
		"Maestro and CLM also listen on loopback without TLS, for every user of this machine (default: as it is, no "+
			"in a new region)")
	cmd.Flags().BoolVar(&f.azure, "azure", false,
		"the region also serves Azure Resource Manager, with a stand-in for Azure on this machine (default: as it is, "+
			"no in a new region)")
	cmd.Flags().BoolVar(&f.backups, "backups", false,
		"clusters are backed up continuously to an object store on this machine, which is lost with the machine: in "+
			"production, atoll hosting --backups names a real store in another account (default: as it is, no in a new "+
			"region)")
	cmd.Flags().IntVar(&f.warmPlanes, "warm-planes", 0,
		"planes that run and wait for new clusters, on each management cluster: see atoll hosting --help (default: as it "+
			"is, none in a new region)")
	cmd.Flags().DurationVar(&f.lostAfter, "recover-lost-after", 0,
		"recover the clusters of a management cluster whose agent has been lost for this time, at least 5m in whole "+
			"minutes, on others from their backups; 0: an operator does, with atoll mc lost (default: as it is, 0 in a new "+
			"region)")
	cmd.Flags().StringVar(&f.nodes, "nodes", "",
		"what makes the nodes of a node pool that names no provider: simulated, or local, which runs pods and needs root "+
			"and make nodes: see atoll node preflight (default: as it is, simulated in a new region)")
	_ = cmd.RegisterFlagCompletionFunc("nodes", cobra.FixedCompletions([]string{"simulated", "local"},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&f.traces, "traces", "",
		"URL of an OTLP/HTTP collector for the traces of the lifecycle manager and its adapters (default: as it is, "+
			"none in a new region)")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "return when the region serves")
}

// read returns the options of the flags. A flag that is not given leaves the region as it is.
func (f *upFlags) read(cmd *cobra.Command) (local.UpOptions, error) {
	o := f.options
	if cmd.Flags().Changed("insecure-listen") {
		o.Insecure = &f.insecure
	}
	if cmd.Flags().Changed("azure") {
		o.Azure = &f.azure
	}
	if cmd.Flags().Changed("warm-planes") {
		o.WarmPlanes = &f.warmPlanes
	}
	if cmd.Flags().Changed("recover-lost-after") {
		if err := cluster.CheckRecoverLostAfter(f.lostAfter); err != nil {
			return o, fmt.Errorf("--recover-lost-after: %w", err)
		}
		text := cluster.FormatRecoverLostAfter(f.lostAfter)
		o.RecoverLostAfter = &text
	}
	if cmd.Flags().Changed("backups") {
		o.Backups = &f.backups
	}
	if cmd.Flags().Changed("traces") {
		o.Traces = &f.traces
	}
	if cmd.Flags().Changed("nodes") {
		o.Nodes = &f.nodes
	}
	return o, nil
}

// attachment is whether a region runs as long as the command that started it.
type attachment uint8

const (
	attached attachment = iota // Ctrl-C of the command stops the region
	detached                   // the command returns when the region serves
)

// startRegion starts the region and prints each stage. Attached, it then waits for Ctrl-C and
// stops the region.
func startRegion(session *terminal.Session, ctx context.Context, home local.Home, opts local.UpOptions,
	as attachment) error {
	start := time.Now()
	failures := map[string]string{} // printed already, by stage: a failed stage is retried
	outcome, err := home.Up(ctx, opts, func(e local.Event) {
		switch {
		case e.Error != "" && failures[e.Stage] == e.Error:
		case e.Error != "":
			failures[e.Stage] = e.Error
			session.Printf("  %-24s failed: %s\n", e.Stage, e.Error)
		case e.Stage != "region":
			session.Printf("  %-24s %8s  %s\n", e.Stage, terminal.FormatDuration(e.Took), e.Detail)
		}
	})
	switch {
	case err != nil && ctx.Err() != nil && outcome == local.Started && as == attached:
		return stopRegion(session, home, local.KeepData)
	case err != nil && ctx.Err() != nil:
		session.Printf("stopped waiting; the region continues to start: see `atoll status`\n")
		return err
	case err != nil:
		return err
	}
	status, err := home.Status(ctx)
	if err != nil {
		return err
	}
	switch outcome {
	case local.AlreadyRunning:
		session.Printf("region %s is already running (home %s)\n", status.Region, home.Dir)
		return nil
	case local.Grown:
		session.Printf("region %s has more management clusters after %s\n", status.Region,
			terminal.FormatDuration(time.Since(start)))
		return nil
	}
	session.Printf("region %s serves at %s after %s\n", status.Region, status.Endpoints["platform_api"],
		terminal.FormatDuration(time.Since(start)))
	if file := home.AzureClient(); file != "" {
		session.Printf("credentials for Azure's SDKs: %s\n", file)
	}
	if file := home.BackupStore(); file != "" {
		session.Printf("store of backups: %s\n", file)
	}
	if as == detached {
		return nil
	}
	session.Printf("Ctrl-C stops it.\n")
	<-ctx.Done()
	return stopRegion(session, home, local.KeepData)
}

// stopRegion stops the region and prints each process that ended.
func stopRegion(session *terminal.Session, home local.Home, data local.Data) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	start := time.Now()
	if err := home.Down(ctx, data, func(name string) { session.Printf("  %-24s stopped\n", name) }); err != nil {
		return fmt.Errorf("stopping the region: %w", err)
	}
	session.Printf("stopped after %s\n", terminal.FormatDuration(time.Since(start)))
	return nil
}
