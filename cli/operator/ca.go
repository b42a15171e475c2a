package operator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/pki"
)

// CA returns the command of the region's root and its issuing CAs.
func CA(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "ca", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "The region's root and its issuing CAs: status, offline, issue, root",
		Long: `The root of a region signs two issuing CAs, one for agents of management clusters and one for
services, and these sign all certificates. A certificate is an identity only if the issuing CA
of its kind has signed it. So the root's key is needed once in eight months, and can be kept
elsewhere. "atoll ca root" replaces the root.

Run these commands on the machine with the CA's directory.`,
		Example: `  atoll ca status
  atoll ca offline --out /mnt/safe/root.pem
  atoll ca issue --root-key-file /mnt/safe/root.pem`,
	}
	cmd.AddCommand(caStatus(session), caOffline(session), caIssue(session), caRoot(session))
	return cmd
}

func addCADirFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("dir", "", "directory of the CA (default: that of the region below --home)")
}

// openPresentCA opens the CA in a directory, "" for that of the region in the session's home. It makes no CA where
// there is none.
func openPresentCA(session *terminal.Session, dir string) (*pki.CA, error) {
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "ca.pem")); err != nil {
			return nil, fmt.Errorf("there is no CA in %s: %w", dir, err)
		}
	}
	return openCAOf(session, dir)
}

func caStatus(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Args: cobra.NoArgs,
		Short: "Show the root, its issuing CAs, when they end, and what must be done",
		Long: `Shows the root and where its key is, and the issuing CAs with their ends. With the root's key
here, a new issuing CA replaces the old one when two thirds of its year are over. Without it, a
warning says from then on that the key is needed. The metrics of atoll pki
(pki_issuing_ca_renewal_due_timestamp_seconds) and its log say the same. While the root is
replaced ("atoll ca root"), the phase, and who keeps the next step waiting; the metrics
pki_root_rotation_phase and pki_root_rotation_waiting say the same.`,
		Example: "  atoll ca status -o json"}
	o := terminal.AddOutputFlag(cmd)
	dir := addCADirFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		ca, err := openPresentCA(session, *dir)
		if err != nil {
			return err
		}
		return printCA(session, o, ca)
	}
	return cmd
}

// printCA prints the status of a CA.
func printCA(session *terminal.Session, o *terminal.Output, ca *pki.CA) error {
	status, err := ca.Status()
	if err != nil {
		return err
	}
	return o.Print(session.Out, status, func(w io.Writer) {
		where := "key here"
		if status.Root.KeyOffline {
			where = "key offline"
		}
		rows := [][]string{{"CA", "EXPIRES", "RENEWAL DUE", "STATE"},
			{"root", day(status.Root.Expires), "-", where}}
		if status.Root.SignsAll {
			rows[1][3] += ", signs everything: there are no issuing CAs (docs/identity.md)"
		}
		if r := status.Rotation; r != nil {
			where := "key here"
			if r.Next.KeyOffline {
				where = "key offline"
			}
			rows = append(rows, []string{"next root", day(r.Next.Expires), "-", where})
		}
		byRole := slices.Clone(status.Issuing)
		slices.SortStableFunc(byRole, func(a, b pki.IssuingStatus) int { return cmp.Compare(a.Role, b.Role) })
		for _, i := range byRole {
			state := "replaced"
			switch {
			case i.Signs:
				state = "signs"
			case time.Now().Before(i.Begins):
				state = "begins " + day(i.Begins)
			}
			if status.Rotation != nil && i.Root == status.Rotation.Next.Fingerprint {
				state += ", below the next root"
			}
			rows = append(rows, []string{string(i.Role), day(i.Expires), day(i.RenewAfter), state})
		}
		terminal.Table(w, rows)
		if status.Rotation != nil {
			printRotation(w, status.Rotation)
		}
		for _, warning := range status.Warnings {
			fmt.Fprintf(w, "warning: %s\n", warning)
		}
	})
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func caOffline(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "offline", Args: cobra.NoArgs,
		Short: "Take the root's key off this machine",
		Long: `Writes the root's key and certificate to a new FILE, and then removes the key from the CA's
directory; while the root is replaced, those of both roots. The region goes on enrolling,
renewing and revoking with its issuing CAs; "atoll ca status" says when they need the key
again. A killed command may be repeated with the same FILE, which then has the same key already.

Where no file can be written, as in a container, --show prints the key and leaves it, and --kept
removes it when it reads the same key from FILE, or from standard input for "-".

Keep FILE, and a copy, where neither this machine nor its backups reach it. Whoever has FILE can
pass for every service and every management cluster. If FILE is lost, nothing can make another
issuing CA, or vouch for another root: everything must join a new root before the issuing CAs
end. Older backups, snapshots and unused blocks of the disk can still contain the key.`,
		Example: `  atoll ca offline --out /mnt/safe/root.pem
  (umask 077; kubectl exec atoll-pki-0 -- atoll ca offline --dir /var/lib/atoll/pki --show > root.pem)
  kubectl exec -i atoll-pki-0 -- atoll ca offline --dir /var/lib/atoll/pki --kept - < root.pem`}
	dir := addCADirFlag(cmd)
	out := cmd.Flags().String("out", "", "write the root's key to this file, and remove it here")
	show := cmd.Flags().Bool("show", false, "print the root's key, and leave it here")
	kept := cmd.Flags().String("kept", "",
		"file with the root's key; the key here is removed if both are the same")
	cmd.MarkFlagsOneRequired("out", "show", "kept")
	cmd.MarkFlagsMutuallyExclusive("out", "show", "kept")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ca, err := openPresentCA(session, *dir)
		if err != nil {
			return err
		}
		by := userOf(cmd.Context())
		if *show {
			return ca.TakeRootKey(by, func(key []byte) error {
				session.Printf("%s", key)
				return pki.ErrKeepRootKey
			})
		}
		keep := func(key []byte) error { return writeKey(*out, key) }
		if *kept != "" {
			keep = func(key []byte) error { return compareKey(session, *kept, key) }
		}
		copied := cmp.Or(*out, *kept)
		if copied == "-" {
			copied = "what this command has read"
		} else if err := refuseInside(copied, filepath.Dir(ca.CertFile())); err != nil {
			return err
		}
		if err := ca.TakeRootKey(by, keep); err != nil {
			return err
		}
		session.Printf("the root's key is no longer in the CA's directory; `atoll ca issue --root-key-file` needs the copy: "+
			"%s\n", copied)
		return nil
	}
	return cmd
}

