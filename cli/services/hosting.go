package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/work"
	"atoll.dev/backup"
	"atoll.dev/envelope/kms"
	"atoll.dev/hosting"
	"atoll.dev/hosting/backups"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/credential"
	"atoll.dev/hosting/drill"
	"atoll.dev/hosting/issuer"
	"atoll.dev/hosting/localnodes"
	"atoll.dev/hosting/nodepool"
	"atoll.dev/hosting/process"
	"atoll.dev/hosting/router"
	"atoll.dev/internal/accounttoken"
	"atoll.dev/plane"
	"atoll.dev/release"
)

// hostingService is `atoll hosting`.
type hostingService struct {
	kubeconfig string
	releases   []string
	etcdQuota  string
	memory     string
	backups    string
	drillEvery time.Duration
	warmPlanes int
	warmDomain string
	capacity   map[string]int64
	nodes      []string // programs of real nodes
	machines   localnodes.Options
	networks   []string // that issuers may have besides public ones
	options    hosting.Options
	planes     process.Options

	credentialLifetime time.Duration
}

// Hosting returns the command of hosting.
func Hosting() *cobra.Command {
	f := &hostingService{}
	cmd := serviceCommand("hosting", "Runs hosted control planes on a management cluster",
		`Follows the HostedClusters of a management cluster that "atoll mc bootstrap
--hosting-out" has prepared, and runs a plane for each, a process of its own that
outlives this one. "atoll router" forwards customers' connections to the planes: it
follows the routes on the socket control.sock in the data directory.

Planes run the releases that --release names, and no others.`, f)
	cmd.Example = `  atoll hosting --kubeconfig hosting.kubeconfig --data-dir /var/lib/atoll/hosting --advertise mc-01.example:6443 \
    --release 1.36.3=/usr/libexec/atoll-kube --ops 127.0.0.1:9090`
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of hosting for the management cluster")
	cmd.Flags().StringVar(&f.planes.Dir, "data-dir", "", "directory of the planes' data, and of the control socket")
	cmd.Flags().StringVar(&f.options.Advertise, "advertise", "", "HOST:PORT where customers reach the router")
	cmd.Flags().StringArrayVar(&f.releases, "release", nil, "a release that planes may run, VERSION=BINARY; repeatable")
	cmd.Flags().StringVar(&f.memory, "plane-memory", "4Gi",
		"memory limit of a large plane, at least 512Mi, where control groups can be made; a small plane has at most 1Gi, a "+
			"medium one at most 2Gi. The kernel kills a plane that exceeds its limit, and hosting starts that plane again")
	cmd.Flags().StringVar(&f.etcdQuota, "etcd-quota", "",
		"size of a plane's etcd at which it refuses writes, such as 4Gi, from the plane's next start on (default 2Gi)")
	cmd.Flags().StringVar(&f.backups, "backups", "",
		"file that names the S3-compatible store of the planes' backups (default: no backups are made)")
	cmd.Flags().DurationVar(&f.drillEvery, "drill-every", time.Hour,
		"with --backups, time between two restores of a random backup for practice; 0 for none")
	cmd.Flags().IntVar(&f.warmPlanes, "warm-planes", 0,
		"planes that run and wait for new clusters, while this machine has 2 GiB of memory to spare; each takes about "+
			"250 MiB (default: none, a new cluster waits about a second)")
	cmd.Flags().StringVar(&f.warmDomain, "warm-domain", apihosting.ServerDomain,
		"with --warm-planes, the domain of the names of new clusters' APIs: a cluster with another name gets no warm plane")
	cmd.Flags().StringToInt64Var(&f.capacity, "capacity", nil,
		"with --warm-planes, the capacity that this management cluster is registered with, such as planes=40,memory_mib="+
			"16000: there are no more warm planes than have room in it beside the clusters (default: memory is the only limit)")
	cmd.Flags().StringArrayVar(&f.nodes, "node-programs", nil,
		"programs of real nodes of a release, VERSION=ATOLL-NODE; repeatable (default: all nodes are simulated)")
	cmd.Flags().StringVar(&f.machines.Dir, "node-dir", "",
		"directory of the homes of real nodes, at most 55 bytes (default: nodes in the data directory)")
	cmd.Flags().StringArrayVar(&f.machines.Images, "node-image", nil,
		"archive of images that every real node imports at its start; repeatable")
	cmd.Flags().IntVar(&f.machines.Most, "max-nodes", 0, "largest number of real nodes on this machine (default 20)")
	cmd.Flags().DurationVar(&f.options.Idle, "idle", 0,
		"time without connections after which a hibernated cluster sleeps (default 10m)")
	cmd.Flags().DurationVar(&f.options.Upgrades.Soak, "upgrade-soak", 0,
		"time after an upgrade in which a cluster can go back to the release before; negative for none (default 24h)")
	cmd.Flags().DurationVar(&f.options.Upgrades.ReadyLimit, "upgrade-limit", 0,
		"time in which a plane must be ready with another release, before it goes back by itself (default 3m)")
	cmd.Flags().StringSliceVar(&f.networks, "issuer-networks", nil,
		"private networks, such as 10.1.0.0/16, in which customers' issuers of tokens may be (default: public addresses "+
			"only)")
	addCredentialLifetimeFlag(cmd, &f.credentialLifetime)
	return cmd
}

