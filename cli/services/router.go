package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/hosting/router"
)

// routerService is `atoll router`.
type routerService struct {
	addr    string
	proxies []string
	options router.Options
}

// Router returns the command of the router.
func Router() *cobra.Command {
	f := &routerService{}
	cmd := serviceCommand("router", "A management cluster's port for its planes",
		`Forwards TLS connections to hosted clusters by the server name that the client
requests. It does not decrypt them and has no key. It follows the routes of "atoll
hosting" on a Unix socket and keeps them, so it goes on while hosting does not run.
It holds a connection to a hibernated cluster until hosting has woken the cluster.`, f)
	cmd.Example = `  atoll router --listen 0.0.0.0:6443 --control /run/atoll/control.sock --data-dir ` +
		`/var/lib/atoll/router --ops 127.0.0.1:9090

  # behind a load balancer of 10.0.8.0/24 that sends the PROXY protocol
  atoll router --listen 0.0.0.0:6443 --proxy-from 10.0.8.0/24 --control /run/atoll/control.sock ` +
		`--data-dir /var/lib/atoll/router`
	cmd.Flags().StringVar(&f.addr, "listen", "", "address for clients of hosted clusters")
	cmd.Flags().StringVar(&f.options.Control, "control", "", "path of hosting's control socket")
	cmd.Flags().StringVar(&f.options.Dir, "data-dir", "", "directory in which the routes are kept")
	limits := &f.options.Limits
	cmd.Flags().IntVar(&limits.Connections, "max-connections", 0,
		"open connections of all clusters (default 16384, or fewer for a low limit of open files)")
	cmd.Flags().IntVar(&limits.PerName, "max-per-cluster", 0, "open connections of one cluster (default 2048)")
	cmd.Flags().IntVar(&limits.PerSource, "max-per-source", 0,
		"open connections of one address or IPv6 /64 (default half of --max-per-cluster)")
	cmd.Flags().IntVar(&limits.Unnamed, "max-unnamed", 0,
		"connections that have not named a cluster yet; a new one takes the place of the oldest (default 1024)")
	cmd.Flags().IntVar(&limits.UnnamedPerSource, "max-unnamed-per-source", 0,
		"such connections of one address or IPv6 /64 (default half of --max-unnamed)")
	cmd.Flags().IntVar(&limits.Handshakes, "max-handshakes-per-source", 0,
		"new connections in a second from one address or IPv6 /64, 20 times as many at once (default 100)")
	cmd.Flags().IntVar(&limits.WakesPerName, "max-wakes-per-cluster", 0,
		"how often connections wake a sleeping cluster in an hour (default 60)")
	cmd.Flags().IntVar(&limits.WakesPerSource, "max-wakes-per-source", 0,
		"how many sleeping clusters one address or IPv6 /64 wakes in an hour (default 240)")
	cmd.Flags().StringSliceVar(&f.proxies, "proxy-from", nil,
		"networks of load balancers, which send a PROXY protocol header (v1 or v2) before each connection")
	return cmd
}

func (f *routerService) start(ctx context.Context, s *System) error {
	if f.addr == "" || f.options.Control == "" || f.options.Dir == "" {
		return errors.New("--listen, --control and --data-dir are needed")
	}
	var err error
	if f.options.Limits.Proxies, err = parseProxies(f.proxies); err != nil {
		return err
	}
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.options.Dir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	l, err := listen(f.addr)
	if err != nil {
		return err
	}
	f.options.Log, f.options.Metrics = s.Log, s.Ops.Registry
	r := router.New(f.options)
	p.run(func(ctx context.Context) error { return r.Run(ctx, l) })
	return p.wait()
}

// parseProxies parses the values of --proxy-from.
func parseProxies(texts []string) (networks []netip.Prefix, err error) {
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--proxy-from %s is no network like 10.0.0.0/24", text)
		}
		networks = append(networks, network.Masked())
	}
	return networks, nil
}
