package services

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/adapter"
	"atoll.dev/cli/terminal"
)

// dryRunFlags are the flags of a dry run: files hold the answers of CLM and of the clusters.
type dryRunFlags struct {
	event, responses, discovery string
	verbose, fail               bool
	output                      string
}

// addDryRunFlags gives a command that runs adapters the flags of a dry run, which replaces its
// action when an event is given. load reads the files of the adapter.
func addDryRunFlags(session *terminal.Session, cmd *cobra.Command, load func() (*adapter.Config, *adapter.Task,
	error)) {
	d := &dryRunFlags{}
	fl := cmd.Flags()
	fl.StringVar(&d.event, "dry-run-event", "",
		"file with a CloudEvent: execute the task for it once, without CLM, broker and clusters, and show what it does")
	fl.StringVar(&d.responses, "dry-run-api-responses", "",
		"file with CLM's answers (default: 200 with {} to each request)")
	fl.StringVar(&d.discovery, "dry-run-discovery", "",
		"file with the objects that discoveries find, by name (default: the applied objects)")
	fl.BoolVar(&d.verbose, "dry-run-verbose", false, "show manifests, and the bodies of requests")
	fl.StringVar(&d.output, "dry-run-output", "text", "text or json")
	fl.BoolVar(&d.fail, "dry-run-fail", false,
		"exit with 1 when the task failed; without it only when the files cannot be used")
	serve := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if d.event == "" {
			for _, name := range []string{"api-responses", "discovery", "verbose", "output", "fail"} {
				if cmd.Flags().Changed("dry-run-" + name) { // the caller expects a dry run, not a service
					return fmt.Errorf("--dry-run-%s goes with --dry-run-event", name)
				}
			}
			return serve(cmd, args)
		}
		config, task, err := load()
		if err != nil {
			return err
		}
		return d.run(cmd, session.Out, config, task)
	}
}

func (d *dryRunFlags) run(cmd *cobra.Command, out io.Writer, config *adapter.Config, task *adapter.Task) error {
	if d.output != "text" && d.output != "json" {
		return fmt.Errorf("--dry-run-output is text or json, not %s", d.output)
	}
	run := adapter.DryRun{Config: config, Task: task}
	for _, f := range []struct {
		name string
		into *[]byte
	}{{d.event, &run.Event}, {d.responses, &run.Responses}, {d.discovery, &run.Discovery}} {
		if f.name == "" {
			continue
		}
		data, err := os.ReadFile(f.name)
		if err != nil {
			return err
		}
		*f.into = data
	}
	trace, err := run.Run(cmd.Context())
	if err != nil {
		return err
	}
	write := trace.WriteText
	if d.output == "json" {
		write = trace.WriteJSON
	}
	detail := adapter.Summary
	if d.verbose {
		detail = adapter.WithBodies
	}
	if err := write(out, detail); err != nil {
		return err
	}
	if err := trace.Result.Err(); err != nil && d.fail {
		return fmt.Errorf("the task failed: %w", err)
	}
	return nil
}
