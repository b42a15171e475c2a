package services

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/hosting/router"
)

// routerService is `atoll router`.
type routerService struct {
	addr    string
	options router.Options
}

// Router returns the command of the router.
func Router() *cobra.Command {
	f := &routerService{}
	cmd := serviceCommand("router", "A management cluster's port for its planes",
		`Carries TLS connections to hosted clusters by the server name that a client
asks for, without ending TLS: it holds no key. It follows the routes of
"atoll hosting" on a Unix socket, keeps them, and serves on without it. A
connection to a cluster that sleeps is held while hosting wakes it.`, f)
	cmd.Example = `  atoll router --listen 0.0.0.0:6443 --control /run/atoll/control.sock --data-dir ` +
		`/var/lib/atoll/router --ops 127.0.0.1:9090`
	cmd.Flags().StringVar(&f.addr, "listen", "", "address for clients of hosted clusters")
	cmd.Flags().StringVar(&f.options.Control, "control", "", "path of hosting's control socket")
	cmd.Flags().StringVar(&f.options.Dir, "data-dir", "", "directory in which the routes are kept")
	cmd.Flags().IntVar(&f.options.MaxPerName, "max-per-cluster", 0, "open connections of one cluster (default 2048)")
	cmd.Flags().IntVar(&f.options.MaxUnnamed, "max-unnamed", 0,
		"connections that have not said yet which cluster they are for (default 1024)")
	cmd.Flags().IntVar(&f.options.MaxPerSource, "max-unnamed-per-source", 0,
		"of these, from one address (default half of them)")
	return cmd
}

func (f *routerService) start(ctx context.Context, s *System) error {
	if f.addr == "" || f.options.Control == "" || f.options.Dir == "" {
		return errors.New("--listen, --control and --data-dir are needed")
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