func (f *hostingService) start(ctx context.Context, s *System) error {
	if f.kubeconfig == "" || f.planes.Dir == "" || f.options.Advertise == "" || len(f.releases) == 0 {
		return errors.New("--kubeconfig, --data-dir, --advertise and --release are needed")
	}
	if err := checkCredentialLifetime(f.credentialLifetime); err != nil {
		return err
	}
	var err error
	if f.planes.Binaries, err = parseReleases("--release", f.releases); err != nil {
		return err
	}
	if f.machines.Programs, err = parseReleases("--node-programs", f.nodes); err != nil {
		return err
	}
	if f.drillEvery < 0 {
		return errors.New("--drill-every is negative")
	}
	if f.warmPlanes < 0 {
		return errors.New("--warm-planes is negative")
	}
	if wrong := validation.IsDNS1123Subdomain(f.warmDomain); len(wrong) > 0 {
		return fmt.Errorf("--warm-domain %q: %s", f.warmDomain, wrong[0])
	}
	if err := work.CheckCapacity(f.capacity); err != nil {
		return fmt.Errorf("--capacity: %w", err)
	}
	f.options.Releases = slices.Sorted(maps.Keys(f.planes.Binaries))
	f.planes.Warm = process.Warm{Planes: f.warmPlanes, Spec: hosting.WarmSpec(f.options.Releases, f.warmDomain),
		Memory: freeMemory}
	if f.planes.Dir, err = filepath.Abs(f.planes.Dir); err != nil { // a plane's process has another working directory
		return fmt.Errorf("--data-dir: %w", err)
	}
	if f.planes.EtcdQuota, err = parseQuota(f.etcdQuota); err != nil {
		return err
	}
	if f.planes.Limits.Memory, err = parsePlaneMemory(f.memory); err != nil {
		return err
	}
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(s.Log) // client-go logs as this service does
	account, err := accounttoken.Open(f.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	p.run(func(ctx context.Context) error { return account.Renew(ctx, s.Log) })
	config := account.RESTConfig()
	config.QPS, config.Burst = 200, 400
	if f.options.Client, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	f.options.Log, f.options.Metrics = s.Log, s.Ops.Registry
	f.planes.Log, f.planes.Metrics = s.Log, s.Ops.Registry
	return s.runHosting(p, f)
}

// freeMemory returns the bytes that this machine can give to another process.
func freeMemory() (int64, error) {
	machine, err := drill.ReadMachine()
	return machine.Memory, err
}

// newBackups returns the backups of the planes of a runtime, nil when none are made, and their keys, which the caller
// closes.
func (f *hostingService) newBackups(s *System, p *parts, runtime *process.Runtime) (*backups.Backups, kms.Keys, error) {
	if f.backups == "" {
		return nil, kms.Keys{}, nil
	}
	store, keys, err := backup.ReadConfig(f.backups)
	if err != nil {
		return nil, kms.Keys{}, fmt.Errorf("--backups: %w", err)
	}
	p.watchKeys(s, keys)
	return backups.New(backups.Options{
		Store: store, KMS: keys, Spool: filepath.Join(f.planes.Dir, "spool"), Log: s.Log, Metrics: s.Ops.Registry,
		Dir: runtime.Dir, State: runtime.StateDir, Staging: runtime.Staging, Programs: f.planes.Binaries,
		Restores: func(id controlplane.ID) ([]string, error) {
			o, err := runtime.Observe(id)
			return o.LastStart.Restores(), err
		},
		Record: func(id controlplane.ID) (controlplane.LastStart, error) {
			o, err := runtime.Observe(id)
			return o.LastStart, err
		},
		Endpoint: f.options.Advertise,
		Dial: func(id controlplane.ID, w backup.Wrap) (*grpc.ClientConn, error) {
			return plane.Config{Dir: runtime.Dir(id)}.DialStore(w)
		},
	}), keys, nil
}

// newMachines returns the real nodes of this machine; nil when it has no programs for them.
func (f *hostingService) newMachines(s *System) (*localnodes.Machines, error) {
	o := f.machines
	if len(o.Programs) == 0 {
		return nil, nil
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(f.planes.Dir, "nodes")
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("--node-dir: %w", err)
	}
	for i, image := range o.Images {
		if o.Images[i], err = filepath.Abs(image); err != nil {
			return nil, fmt.Errorf("--node-image: %w", err)
		}
	}
	if o.Atoll, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	o.Log = s.Log
	machines, err := localnodes.New(o)
	if err != nil {
		return nil, fmt.Errorf("--node-dir: %w", err)
	}
	return machines, nil
}

// newDrills returns the restores of backups for practice. planeBackups is nil when no backups are made.
func (f *hostingService) newDrills(s *System, runtime *process.Runtime, planeBackups *backups.Backups) *drill.Drills {
	o := drill.Options{Planes: runtime, Every: f.drillEvery, File: filepath.Join(f.planes.Dir, "drills.json"),
		Log: s.Log, Metrics: s.Ops.Registry}
	if planeBackups != nil {
		o.Backups, o.Renew = planeBackups, planeBackups.Renew
	}
	return drill.New(o)
}

// runHosting runs hosting and its side of the router's control socket.
func (s *System) runHosting(p *parts, f *hostingService) error {
	o, planes := f.options, f.planes
	var h *hosting.Hosting
	control := router.NewControl(func(ctx context.Context, serverName string) (string, error) {
		return h.WakeServer(ctx, serverName)
	})
	o.Routes = control
	if len(f.capacity) > 0 {
		planes.Warm.Room = func() int { return h.WarmRoom(f.capacity) }
	}
	runtime, err := process.New(planes)
	if err != nil {
		return err
	}
	o.Planes = runtime
	pools := nodepool.Options{Client: o.Client, Log: o.Log, Router: o.Advertise}
	machines, err := f.newMachines(s)
	if err != nil {
		return err
	}
	if machines != nil {
		pools.Machines, pools.LoadBalancers = machines, machines
	}
	planeBackups, keys, err := f.newBackups(s, p, runtime)
	if err != nil {
		return err
	}
	defer keys.Close() // after wait
	if planeBackups != nil {
		o.Backups = planeBackups
		o.Restored = func(ctx context.Context, id controlplane.ID, admin controlplane.Admin) error {
			return credential.Agree(ctx, credential.Options{Client: o.Client, Longest: f.credentialLifetime}, id, admin)
		}
	}
	drills := f.newDrills(s, runtime, planeBackups)
	o.Drills = drills
	networks, err := parseNetworks(f.networks)
	if err != nil {
		return err
	}
	issuers := issuer.New(issuer.Options{Dir: runtime.Dir, Networks: networks, Log: s.Log, Metrics: s.Ops.Registry})
	o.Issuers = issuers
	h, err = hosting.New(o)
	if err != nil {
		return err
	}
	pools.Planes = h
	s.Ops.Check("hostedclusters", h.Ready)
	p.run(func(ctx context.Context) error {
		return h.Run(ctx, func(ctx context.Context) error {
			l, err := router.ListenControl(filepath.Join(planes.Dir, "control.sock"))
			if err != nil {
				return err
			}
			return control.Serve(ctx, l)
		}, func(ctx context.Context) error {
			return credential.Run(ctx, credential.Options{Client: o.Client, Planes: h, Longest: f.credentialLifetime,
				Log: o.Log})
		}, func(ctx context.Context) error {
			return nodepool.Run(ctx, pools)
		}, func(ctx context.Context) error {
			return issuers.Run(ctx, h.IssuersChanged)
		}, func(ctx context.Context) error {
			if planeBackups == nil {
				return nil
			}
			return planeBackups.Run(ctx, h.BackupChanged)
		}, func(ctx context.Context) error {
			return hosting.Reporter{Client: o.Client, WarmPlanes: runtime.WarmPlanes, Capacity: f.capacity,
				Log: o.Log}.Run(ctx)
		}, func(ctx context.Context) error {
			return drills.Run(ctx, h.DrillChanged)
		})
	})
	return p.wait()
}

// parseNetworks parses the values of --issuer-networks.
func parseNetworks(texts []string) (networks []netip.Prefix, err error) {
	for _, text := range texts {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--issuer-networks %q is not a network, such as 10.1.0.0/16", text)
		}
		networks = append(networks, n.Masked())
	}
	return networks, nil
}

