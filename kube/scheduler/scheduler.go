// Package scheduler runs the upstream kube-scheduler inside this process, without its server and its leader election.
package scheduler

import (
	"context"
	"fmt"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"atoll.dev/kube/credentials"
)

// Run schedules until ctx is done.
func Run(ctx context.Context, files credentials.Files) error {
	o := options.NewOptions()
	o.SecureServing.BindPort = 0 // no server
	for _, set := range []struct{ section, flag, value string }{
		{"deprecated", "kubeconfig", files.SchedulerKubeconfig},
		{"deprecated", "profiling", "false"},
		{"leader election", "leader-elect", "false"},
	} {
		// The options only look at flags that were set.
		if err := o.Flags.FlagSet(set.section).Set(set.flag, set.value); err != nil {
			return fmt.Errorf("the scheduler's option %s: %w", set.flag, err)
		}
	}
	config, scheduler, err := app.Setup(ctx, o)
	if err != nil {
		return fmt.Errorf("setting up the scheduler: %w", err)
	}
	err = app.Run(ctx, config, scheduler)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
