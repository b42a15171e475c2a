package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"atoll.dev/kube/apiserver"
	"atoll.dev/kube/controllers"
	"atoll.dev/kube/credentials"
	"atoll.dev/kube/etcd"
	"atoll.dev/kube/idle"
	"atoll.dev/kube/inprocess"
	"atoll.dev/kube/issuers"
	"atoll.dev/kube/konnectivity"
	"atoll.dev/kube/kubelets"
	"atoll.dev/kube/nodes"
	"atoll.dev/kube/scheduler"
	"atoll.dev/kube/secrets"
)

const (
	serverGrace = 1500 * time.Millisecond // for requests in progress; watches never end by themselves
	storeGrace  = 2 * time.Second         // everything acknowledged is on disk before
	renewEvery  = 12 * time.Hour
)

// plane is what Run has prepared.
type plane struct {
	options   Options
	log       *slog.Logger
	started   time.Time
	listeners []net.Listener
	files     credentials.Files
	store     *etcd.Server
	renew     func() (credentials.Files, error)
	walls     []string // that stand

	stopping atomic.Bool
}

// run starts the parts, waits for the end and stops them. It returns nil when ctx ended the plane.
func (p *plane) run(ctx context.Context) error {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	klog.OsExit = p.exit

	serverCtx, stopServer := context.WithCancel(context.Background())
	defer stopServer()
	workCtx, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	ended := make(chan error, 5)

	tunnel, err := konnectivity.New(konnectivity.Options{
		Serving: p.files.Serving, ClientCA: p.files.CABundle, Egress: p.options.Egress,
		Log: p.log.With("component", "konnectivity"),
	})
	if err != nil {
		return err
	}
	agents, clients := konnectivity.Split(p.listeners...)
	go tunnel.Serve(agents)
	defer tunnel.Stop()

	trusted := issuers.New(filepath.Join(p.options.DataDir, issuers.File), []string{apiserver.Issuer},
		p.log.With("component", "issuers"))
	go trusted.Run(workCtx)
	clock := idle.NewClock()
	governor := idle.New(clock, p.log)
	self := inprocess.New()
	serverDone := make(chan struct{})
	go func() {
		defer close(serverDone)
		ended <- ending("API server", apiserver.Run(serverCtx, apiserver.Options{
			Egress:      tunnel.Dial,
			Issuers:     trusted,
			Listener:    clients,
			External:    p.options.local(),
			ServiceCIDR: p.options.ServiceCIDR,
			Files:       p.files,
			AuditDir:    filepath.Join(p.options.DataDir, "audit"),
			MaxRequests: p.options.MaxRequests,
			EtcdClient:  p.store.Client,
			Self:        self,
			Clock:       clock,
			Governor:    governor,

			MaxWatchEvents: p.options.MaxWatchEvents,
		}))
	}()
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(workCtx, p.files.AdminKubeconfig) }()

	cause := p.wait(ctx, ended, ready)
	if cause == nil && ctx.Err() == nil {
		if cause = p.announce(); cause == nil {
			p.startClients(workCtx, self, ended)
			go governor.Run(workCtx)
			cause = p.wait(ctx, ended, nil)
		}
	}

	p.stopping.Store(true)
	utilruntime.ReallyCrash = false // what upstream's goroutines meet now, with parts of the plane gone, is no failure
	p.log.Info("stopping")
	if err := removeReady(p.options.DataDir); err != nil && cause == nil {
		cause = err
	}
	stopWork()
	stopServer()
	within(serverGrace, func() { <-serverDone })
	within(storeGrace, p.store.Stop)
	p.log.Info("stopped")
	return cause
}

// startClients starts the parts that call the API server in this process. They run until ctx ends; one that fails sends
// its error to ended.
func (p *plane) startClients(ctx context.Context, self *inprocess.Server, ended chan<- error) {
	manager := self.Config(p.server(), component(controllerManagerUser))
	go func() { ended <- ending("controller manager", controllers.Run(ctx, p.files, manager)) }()
	go func() {
		client := self.Config(p.server(), component(schedulerUser))
		ended <- ending("scheduler", scheduler.Run(ctx, client))
	}()
	go func() { ended <- ending("approver of kubelets", kubelets.Run(ctx, manager)) }()
	if p.options.Simulated {
		go func() { ended <- ending("simulated nodes", nodes.Run(ctx, manager)) }()
	}
	go p.keepCredentials(ctx)
	go secrets.Run(ctx, p.files, p.log)
	go returnMemory(ctx)
}

// wait returns when ctx is done or the plane is ready (nil), or when a part has failed.
func (p *plane) wait(ctx context.Context, ended, ready <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	case err := <-p.store.Failed():
		return fmt.Errorf("etcd: %w", err)
	case err := <-ready:
		return err
	}
}

// server is the URL of the API server.
func (p *plane) server() string { return "https://" + p.options.local() }

// The users that parts of the plane are, as upstream names them.
const (
	controllerManagerUser = "system:kube-controller-manager"
	schedulerUser         = "system:kube-scheduler"
)

// component returns the user that a part of the plane is.
func component(name string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: []string{credentials.Masters, user.AllAuthenticated}}
}

// announce makes the readiness of the plane visible to other processes.
func (p *plane) announce() error {
	took := time.Since(p.started).Milliseconds()
	r := readyFile{PID: os.Getpid(), Address: p.options.local(), StartMS: took, Version: version.Get().GitVersion,
		Walls: p.walls}
	if err := writeReady(p.options.DataDir, r); err != nil {
		return err
	}
	p.log.Info("ready", "address", r.Address, "start_ms", took, "pid", r.PID)
	return nil
}

// keepCredentials renews certificates that near their end while the plane runs. The API server notices
// new files by itself; the plane's own parts need none.
func (p *plane) keepCredentials(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewEvery):
			if _, err := p.renew(); err != nil {
				p.log.Error("certificates could not be renewed", "error", err)
			}
		}
	}
}

// exit is what upstream calls when it cannot go on. While the plane stops, that is only because parts of it are gone.
func (p *plane) exit(int) {
	if p.stopping.Load() {
		select {}
	}
	fmt.Fprintln(os.Stderr, "atoll-kube: a component gave up; the log's last error says why")
	os.Exit(exitFailure)
}

// ending is the error of a part that has ended, which no part should.
func ending(part string, err error) error {
	if err == nil {
		err = errors.New("ended by itself")
	}
	return fmt.Errorf("%s: %w", part, err)
}

// within runs f and waits for it, but no longer than limit.
func within(limit time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
