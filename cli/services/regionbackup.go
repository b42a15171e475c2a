package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"atoll.dev/backup"
	"atoll.dev/backup/region"
	"atoll.dev/cli/terminal"
	"atoll.dev/internal/postgres"
)

// regionBackupService is `atoll region-backup`.
type regionBackupService struct {
	region   string
	store    string
	program  string
	files    map[string]string
	keep     time.Duration
	database *terminal.Database
}

// RegionBackup returns the command that copies the databases and files of a region to an object store.
func RegionBackup() *cobra.Command {
	f := &regionBackupService{}
	cmd := serviceCommand("region-backup", "Copies the databases and files of a region to an object store, continuously",
		`Receives the WAL of the region's PostgreSQL server and stores it every 5 seconds; stores a
base backup each day, and the files of --file whenever they change. Everything is encrypted
before it leaves the machine. "atoll region restore" makes the region from it, as of any moment
within --keep. "atoll up --backups" starts it.

The role of --dsn needs the right to replicate and to create replication slots, as a superuser
has. A managed PostgreSQL has backups of its own: use those, and keep the files by other means.
One process at a time copies a server. /readyz fails while the copy is more than 30 s behind.`, f)
	cmd.Example = `  atoll region-backup --region eu-west-1 --store /etc/atoll/backups.yaml \
    --dsn-file /etc/atoll/superuser.dsn --file region.json=/var/lib/atoll/region.json \
    --file pki=/var/lib/atoll/pki --file platform=/var/lib/atoll/platform`
	fl := cmd.Flags()
	fl.StringVar(&f.region, "region", "", "name of the region (required)")
	fl.StringVar(&f.store, "store", "", "file that names the store, as for atoll hosting --backups (required)")
	fl.StringToStringVar(&f.files, "file", nil, "NAME=PATH: a file or directory to copy; repeatable")
	fl.DurationVar(&f.keep, "keep", 7*24*time.Hour, "how long ago a moment may be that can be restored; a day at least")
	fl.StringVar(&f.program, "pg-basebackup", "",
		"pg_basebackup of the server's version; default: that of the newest installed PostgreSQL")
	f.database = terminal.AddDatabaseFlags(cmd, "dsn", "any database of the region's server")
	cmd.MarkFlagRequired("region")
	cmd.MarkFlagRequired("store")
	return cmd
}

var regionName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (f *regionBackupService) start(ctx context.Context, s *System) error {
	if f.keep < 24*time.Hour {
		return errors.New("--keep: a day at least, because a base backup is made each day")
	}
	if !regionName.MatchString(f.region) {
		return fmt.Errorf("--region %q: use lower-case letters, digits and '-', at most 63", f.region)
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("--file %s: the name must be a path without .. and / at its beginning", name)
		}
	}
	dsn, err := f.database.Read()
	if err != nil {
		return err
	}
	store, keys, err := backup.ReadConfig(f.store)
	if err != nil {
		return err
	}
	defer keys.Close() // after wait
	if f.program == "" {
		binaries, err := postgres.Find()
		if err != nil {
			return err
		}
		f.program = binaries.Path("pg_basebackup")
	}
	c := region.New(region.Options{Region: f.region, Server: dsn, BaseBackup: f.program, Files: f.files,
		Store: store, KMS: keys, Keep: f.keep, Log: s.Log})
	s.Ops.Check("copy", c.Check)
	s.Ops.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "atoll_region_backup_age_seconds",
		Help: "How far the copy of the region is behind; -1 while there is none.",
	}, func() float64 {
		age, isComplete := c.Age()
		if !isComplete {
			return -1
		}
		return age.Seconds()
	}))
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	p.watchKeys(s, keys)
	p.run(func(ctx context.Context) error {
		c.Run(ctx)
		return nil
	})
	return p.wait()
}
