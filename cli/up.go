package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/local"
)

// stopLimit bounds `down`, and the `down` that Ctrl-C of `up` means.
const stopLimit = 15 * time.Second

func (c *command) up() *cobra.Command {
	var opts local.UpOptions
	var detach, insecure bool
	var traces string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a region on this machine, or go on where an earlier start stopped",
		Long: `Starts every process of a region and registers its local management clusters as
management-01, management-02, ... It shows a line per stage and serves until
Ctrl-C, which is "atoll down"; with --detach it returns when the region serves.

On a running region it says so; with a larger --management-clusters it adds some.
Everything is kept below --home and found again by the next "atoll up".`,
		Example: `  atoll up
  atoll up --detach --management-clusters 2
  atoll up --home /tmp/r1 --region eu-north-9`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			home, err := c.home()
			if err != nil {
				return err
			}
			if _, err := home.State(); opts.Region == "" && err != nil {
				opts.Region = "local-1"
			}
			if cmd.Flags().Changed("insecure-listen") {
				opts.Insecure = &insecure
			}
			if cmd.Flags().Changed("traces") {
				opts.Traces = &traces
			}
			return c.bringUp(cmd.Context(), home, opts, detach)
		},
	}
	cmd.Flags().StringVar(&opts.Region, "region", "",
		"name of a new region, also the region of AWS signatures (default local-1)")
	cmd.Flags().IntVar(&opts.ManagementClusters, "management-clusters", 0,
		"number of local management clusters (default: as they are, 1 in a new region)")
	cmd.Flags().BoolVar(&insecure, "insecure-listen", false,
		"Maestro and CLM also listen on loopback without TLS, for every user of this machine (default: as it is, no "+
			"in a new region)")
	cmd.Flags().StringVar(&traces, "traces", "",
		"URL of an OTLP/HTTP collector for the traces of the lifecycle manager and its adapters (default: as it is, "+
			"none in a new region)")
	cmd.Flags().BoolVar(&detach, "detach", false, "return when the region serves")
	return cmd
}

func (c *command) bringUp(ctx context.Context, home local.Home, opts local.UpOptions, detach bool) error {
	begun := time.Now()
	failures := map[string]string{} // said already: what fails is tried again and again
	outcome, err := home.Up(ctx, opts, func(e local.Event) {
		switch {
		case e.Error != "" && failures[e.Stage] == e.Error:
		case e.Error != "":
			failures[e.Stage] = e.Error
			c.printf("  %-24s failed: %s\n", e.Stage, e.Error)
		case e.Stage != "region":
			c.printf("  %-24s %8s  %s\n", e.Stage, took(e.Took), e.Detail)
		}
	})
	switch {
	case err != nil && ctx.Err() != nil && outcome == local.Started && !detach:
		return c.takeDown(home, false)
	case err != nil && ctx.Err() != nil:
		c.printf("no longer waiting; the region goes on starting: see `atoll status`\n")
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
		c.printf("region %s is already running (home %s)\n", status.Region, home.Dir)
		return nil
	case local.Grown:
		c.printf("region %s has more management clusters after %s\n", status.Region, took(time.Since(begun)))
		return nil
	}
	c.printf("region %s serves at %s after %s\n", status.Region, status.Endpoints["platform_api"],
		took(time.Since(begun)))
	if detach {
		return nil
	}
	c.printf("Ctrl-C stops it.\n")
	<-ctx.Done()
	return c.takeDown(home, false)
}

// supervise is the process that `up` leaves behind.
func (c *command) supervise() *cobra.Command {
	return &cobra.Command{
		Use: "supervise", Hidden: true, Args: cobra.NoArgs,
		Short: "Keep the processes of a home running (started by up)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			home, err := c.home()
			if err != nil {
				return err
			}
			signal.Ignore(syscall.SIGPIPE)
			return home.Supervise(cmd.Context(), slog.New(slog.NewJSONHandler(os.Stderr, nil)))
		},
	}
}

func (c *command) takeDown(home local.Home, purge bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	begun := time.Now()
	if err := home.Down(ctx, purge, func(name string) { c.printf("  %-24s stopped\n", name) }); err != nil {
		return fmt.Errorf("stopping the region: %w", err)
	}
	c.printf("stopped after %s\n", took(time.Since(begun)))
	return nil
}
