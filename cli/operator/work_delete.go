package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

func workDelete(session *terminal.Session) *cobra.Command {
	var wait bool
	timeout := 2 * time.Minute
	cmd := &cobra.Command{
		Use:     "delete ID",
		Short:   "Delete a work; its delete option decides whether its objects are deleted, too",
		Example: "  atoll work delete ID --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := session.Client()
			if err != nil {
				return err
			}
			start := time.Now()
			if err := api.DeleteWork(cmd.Context(), work.ID(args[0]), ""); err != nil {
				return err
			}
			session.Printf("deletion of %s ordered\n", args[0])
			if !wait {
				return nil
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				fmt.Errorf("not gone within %s; see `atoll work why %s`", timeout, args[0]))
			defer cancel()
			if err := awaitGone(ctx, api, work.ID(args[0])); err != nil {
				return err
			}
			session.Printf("%s is gone (%s)\n", args[0], terminal.FormatDuration(time.Since(start)))
			return nil
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the agent of the management cluster has confirmed the deletion")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	return cmd
}

// errGone ends the watch of awaitGone.
var errGone = errors.New("gone")

// awaitGone watches until the work is deleted. A watch begins with the existing works and a bookmark after them: a work
// that does not come before the first bookmark is already deleted.
func awaitGone(ctx context.Context, api *client.Client, id work.ID) error {
	seen := false
	err := api.FollowBundles(ctx, remote.WatchOptions{ID: string(id)}, func(e remote.Event) error {
		switch {
		case e.Type == remote.Relist:
			seen = false
		case e.Type == "DELETED", e.Type == "BOOKMARK" && !seen:
			return errGone
		case len(e.Object) > 0:
			seen = true
		}
		return nil
	})
	if errors.Is(err, errGone) {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
		return cause
	}
	return err
}
