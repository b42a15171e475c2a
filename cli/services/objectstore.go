package services

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/internal/rest"
	"atoll.dev/local/objectstore"
)

// objectStoreService is `atoll object-store`.
type objectStoreService struct {
	addr string
	dir  string
}

// ObjectStore returns the command of the store of backups of a region on one machine.
func ObjectStore() *cobra.Command {
	f := &objectStoreService{}
	cmd := serviceCommand("object-store", "A small S3 server for the backups of a region on one machine",
		`Keeps objects as files, in one bucket, for one key pair that it makes on first use.
"atoll up --backups" starts it. It is for one machine: the backups are lost with the
machine. In production, "atoll hosting --backups" names a real store in another account.`, f)
	cmd.Example = `  atoll object-store --listen 127.0.0.1:9000 --dir /var/lib/atoll/backups`
	cmd.Flags().StringVar(&f.addr, "listen", "127.0.0.1:9000", "loopback address; it is plain HTTP")
	cmd.Flags().StringVar(&f.dir, "dir", "",
		"directory of the objects, credentials, backup.keys and store.yaml; made on first use")
	cmd.MarkFlagRequired("dir")
	return cmd
}

func (f *objectStoreService) start(ctx context.Context, s *System) error {
	if err := requireLoopback(f.addr); err != nil {
		return fmt.Errorf("--listen %s: %w", f.addr, err)
	}
	l, err := listen(f.addr)
	if err != nil {
		return err
	}
	store, err := objectstore.New(objectstore.Options{Dir: f.dir, Endpoint: "http://" + l.Addr().String(), Log: s.Log})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	// The service is ready only after New: then hosting starts, and reads the files that New makes.
	p, err := s.startOps(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	s.serve(p, l, "objects", nil, rest.Server{Handler: store})
	return p.wait()
}