// minPlaneMemory is the smallest limit of memory, in bytes, with which every plane can start.
const minPlaneMemory = 512 << 20

// parsePlaneMemory parses the value of --plane-memory.
func parsePlaneMemory(size string) (int64, error) {
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return 0, fmt.Errorf("--plane-memory %q is not a size, such as 4Gi", size)
	}
	if q.Value() < minPlaneMemory {
		return 0, fmt.Errorf("--plane-memory %s is less than 512Mi, which the start of a plane needs", size)
	}
	return q.Value(), nil
}

// Quotas of a plane's etcd: a new plane has 1 to 3 MiB, and etcd recommends no more than the upper one.
const minQuota, maxQuota = 8 << 20, 8 << 30

// parseQuota parses the value of --etcd-quota; 0 means the default of the plane's program.
func parseQuota(size string) (int64, error) {
	if size == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return 0, fmt.Errorf("--etcd-quota %q is not a size, such as 4Gi", size)
	}
	if q.Value() < minQuota || q.Value() > maxQuota {
		return 0, fmt.Errorf("--etcd-quota %s is not between 8Mi and 8Gi", size)
	}
	return q.Value(), nil
}

// parseReleases parses the values of a flag, VERSION=BINARY.
func parseReleases(flag string, releases []string) (map[controlplane.Version]string, error) {
	binaries := map[controlplane.Version]string{}
	for _, r := range releases {
		v, binary, ok := strings.Cut(r, "=")
		if !ok || release.CheckVersion(v) != nil || binary == "" {
			return nil, fmt.Errorf("%s %q is not VERSION=BINARY, such as 1.36.3=/usr/libexec/atoll-kube", flag, r)
		}
		if _, isDuplicate := binaries[controlplane.Version(v)]; isDuplicate {
			return nil, fmt.Errorf("%s names %s twice", flag, v)
		}
		path, err := filepath.Abs(binary)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", flag, r, err)
		}
		binaries[controlplane.Version(v)] = path
	}
	return binaries, nil
}
