// Package scheduler runs the upstream kube-scheduler inside this process, without its server and its leader election.
package scheduler

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
)

// Run schedules until ctx is done. apiServer configures its clients of the API server.
func Run(ctx context.Context, apiServer *rest.Config) error {
	o := options.NewOptions()
	o.SecureServing.BindPort = 0 // no server
	for _, set := range []struct{ section, flag, value string }{
		{"misc", "master", apiServer.Host},
		{"deprecated", "profiling", "false"},
		{"leader election", "leader-elect", "false"},
	} {
		// The options only look at flags that were set.
		if err := o.Flags.FlagSet(set.section).Set(set.flag, set.value); err != nil {
			return fmt.Errorf("the scheduler's option %s: %w", set.flag, err)
		}
	}
	config, err := configure(ctx, o, apiServer)
	if err != nil {
		return fmt.Errorf("configuring the scheduler: %w", err)
	}
	s, err := setUp(ctx, config)
	if err != nil {
		return fmt.Errorf("setting up the scheduler: %w", err)
	}
	err = app.Run(ctx, config, s)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// configure returns the configuration for the options. It replaces the clients that the options make, which have no
// credentials and are not used yet, by clients that apiServer configures.
func configure(ctx context.Context, o *options.Options, apiServer *rest.Config) (*schedulerconfig.CompletedConfig,
	error) {
	var err error
	if o.ComponentConfig, err = latest.Default(); err != nil {
		return nil, err
	}
	if errs := o.Validate(); len(errs) > 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	c, err := o.Config(ctx)
	if err != nil {
		return nil, err
	}
	client := rest.CopyConfig(apiServer)
	client.ContentConfig, client.QPS, client.Burst = c.KubeConfig.ContentConfig, c.KubeConfig.QPS, c.KubeConfig.Burst
	c.KubeConfig = client
	if c.Client, err = kubernetes.NewForConfig(rest.AddUserAgent(client, "scheduler")); err != nil {
		return nil, err
	}
	recorder, err := kubernetes.NewForConfig(client)
	if err != nil {
		return nil, err
	}
	watcher, err := dynamic.NewForConfig(client)
	if err != nil {
		return nil, err
	}
	c.EventBroadcaster = events.NewEventBroadcasterAdapterWithContext(ctx, recorder)
	c.InformerFactory = scheduler.NewInformerFactory(c.Client, 0)
	c.DynInformerFactory = dynamicinformer.NewFilteredDynamicSharedInformerFactory(watcher, 0, metav1.NamespaceAll, nil)
	completed := c.Complete()
	return &completed, nil
}

// setUp makes the scheduler as upstream's app.Setup does.
func setUp(ctx context.Context, c *schedulerconfig.CompletedConfig) (*scheduler.Scheduler, error) {
	return scheduler.New(ctx, c.Client, c.InformerFactory, c.DynInformerFactory,
		func(name string) events.EventRecorderLogger { return c.EventBroadcaster.NewRecorder(name) },
		scheduler.WithComponentConfigVersion(c.ComponentConfig.TypeMeta.APIVersion),
		scheduler.WithKubeConfig(c.KubeConfig),
		scheduler.WithProfiles(c.ComponentConfig.Profiles...),
		scheduler.WithPercentageOfNodesToScore(c.ComponentConfig.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(c.ComponentConfig.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(c.ComponentConfig.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(c.PodMaxInUnschedulablePodsDuration),
		scheduler.WithExtenders(c.ComponentConfig.Extenders...),
		scheduler.WithParallelism(c.ComponentConfig.Parallelism),
	)
}
