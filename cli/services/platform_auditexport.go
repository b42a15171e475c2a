package services

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access/audit"
	"atoll.dev/backup"
)

// auditExport has the flags of the export of audit records to an object store.
type auditExport struct {
	store  string
	period time.Duration
}

func (f *auditExport) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.store, "audit-export", "",
		"file that names an object store, as for atoll hosting --backups: audit records are copied to it, in the clear")
	cmd.Flags().DurationVar(&f.period, "audit-export-every", audit.DefaultExportPeriod,
		"with --audit-export: how often, 1s to 1h")
}

// open returns the exporter that the flags describe, without its chain; nil when there is none.
func (f *auditExport) open(region string) (*audit.Exporter, error) {
	if f.period < time.Second || f.period > time.Hour {
		return nil, fmt.Errorf("--audit-export-every %s is not between 1s and 1h", f.period)
	}
	if f.store == "" {
		return nil, nil
	}
	store, err := backup.ReadStore(f.store)
	if err != nil {
		return nil, fmt.Errorf("--audit-export: %w", err)
	}
	return &audit.Exporter{Objects: store, Prefix: audit.ExportPrefix(region), Target: store.String(), Period: f.period},
		nil
}