// compareKey returns an error when a file does not have exactly this key. A killed command may have removed one of two
// keys in it; then key is the other one.
func compareKey(session *terminal.Session, file string, key []byte) error {
	have, err := session.ReadFile(file)
	if err == nil && !bytes.HasSuffix(bytes.TrimSpace(have), bytes.TrimSpace(key)) {
		err = fmt.Errorf("%s does not have the root's key of this region", file)
	}
	return err
}

// writeKey writes the root's key to a new file and reads it again. It accepts a file that has the same key from a
// killed command, as compareKey does.
func writeKey(file string, key []byte) error {
	if err := atomicfile.Create(file, key, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	other := fmt.Errorf("%s exists with another content: name a new file", file)
	switch info, err := os.Stat(file); {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() > 1<<20: // a device such as /dev/full has no end
		return other
	}
	have, err := os.ReadFile(file)
	if err == nil && !bytes.HasSuffix(have, key) {
		err = other
	}
	return err
}

// refuseInside returns an error when a file lies below a directory, or is a link to a file there.
func refuseInside(file, dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	path, err := filepath.EvalSymlinks(file)
	if errors.Is(err, fs.ErrNotExist) { // a new file
		if path, err = filepath.EvalSymlinks(filepath.Dir(file)); err == nil {
			path = filepath.Join(path, filepath.Base(file))
		}
	}
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return err
	}
	have, haveErr := os.Stat(filepath.Join(dir, "ca.pem"))
	named, namedErr := os.Stat(path)
	isHardLink := haveErr == nil && namedErr == nil && os.SameFile(have, named)
	if isHardLink || strings.HasPrefix(path, dir+string(filepath.Separator)) {
		return fmt.Errorf("%s is in the CA's directory, which the key must leave", file)
	}
	return nil
}

func caIssue(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "issue", Args: cobra.NoArgs,
		Short: "Make new issuing CAs",
		Long: `Makes new issuing CAs for agents and for services, which sign from now on. Certificates of the
earlier ones stay valid, and their next renewal is by the new ones. The root's key comes from
--root-key-file, which is not copied, or from the CA's directory. No process has to restart.

--revoke is for a stolen key of an issuing CA. It revokes all earlier issuing CAs of a role, and so
every certificate that they have signed: servers close these connections within seconds, and
each holder joins again with a new join token ("atoll mc join-token", "atoll pki token"; "atoll
up" makes the tokens of its own processes when they start). Clients read no revocation list: a
thief of the services' key can pass for a server until the revoked CA's certificate expires.`,
		Example: `  atoll ca issue --root-key-file /mnt/safe/root.pem
  atoll ca issue --root-key-file /mnt/safe/root.pem --revoke agents`}
	o := terminal.AddOutputFlag(cmd)
	dir := addCADirFlag(cmd)
	var keyFile string
	addRootKeyFlag(cmd, &keyFile)
	revoke := cmd.Flags().StringSlice("revoke", nil, "revoke the earlier issuing CAs: agents, services")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ca, err := openPresentCA(session, *dir)
		if err != nil {
			return err
		}
		issue := pki.IssueOptions{By: userOf(cmd.Context())}
		for _, name := range *revoke {
			if !slices.Contains(pki.Roles[:], pki.Role(name)) {
				return fmt.Errorf("--revoke %q is no role; the roles are agents and services", name)
			}
			issue.Revoke = append(issue.Revoke, pki.Role(name))
		}
		if issue.RootKey, err = readRootKey(session, keyFile); err != nil {
			return err
		}
		if err := wantsRootKey(ca.Issue(issue)); err != nil {
			return err
		}
		return printCA(session, o, ca)
	}
	return cmd
}
