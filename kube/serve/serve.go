// Package serve runs a whole Kubernetes control plane in this process, from one data directory.
//
// The parts start in an order that makes the API ready first: etcd, API server, and when that is
// ready, controller manager and scheduler. Ready means: the API server answers 200 on /readyz to an
// authenticated client over the network, which includes that etcd answers, that custom resources and
// aggregated APIs are served and that the namespaces default and kube-system exist. A moment later,
// and not part of being ready, the controllers run; on the very first start the default roles and the
// system priority classes appear within about two seconds, which nobody in system:masters needs.
//
// A supervisor has two signals. DIR/ready appears, in one rename, when the plane is ready, and names
// the process; it is removed when the plane stops and before the next start. And /readyz may be asked
// at any time, without credentials. Neither survives the process in a way that could mislead: after a
// kill DIR/ready is stale, but DIR/lock is not locked.
//
// Everything the plane keeps is below its data directory, mode 0700:
//
//	lock                    locked (flock) by the running process, whose id it holds
//	ready                   see above: {"pid":…,"address":…,"start_ms":…,"version":…}
//	admin.kubeconfig        full rights, 0600; rewritten on each start for the address given
//	pki/                    see package credentials
//	authentication.json     the customer's issuers of tokens: see package issuers; written by who runs the plane
//	audit/                  the audit log, and its policy: see package apiserver
//	etcd/, etcd.unfinished  see package etcd
//	etcd.sock               reads of etcd for backups: Range, Watch, Status and Snapshot of its gRPC API, and samples
//
// SIGTERM and SIGINT stop the plane within five seconds, with exit code 0. Exit code 1 is a failure
// and 2 a wrong command line; the reason is the last line on standard error, "atoll-kube: REASON". All
// other lines there are the log, one JSON object each.
package serve

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"atoll.dev/kube/credentials"
	"atoll.dev/kube/etcd"
	"atoll.dev/kube/queuemetrics"
	"atoll.dev/kube/walls"
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

// Run runs the plane until ctx is done, or something has failed that it cannot go on without. The
// process is to end after it: upstream keeps much of its state in globals, and some of its goroutines
// do not stop.
func Run(ctx context.Context, o Options) error {
	started := time.Now()
	tuneRuntime()
	queuemetrics.Disable()
	log := newLog(os.Stderr, o.LogLevel)
	captureComponents(log)
	if err := setGates(o.EmulatedVersion); err != nil {
		return err
	}
	// The walls come before the first look into the directory: what an earlier process of the plane has left there must
	// not make this one touch a file of somebody else.
	standing, err := o.buildWalls()
	if err != nil {
		return err
	}
	release, err := claim(o.DataDir)
	if err != nil {
		return err
	}
	defer release()
	if err := removeReady(o.DataDir); err != nil {
		return err
	}
	listeners, err := o.listen()
	if err != nil {
		return fmt.Errorf("API server address: %w", err)
	}
	ensure := func() (credentials.Files, error) { return credentials.Ensure(o.credentials(), time.Now()) }
	files, err := ensure()
	if err != nil {
		return err
	}
	store, err := etcd.Start(etcd.Options{
		Dir: filepath.Join(o.DataDir, "etcd"), Socket: filepath.Join(o.DataDir, "etcd.sock"),
		Quota: o.EtcdQuota, Log: etcdLog(log),
	})
	if err != nil {
		return err
	}
	p := &plane{options: o, log: log, started: started, listeners: listeners, files: files, store: store,
		renew: ensure, walls: standing}
	return p.run(ctx)
}

// credentials returns what the plane's certificates and kubeconfigs have to say.
func (o Options) credentials() credentials.Options {
	return credentials.Options{
		Dir:       o.DataDir,
		Name:      o.Name,
		Server:    "https://" + o.local(),
		ServiceIP: o.serviceIP,
		Hosts:     append([]string{o.host}, o.ExternalHosts...),
	}
}

// buildWalls returns the names of the walls that stand.
func (o Options) buildWalls() ([]string, error) {
	if !o.Walled {
		return nil, nil
	}
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory cannot be made: %w", err)
	}
	w := walls.Options{Dir: o.DataDir, User: o.User}
	if o.Mounts {
		w.Mounts = walls.Own
	}
	if o.Socket > 0 {
		w.Network = walls.Own
	}
	return walls.Build(w)
}

// listen returns the listeners of the API server: its address in this network namespace, for the plane's own parts at
// least, and the socket that the starter opened outside of it.
func (o Options) listen() ([]net.Listener, error) {
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	if o.Socket == 0 {
		return []net.Listener{l}, nil
	}
	f := os.NewFile(uintptr(o.Socket), "listener")
	defer f.Close()
	outside, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return []net.Listener{l, outside}, nil
}
