package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/backup"
	"atoll.dev/cli/terminal"
	"atoll.dev/plane"
)

// Backup returns the command of operators who read the backups of control planes.
func Backup() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Backups of hosted control planes: list, restore",
		Long: `Reads the backups that "atoll hosting --backups FILE" makes, from the store that FILE
names. It needs neither the region's services nor the machine of the plane.`,
		Example: `  atoll backup list clusters-0199/hc-3f2a --store /etc/atoll/backups.yaml`,
		Args:    terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
	}
	cmd.AddCommand(backupList(), backupRestore())
	return cmd
}

// parsePlane parses NAMESPACE/NAME.
func parsePlane(arg string) (backup.Plane, error) {
	namespace, name, ok := strings.Cut(arg, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return backup.Plane{}, fmt.Errorf("%q is not NAMESPACE/NAME of a HostedCluster (see: kubectl get hostedclusters -A)",
			arg)
	}
	return backup.Plane{Namespace: namespace, Name: name}, nil
}

func backupList() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:     "list NAMESPACE/NAME",
		Short:   "List the backups of a control plane, the oldest first",
		Example: `  atoll backup list clusters-0199/hc-3f2a --store /etc/atoll/backups.yaml`,
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&config, "store", "", "file that names the store, as for atoll hosting --backups (required)")
	_ = cmd.MarkFlagRequired("store")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := parsePlane(args[0])
		if err != nil {
			return err
		}
		store, keys, err := backup.ReadConfig(config)
		if err != nil {
			return err
		}
		defer keys.Close()
		chains, err := backup.Chains(cmd.Context(), store, p)
		if err != nil {
			return err
		}
		list := make([]backupRow, 0, len(chains))
		for i, c := range chains {
			row := backupRow{Chain: c.Name, Taken: c.Taken, Restores: "the snapshot only"}
			until := backup.Until(chains, i)
			switch {
			case c.BadOrder != nil:
				row.Restores = "not known: " + c.BadOrder.Error()
			case !until.IsZero() && !until.After(c.Taken):
				row.Restores = "nothing: the clock was set back, and a later chain restores these moments"
			case c.Whole && !until.IsZero():
				row.Restores = "every second up to " + until.Format(time.RFC3339)
			case c.Whole:
				row.Restores = "every second"
			}
			list = append(list, row)
		}
		return out.Print(cmd.OutOrStdout(), list, func(w io.Writer) {
			rows := [][]string{{"CHAIN", "RESTORES"}}
			for _, r := range list {
				rows = append(rows, []string{r.Chain, r.Restores})
			}
			terminal.Table(w, rows)
		})
	}
	return cmd
}

// backupRow is a chain in the list.
type backupRow struct {
	Chain    string    `json:"chain"`
	Taken    time.Time `json:"taken"`
	Restores string    `json:"restores"` // the moments to which it can be restored, in words
}

// restoreFlags are the flags of "atoll backup restore".
type restoreFlags struct {
	config, at, dir, program string
	bump                     uint64
}

// restoreReport is the output of "atoll backup restore".
type restoreReport struct {
	Plane string    `json:"plane"`
	Chain string    `json:"chain"`
	Time  time.Time `json:"time"` // every write acknowledged before this time is restored
	// The output of "atoll-kube restore":
	Revision    int64 `json:"revision"`
	NewRevision int64 `json:"etcd_revision"`
	Changes     int   `json:"changes"`
	// Keys is "restored" when the restore has written the keys of the backup, "kept" when the directory had keys
	// already, and "none" when neither has keys.
	Keys string `json:"keys"`
	// Damage has the errors of other chains that should restore to the moment, too; "" when there were none.
	Damage string `json:"damage,omitempty"`
}

