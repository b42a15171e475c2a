package operator

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/backup"
	"atoll.dev/backup/region"
	"atoll.dev/cli/terminal"
	"atoll.dev/local"
)

func regionRestore(session *terminal.Session) *cobra.Command {
	o := local.RestoreOptions{}
	at := ""
	cmd := &cobra.Command{
		Use:   "restore [REGION]",
		Short: "Restore a lost region from its backup",
		Long: `Restores a region into a home that has no region, from the copy that "atoll region-backup"
keeps in an object store: databases, certificate authority, keys and state, as of --at or the
latest moment in the store. Then "atoll up" starts the region. Without REGION the store must have
exactly one region.

Without --store the command reads HOME/backups, the store of "atoll up --backups": on a new
machine, copy that directory there first. Management clusters that still run join the restored
region by themselves. To continue after an interruption, run the command again.`,
		Example: `  atoll region restore --home /var/lib/atoll
  atoll region restore eu-west-1 --store /etc/atoll/backups.yaml --at 2027-01-02T15:04:05Z --home /var/lib/atoll
  atoll up --home /var/lib/atoll --detach`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&o.Store, "store", "", "file that names the store; default HOME/backups/store.yaml")
	cmd.Flags().StringVar(&at, "at", "", "moment, such as 2027-01-02T15:04:05Z; default: the latest that the store has")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if at != "" {
			moment, err := time.Parse(time.RFC3339, at)
			if err != nil {
				return fmt.Errorf("--at %q is not a time such as 2027-01-02T15:04:05Z", at)
			}
			o.At = moment
		}
		if len(args) > 0 {
			o.Region = args[0]
		}
		home, err := local.OpenHome(session.HomeDir)
		if err != nil {
			return err
		}
		restored, err := home.Restore(cmd.Context(), o, func(step string) { session.Printf("  %s\n", step) })
		if err != nil {
			return fmt.Errorf("restoring the region: %w", err)
		}
		return out.Print(cmd.OutOrStdout(), restored, func(w io.Writer) {
			fmt.Fprintf(w, "region %s is restored as of %s; to start it: atoll up --detach --home %s\n", restored.Region,
				restored.Moment.Local().Format(time.RFC3339), home.Dir)
		})
	}
	return cmd
}

func regionBackups() *cobra.Command {
	config := ""
	cmd := &cobra.Command{
		Use:     "backups [REGION]",
		Short:   "List the times to which regions can be restored",
		Example: `  atoll region backups --store /etc/atoll/backups.yaml`,
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&config, "store", "", "file that names the store, as for atoll region-backup (required)")
	_ = cmd.MarkFlagRequired("store")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, keys, err := backup.ReadConfig(config)
		if err != nil {
			return err
		}
		defer keys.Close()
		names := args
		if len(names) == 0 {
			if names, err = region.Regions(cmd.Context(), store); err != nil {
				return err
			}
		}
		windows, failed := allWindows(names, func(name string) ([]region.Window, error) {
			return region.Windows(cmd.Context(), store, keys, name)
		})
		err = out.Print(cmd.OutOrStdout(), windows, func(w io.Writer) {
			rows := [][]string{{"REGION", "FROM", "TO"}}
			for _, v := range windows {
				rows = append(rows, []string{v.Region, v.From.Format(time.RFC3339), v.To.Format(time.RFC3339)})
			}
			terminal.Table(w, rows)
		})
		return errors.Join(err, failed)
	}
	return cmd
}

// allWindows returns the windows of several regions, and the errors of the regions whose windows cannot be read: they
// do not keep the others from the list.
func allWindows(regions []string, read func(name string) ([]region.Window, error)) ([]region.Window, error) {
	windows, failed := []region.Window{}, []error{}
	for _, name := range regions {
		more, err := read(name)
		if err != nil {
			failed = append(failed, fmt.Errorf("region %s: %w", name, err))
		}
		windows = append(windows, more...)
	}
	return windows, errors.Join(failed...)
}
