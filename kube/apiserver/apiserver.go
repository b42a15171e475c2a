// Package apiserver runs the upstream kube-apiserver, with aggregator and custom resources, inside this process.
//
// It calls the functions that upstream's own command calls, on options that it fills itself: the command would set up
// signals and logging for the whole process. Where a plane differs from upstream's defaults, options.go says why.
package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"

	clientv3 "go.etcd.io/etcd/client/v3"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"

	"atoll.dev/kube/credentials"
	"atoll.dev/kube/etcd"
	"atoll.dev/kube/idle"
	"atoll.dev/kube/inprocess"
	"atoll.dev/kube/issuers"
)

// Options are what a plane's API server needs to know.
type Options struct {
	Listener    net.Listener // where to serve; owned by the server from now on
	External    string       // host that clients reach the server under
	ServiceCIDR string
	Files       credentials.Files
	AuditDir    string // of the audit log and its policy
	MaxRequests int    // that the server works on at the same time, watches not counted; see options.go

	MaxWatchEvents int // that the server keeps of each resource for watches that begin later; see boundHistory

	// Issuers authenticates tokens of the customer's issuers.
	Issuers *issuers.Authenticator

	EtcdClient func() *clientv3.Client // makes a client of the plane's etcd
	Egress     Dialer                  // dials everything outside of the plane: nodes, pods, Services, webhooks

	Self *inprocess.Server // gets the API server's handler, for the plane's own parts

	Clock    idle.Clock // of timers that may end early
	Governor *idle.Governor
}

// Dialer connects to an address.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// Run serves until ctx is done; /readyz says when the server is ready.
func Run(ctx context.Context, o Options) error {
	if err := writeAuditPolicy(o.AuditDir); err != nil {
		return fmt.Errorf("the policy of the audit log: %w", err)
	}
	useEtcd(ctx, o.EtcdClient, etcd.Endpoint)
	options := runOptions(o)
	completed, err := options.Complete(ctx)
	if err != nil {
		return fmt.Errorf("completing the API server's options: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return fmt.Errorf("the API server's options: %w", utilerrors.NewAggregate(errs))
	}
	config, err := newConfig(completed, o)
	if err != nil {
		return fmt.Errorf("configuring the API server: %w", err)
	}
	admitIssuers(config, o.Issuers)
	openHealth(config)
	countRequests(config, o.Governor)
	late, err := deferHooks(config)
	if err != nil {
		return err
	}
	kube := config.KubeAPIs.ControlPlane.Generic
	kube.SkipOpenAPIInstallation = true // installOpenAPI does it
	completedConfig, err := config.Complete()
	if err != nil {
		return fmt.Errorf("completing the API server's configuration: %w", err)
	}
	server, err := app.CreateServerChain(completedConfig)
	if err != nil {
		return fmt.Errorf("creating the API server: %w", err)
	}
	for name, hook := range late {
		server.GenericAPIServer.AddPostStartHookOrDie(name, inBackground(name, hook))
	}
	if err := server.GenericAPIServer.AddReadyzChecks(namespacesCheck(config.KubeAPIs.ControlPlane.VersionedInformers)); err != nil {
		return err
	}
	builtIn, ok := server.GenericAPIServer.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return fmt.Errorf("the aggregator delegates to %T, not to an API server", server.GenericAPIServer.NextDelegate())
	}
	if err := installOpenAPI(builtIn, kube); err != nil {
		return err
	}
	server.GenericAPIServer.Handler.NonGoRestfulMux.Handle(auditPath, auditHandler{o.AuditDir})
	prepared, err := server.PrepareRun()
	if err != nil {
		return fmt.Errorf("preparing the API server: %w", err)
	}
	o.Self.Serve(server.GenericAPIServer.Handler)
	return prepared.Run(ctx)
}

// countRequests tells governor of each request. All of them arrive at the aggregator, which passes on what is not its
// own.
func countRequests(config *app.Config, governor *idle.Governor) {
	aggregator := &config.Aggregator.GenericConfig.Config
	build := aggregator.BuildHandlerChainFunc
	aggregator.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return governor.Count(build(api, c), func(r *http.Request) bool {
			info, err := c.RequestInfoResolver.NewRequestInfo(r)
			return err != nil || c.LongRunningFunc(r, info)
		})
	}
}

// deferHooks takes out of config the two post-start hooks that wait a second before they do anything, and returns them:
// the default roles and the system priority classes. Nothing that a plane's owner does first needs either, since
// authorization lets system:masters through before it looks at roles.
func deferHooks(config *app.Config) (map[string]genericapiserver.PostStartHookFunc, error) {
	disabled := config.KubeAPIs.ControlPlane.Generic.DisabledPostStartHooks
	hooks := map[string]genericapiserver.PostStartHookFunc{}
	for _, provider := range []genericapiserver.PostStartHookProvider{
		rbacrest.RESTStorageProvider{},
		schedulingrest.RESTStorageProvider{},
	} {
		name, hook, err := provider.PostStartHook()
		if err != nil {
			return nil, fmt.Errorf("post-start hook %s: %w", name, err)
		}
		disabled.Insert(name)
		hooks["atoll/"+name] = hook
	}
	return hooks, nil
}

// inBackground returns a hook that succeeds at once and runs the given hook, which must be idempotent, in the
// background until it succeeds. Upstream ends the process after a first attempt of 30 s. A full etcd refuses the writes
// of both hooks, and the owner can only make room while the API server runs.
func inBackground(name string, hook genericapiserver.PostStartHookFunc) genericapiserver.PostStartHookFunc {
	return func(ctx genericapiserver.PostStartHookContext) error {
		go func() {
			for {
				err := hook(ctx) // waits at least a second
				if err == nil || ctx.Err() != nil {
					return
				}
				klog.ErrorS(err, "A post-start hook failed; it runs again", "hook", name)
			}
		}()
		return nil
	}
}
