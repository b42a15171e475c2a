package operator

import (
	"context"
	"errors"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/local"
)

// commitForm is how a user names a commit.
var commitForm = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

func regionWatch(session *terminal.Session, rendered *string) *cobra.Command {
	var repository, branch, config, accept string
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "watch REGION", Args: cobra.ExactArgs(1),
		Short: "Follow a branch in Git and apply each commit, until Ctrl-C",
		Long: `Looks at a branch every second (a repository in a directory) or every 30 seconds (a
URL), and applies its newest commit as "atoll region apply" does. Each commit has a
line. The region goes on when the watch ends; the next watch continues.

Of several commits that arrive together it applies the newest; each of the others has
a line with passed-over (at most 100), and is neither checked nor applied.

A commit is applied as a whole or not at all. Refused is one whose configuration has
a mistake, whose values a chart's schema refuses, whose rendered files are not those
of its configuration, or that is no descendant of the applied commit (a force-push).
The line names file and line, and the watch goes on with the next commit. A region
that is not declared any more goes on. An apply that fails is repeated every 30
seconds, and so is the check of a git.revision that was refused: its branch may move.
A git.revision of another region stops nothing.`,
		Example: `  atoll region watch eu-west-1 --repo ~/platform
  atoll region watch eu-west-1 --repo https://github.com/example/platform.git --branch main -o json
  atoll region watch production/us-east-1 --repo . --config examples/config --from examples/deploy`,
	}
	cmd.Flags().StringVar(&repository, "repo", "", "directory or URL of the repository")
	cmd.Flags().StringVar(&branch, "branch", "main", "branch of the repository")
	cmd.Flags().StringVar(&config, "config", "config", "directory of the configuration, in the repository")
	cmd.Flags().StringVar(&accept, "accept", "", "commit of a rewritten history: apply it and its descendants")
	cmd.Flags().DurationVar(&interval, "interval", 0,
		"time between two reads of the branch (default 1s for a directory, 30s for a URL)")
	_ = cmd.MarkFlagRequired("repo") // the flag exists
	programs := programsFlag(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if accept != "" && !commitForm.MatchString(accept) {
			return errors.New("--accept is a commit of at least 7 hexadecimal digits")
		}
		dir, err := programs()
		if err != nil {
			return err
		}
		environment, region, isFull := strings.Cut(args[0], "/")
		if !isFull {
			environment, region = "", args[0]
		}
		home, err := regionHome(session, environment, region)
		if err != nil {
			return err
		}
		w, unlock, err := home.OpenWatch(cmd.Context(), repository, branch)
		if err != nil {
			return err
		}
		defer unlock()
		w.Region, w.Config, w.Rendered, w.Accept = args[0], path.Clean(config), path.Clean(*rendered), accept
		if interval > 0 {
			w.Interval = interval
		}
		w.Apply = func(ctx context.Context, d gitops.Declaration) error {
			if o.Format != "table" {
				return home.Apply(ctx, d, local.ApplyOptions{Programs: dir, Show: func(local.Event) {}, Removed: func(string) {}})
			}
			return applyRegion(ctx, session, home, d, dir)
		}
		w.Show = func(e local.WatchEvent) {
			if printed, _ := o.PrintEvent(session.Out, e); !printed {
				printWatchEvent(session, e)
			}
		}
		if o.Format == "table" {
			session.Printf("region %s follows %s of %s every %s (home %s)\n", args[0], branch, repository, w.Interval, home.Dir)
		}
		w.Run(cmd.Context())
		if o.Format == "table" {
			session.Printf("the watch has ended; what runs of the region goes on\n")
		}
		return nil
	}
	return cmd
}

// printWatchEvent prints the line of a commit, and what is wrong with it below.
func printWatchEvent(session *terminal.Session, e local.WatchEvent) {
	session.Printf("%s  %-12.12s  %-11s  %s\n", e.At.Local().Format("15:04:05"), e.Commit, e.Result, e.Subject)
	for _, text := range []string{e.Error, e.Unchecked} {
		for line := range strings.Lines(text) {
			session.Printf("    %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
}
