// Package serve runs a whole Kubernetes control plane in this process, from one data directory.
package serve

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"atoll.dev/kube/apiserver"
	"atoll.dev/kube/controllers"
	"atoll.dev/kube/credentials"
	"atoll.dev/kube/etcd"
	"atoll.dev/kube/scheduler"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// Main runs the plane that args describe and returns the exit code. What went wrong is one line on standard error.
func Main(args []string) int {
	o, err := parse(args, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintf(os.Stderr, "atoll-kube: %v\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := Run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "atoll-kube: %v\n", err)
		return exitFailure
	}
	return exitOK
}

// Run runs the plane until ctx is done or something it cannot go on without has failed.
func Run(ctx context.Context, o Options) error {
	started := time.Now()
	log := newLog(os.Stderr, o.LogLevel)
	captureComponents(log)

	release, err := claim(o.DataDir)
	if err != nil {
		return err
	}
	defer release()
	if err := removeReady(o.DataDir); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("API server address: %w", err)
	}
	defer listener.Close()
	files, err := credentials.Ensure(credentials.Options{
		Dir:       o.DataDir,
		Name:      o.Name,
		Server:    "https://" + o.local(),
		ServiceIP: o.serviceIP,
		Hosts:     append([]string{o.host}, o.ExternalHosts...),
	}, time.Now())
	if err != nil {
		return err
	}
	store, err := etcd.Start(etcd.Options{Dir: filepath.Join(o.DataDir, "etcd"), Log: etcdLog(log)})
	if err != nil {
		return err
	}
	return run(ctx, o, log, started, listener, files, store)
}

func run(ctx context.Context, o Options, log *slog.Logger, started time.Time, listener net.Listener, files credentials.Files, store *etcd.Server) error {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	if err := setGates(); err != nil {
		return err
	}
	var stopping atomic.Bool
	klog.OsExit = func(code int) {
		if stopping.Load() {
			select {}
		}
		os.Exit(exitFailure)
	}

	serverCtx, stopServer := context.WithCancel(context.Background())
	defer stopServer()
	workCtx, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	ended := make(chan error, 4)

	serverDone := make(chan struct{})
	go func() {
		defer close(serverDone)
		err := apiserver.Run(serverCtx, apiserver.Options{
			Listener:     listener,
			External:     o.local(),
			ServiceCIDR:  o.ServiceCIDR,
			Files:        files,
			EtcdEndpoint: etcd.Endpoint,
			DialEtcd:     store.Dial,
		}, func() { log.Debug("serving", "after", time.Since(started)) })
		if err == nil {
			err = errors.New("API server ended")
		}
		ended <- err
	}()

	ready := make(chan error, 1)
	go func() { ready <- awaitReady(workCtx, files.AdminKubeconfig) }()

	var cause error
	select {
	case <-ctx.Done():
	case cause = <-ended:
	case cause = <-store.Failed():
	case cause = <-ready:
	}
	if cause == nil && ctx.Err() == nil {
		took := time.Since(started)
		if err := writeReady(o.DataDir, readyFile{os.Getpid(), o.local(), took.Milliseconds(), version.Get().GitVersion}); err != nil {
			return err
		}
		log.Info("ready", "address", o.local(), "start_ms", took.Milliseconds())
		go func() { ended <- fmt.Errorf("controllers: %w", orEnded(controllers.Run(workCtx, files))) }()
		go func() { ended <- fmt.Errorf("scheduler: %w", orEnded(scheduler.Run(workCtx, files))) }()
		select {
		case <-ctx.Done():
		case cause = <-ended:
		case cause = <-store.Failed():
		}
	}
	stopping.Store(true)
	log.Info("stopping")
	removeReady(o.DataDir)
	stopWork()
	stopServer()
	select {
	case <-serverDone:
	case <-time.After(2 * time.Second):
	}
	stopped := make(chan struct{})
	go func() { store.Stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(2 * time.Second):
	}
	log.Info("stopped")
	return cause
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("ended")
	}
	return err
}

func setGates() error {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{"APIServerIdentity": false, "UnknownVersionInteroperabilityProxy": false}); err != nil {
		return err
	}
	_ = compatibility.DefaultComponentGlobalsRegistry
	_ = basecompatibility.DefaultKubeComponent
	return nil
}
