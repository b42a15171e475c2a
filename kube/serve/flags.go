package serve

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	netutils "k8s.io/utils/net"

	"atoll.dev/kube/etcd"
	"atoll.dev/kube/konnectivity"
)

// Options are what the command line and the environment say.
type Options struct {
	DataDir        string     // everything that the plane keeps; absolute
	Listen         string     // HOST:PORT of the API server
	Name           string     // of cluster, context and user in kubeconfigs
	ExternalHosts  []string   // further names and addresses of the serving certificate
	ServiceCIDR    string     // network of Service addresses
	EtcdQuota      int64      // bytes of etcd's database at which it refuses writes
	MaxRequests    int        // see requestsVariable
	MaxWatchEvents int        // see eventsVariable
	LogLevel       slog.Level // see newLog
	Simulated      bool       // nodes that say so are simulated, see package nodes

	// Egress decides about connections to the cluster while none of its nodes is connected.
	Egress konnectivity.Egress

	// EmulatedVersion is the minor version, as 1.35, whose APIs, features and form of stored objects the components have;
	// "" is their own. Objects that they store can be read by a control plane of that version.
	EmulatedVersion string

	// Socket is the descriptor of a listening socket for Listen that the starter has opened outside of this process's
	// network namespace; 0 for none.
	Socket int
	Walled bool // build the walls of package walls
	Mounts bool // the starter has made a mount namespace for this process
	User   int  // the user id that this process, started as root, takes

	host      string // of Listen
	serviceIP net.IP // first address of ServiceCIDR
}

// parse reads the arguments of "serve" and the environment; help and the reasons of a refusal go to out.
func parse(args []string, out io.Writer) (Options, error) {
	var o Options
	flags := flag.NewFlagSet("atoll-kube serve", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.DataDir, "data-dir", "", "`directory` of everything the plane keeps; made when missing, mode 0700")
	flags.StringVar(&o.Listen, "listen", "", "`host:port` of the API server; the host is an address")
	flags.StringVar(&o.Name, "name", "plane", "`name` of cluster, context and user in kubeconfigs")
	flags.Func("external-host", "further `name or address` of the serving certificate; repeatable", func(host string) error {
		if host == "" {
			return errors.New("empty")
		}
		o.ExternalHosts = append(o.ExternalHosts, host)
		return nil
	})
	flags.StringVar(&o.ServiceCIDR, "service-cidr", "10.96.0.0/16", "`network` of Service addresses; fixed for the plane's life")
	o.EtcdQuota = etcd.DefaultQuota
	flags.Func("etcd-quota", "`size` of etcd's database at which it refuses writes, as 4Gi (default 2Gi)",
		func(size string) (err error) {
			o.EtcdQuota, err = parseQuota(size)
			return err
		})
	flags.TextVar(&o.LogLevel, "log-level", slog.LevelInfo, "debug, info, warn or error; debug includes the components' own reports")
	flags.BoolVar(&o.Simulated, "simulated-nodes", false, "play the kubelet of Nodes annotated kwok.x-k8s.io/node=fake")
	o.Egress = konnectivity.Direct
	flags.Func("egress", "`how` to reach nodes, pods and webhooks while no node's agent is connected: direct, or tunnel, "+
		"which refuses (default direct)", func(how string) error {
		o.Egress = konnectivity.Egress(how)
		if o.Egress != konnectivity.Direct && o.Egress != konnectivity.Tunnel {
			return errors.New("neither direct nor tunnel")
		}
		return nil
	})
	flags.StringVar(&o.EmulatedVersion, "emulated-version", "", "minor `version`, as 1.35, whose APIs, features and "+
		"form of stored objects to keep, so that a control plane of that version can use the data (default: its own)")
	flags.IntVar(&o.Socket, "listen-fd", 0, "`descriptor` of a listening socket for --listen, opened outside of "+
		"this process's network namespace; the plane's own parts reach it within")
	flags.BoolVar(&o.Walled, "walled", false, "give up capabilities, and open no file outside of the data directory")
	flags.BoolVar(&o.Mounts, "own-mounts", false, "with --walled: narrow the file tree of this process, which is in a "+
		"mount namespace of its own")
	flags.IntVar(&o.User, "user", 0, "with --walled: become this `user id`, which owns the data directory")
	if err := flags.Parse(args); err != nil {
		return Options{}, err
	}
	if flags.NArg() > 0 {
		return Options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	if o.MaxRequests, err = readBound(requestsVariable, defaultRequests, minRequests, maxRequests); err != nil {
		return Options{}, err
	}
	if o.MaxWatchEvents, err = readBound(eventsVariable, maxEvents, minEvents, maxEvents); err != nil {
		return Options{}, err
	}
	return o, o.complete()
}

// parseQuota parses the value of --etcd-quota.
func parseQuota(size string) (int64, error) {
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return 0, err
	}
	if q.Value() < etcd.MinQuota || q.Value() > etcd.MaxQuota {
		return 0, fmt.Errorf("%s is not between %dMi and %dGi", size, etcd.MinQuota>>20, etcd.MaxQuota>>30)
	}
	return q.Value(), nil
}

// complete checks the options and derives what follows from them.
func (o *Options) complete() error {
	if o.DataDir == "" {
		return errors.New("--data-dir is required")
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	o.DataDir = dir
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("--listen: port %q is not between 1 and 65535", port)
	}
	address := net.ParseIP(host)
	if address == nil {
		return fmt.Errorf("--listen: host %q is not an IP address", host)
	}
	o.host = host
	if o.Name == "" {
		return errors.New("--name is empty")
	}
	_, cidr, err := net.ParseCIDR(o.ServiceCIDR)
	if err != nil {
		return fmt.Errorf("--service-cidr: %w", err)
	}
	if o.serviceIP, err = netutils.GetIndexedIP(cidr, 1); err != nil {
		return fmt.Errorf("--service-cidr: %w", err)
	}
	return nil
}

// local returns the address, HOST:PORT, under which this machine reaches the API server.
func (o Options) local() string {
	host, port, _ := net.SplitHostPort(o.Listen)
	if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}