func backupRestore() *cobra.Command {
	f := &restoreFlags{}
	cmd := &cobra.Command{
		Use:   "restore NAMESPACE/NAME",
		Short: "Make the data of a control plane from its backup",
		Long: `Makes the directory etcd below --data-dir, which must not exist there, from the backup of
a control plane: every write that was acknowledged before --at is in it. The restore checks
every object, and makes the directory only when it is complete. Resource versions continue
above all that the plane had, so that controllers list again.

To restore a plane in place: stop "atoll hosting" and the plane's process, move the
directory etcd of the plane's directory away, restore with the plane's directory as
--data-dir, and start "atoll hosting". A plane keeps the keys and certificates of its
directory. A directory without keys, as on another machine, gets those of the backup, so the
plane keeps its certificate authority, its issuer and the credentials that they have signed.`,
		Example: `  atoll backup restore clusters-0199/hc-3f2a --store /etc/atoll/backups.yaml --at 2026-11-23T05:00:00Z \
    --data-dir /var/lib/atoll/hosting/planes/clusters-0199/hc-3f2a --atoll-kube /usr/libexec/atoll-kube`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&f.config, "store", "", "file that names the store, as for atoll hosting --backups (required)")
	cmd.Flags().StringVar(&f.at, "at", "",
		"time in RFC 3339, such as 2026-11-23T05:00:00Z (default: the latest that is stored)")
	cmd.Flags().StringVar(&f.dir, "data-dir", "", "directory of the plane; made when missing (required)")
	cmd.Flags().StringVar(&f.program, "atoll-kube", "atoll-kube", "program of the plane's release")
	cmd.Flags().Uint64Var(&f.bump, "bump", 0,
		"by how much the revision of etcd rises after the restore (default: above all that the plane had)")
	_ = cmd.MarkFlagRequired("store")
	_ = cmd.MarkFlagRequired("data-dir")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := parsePlane(args[0])
		if err != nil {
			return err
		}
		report, err := f.restore(cmd.Context(), p)
		if err != nil {
			return fmt.Errorf("restoring %s: %w", p, err)
		}
		return out.Print(cmd.OutOrStdout(), report, func(w io.Writer) {
			fmt.Fprintf(w, "%s is restored in %s: every write acknowledged before %s is there (revision %d, now %d).\n",
				p, f.dir, report.Time.Format(time.RFC3339), report.Revision, report.NewRevision)
			if report.Damage != "" {
				fmt.Fprintf(w, "The data is of chain %s; damaged is %s\n", report.Chain, report.Damage)
			}
		})
	}
	return cmd
}

// restore fetches the backup into a temporary directory below the plane's, and has atoll-kube make the data from it.
func (f *restoreFlags) restore(ctx context.Context, p backup.Plane) (report restoreReport, err error) {
	var at time.Time
	if f.at != "" {
		if at, err = time.Parse(time.RFC3339, f.at); err != nil {
			return report, fmt.Errorf("--at %q is not a time in RFC 3339, such as 2026-11-23T05:00:00Z", f.at)
		}
	}
	store, keys, err := backup.ReadConfig(f.config)
	if err != nil {
		return report, err
	}
	defer keys.Close()
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return report, err
	}
	if plane.Alive(f.dir) {
		return report, fmt.Errorf("a plane runs in %s: stop atoll hosting, then the plane's process (its pid is in %s)",
			f.dir, filepath.Join(f.dir, "lock"))
	}
	temporary, err := os.MkdirTemp(f.dir, "restore-*")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	got, err := backup.Fetch(ctx, store, keys, p, at, temporary)
	if err != nil {
		return report, err
	}
	bump := f.bump
	if bump == 0 {
		known, err := backup.HighestRevision(ctx, store, keys, p)
		if err != nil {
			return report, fmt.Errorf("the highest revision of the plane: %w", err)
		}
		bump = uint64(backup.NextRevision(time.Now(), max(known, got.Sample.Revision)) - got.Sample.Revision)
	}
	run := exec.CommandContext(ctx, f.program, "restore", "--data-dir", f.dir, "--snapshot", got.Snapshot,
		"--log", got.Log, "--bump", strconv.FormatUint(bump, 10))
	run.Stderr = os.Stderr
	printed, err := run.Output()
	if err != nil {
		return report, fmt.Errorf("%s restore: %w", f.program, err)
	}
	if err := json.Unmarshal(printed, &report); err != nil {
		return report, fmt.Errorf("%s restore printed %q: %w", f.program, printed, err)
	}
	if err := got.Keys.WriteEncryption(filepath.Join(f.dir, "etcd")); err != nil {
		return report, fmt.Errorf("writing the encryption keys of the plane's Secrets: %w", err)
	}
	if report.Keys, err = restoreKeys(got.Keys, filepath.Join(f.dir, "pki")); err != nil {
		return report, fmt.Errorf("writing the keys of the plane: %w", err)
	}
	report.Plane, report.Chain, report.Time = p.String(), got.Chain, got.Sample.Time
	if got.Damage != nil {
		report.Damage = got.Damage.Error()
	}
	return report, nil
}

// restoreKeys writes the keys of a backup into a plane's directory pki, unless it has keys. The result is that of
// restoreReport.Keys.
func restoreKeys(keys backup.Keys, pki string) (string, error) {
	if _, err := os.Stat(pki); err == nil {
		return "kept", nil
	}
	if keys == nil {
		return "none", nil
	}
	return "restored", keys.Write(pki)
}
