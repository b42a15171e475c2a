package operator

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/pki"
)

// caRoot returns the command that replaces the region's root.
func caRoot(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "root", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Replace the root: prepare, complete, retire",
		Long: `Replaces the region's root in three steps. No process restarts or joins again.

  prepare   makes the next root. Every process learns within 15 minutes that it shall trust
            both. Give both certificates (ca.crt beside the CA, region-ca.pem) to customers and
            external brokers now.
  complete  makes issuing CAs below the next root, which sign from now on. Refused while a
            process does not trust the next root. Every process renews its certificate within
            15 minutes.
  retire    removes the present root, and nobody trusts it any more. Refused while a
            certificate below it is in use, or could be renewed.

"atoll ca status" shows the phase, and who keeps the next step waiting, until when. A killed
step may be repeated. Make a backup of the CA after each step.`,
		Example: `  atoll ca root prepare
  atoll ca status
  atoll ca root complete
  atoll ca root retire`,
	}
	cmd.AddCommand(
		caRootStep(session, &cobra.Command{Use: "prepare",
			Short: "Make the next root, which every process shall trust",
			Long: `Makes the next root with a key of its own, in the CA's directory. The present root vouches for
it, so the present root's key is needed: in the CA's directory, or in --root-key-file. The next
root signs nothing yet. "atoll ca offline" takes its key off this machine.

Join tokens that are made from now on name both roots. Repeating the command changes nothing.`,
			Example: `  atoll ca root prepare
  atoll ca root prepare --root-key-file /mnt/safe/root.pem
  atoll ca offline --out /mnt/safe/next-root.pem`}, keyOfRoot, (*pki.CA).PrepareRoot),
		caRootStep(session, &cobra.Command{Use: "complete",
			Short: "Make issuing CAs below the next root, which sign from now on",
			Long: `Makes issuing CAs below the next root, whose key is needed: in the CA's directory, or in
--root-key-file. They sign from now on, and every process renews its certificate within 15
minutes. The present root is still trusted.

Refused while the holder of a certificate has not told the CA that it trusts the next root. A
process of an earlier Atoll never does: upgrade it. The certificate of a process that is gone
expires within 7 days; "atoll mc revoke" ends those of a management cluster at once.`,
			Example: `  atoll ca root complete
  atoll ca root complete --root-key-file /mnt/safe/next-root.pem`}, keyOfRoot, (*pki.CA).CompleteRoot),
		caRootStep(session, &cobra.Command{Use: "retire",
			Short: "Remove the present root; the next one takes its place",
			Long: `The next root becomes the root, and the signing service hands out this one alone. The present
root, its issuing CAs and their keys are removed from the CA's directory. No key is needed.

Refused while a certificate below the present root is in use, or has expired less than a day ago
and could be renewed. Replace the pins and CA files of the old root afterwards (--ca-hash,
ca_hash, region-ca.pem): a new process with the old one alone cannot join any more.`,
			Example: `  atoll ca root retire`}, noKey, (*pki.CA).RetireRoot),
	)
	return cmd
}

// rootKeyUse is whether a step needs a root's key.
type rootKeyUse uint8

const (
	noKey rootKeyUse = iota
	keyOfRoot
)

// caRootStep makes the command of a step of a rotation.
func caRootStep(session *terminal.Session, cmd *cobra.Command, key rootKeyUse,
	step func(*pki.CA, pki.RotationOptions) error) *cobra.Command {
	cmd.Args = cobra.NoArgs
	o := terminal.AddOutputFlag(cmd)
	dir := addCADirFlag(cmd)
	var keyFile string
	if key == keyOfRoot {
		addRootKeyFlag(cmd, &keyFile)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ca, err := openPresentCA(session, *dir)
		if err != nil {
			return err
		}
		options := pki.RotationOptions{By: userOf(cmd.Context())}
		if options.RootKey, err = readRootKey(session, keyFile); err != nil {
			return err
		}
		if err := wantsRootKey(step(ca, options)); err != nil {
			return err
		}
		return printCA(session, o, ca)
	}
	return cmd
}

func addRootKeyFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "root-key-file", "",
		"file with the root's key, \"-\" for standard input (default: the key in the CA's directory)")
}

// readRootKey reads the file of --root-key-file; nil without one.
func readRootKey(session *terminal.Session, file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	key, err := session.ReadFile(file)
	if err == nil && len(key) == 0 {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("--root-key-file: %w", err)
	}
	return key, nil
}

// wantsRootKey adds the next step to the error of a missing root key.
func wantsRootKey(err error) error {
	if errors.Is(err, pki.ErrRootOffline) {
		return fmt.Errorf("%w; name its file with --root-key-file", err)
	}
	return err
}

// printRotation prints the phase of a rotation of the root, the next step, and who keeps it waiting.
func printRotation(w io.Writer, r *pki.RotationStatus) {
	next, what := "complete", "do not trust the next root yet"
	if r.Phase == pki.RootCompleted {
		next, what = "retire", "have a certificate below the present root"
	}
	fmt.Fprintf(w, "rotation: %s since %s; ", r.Phase, r.Since.Format("2006-01-02 15:04:05 UTC"))
	if len(r.Waiting) == 0 {
		fmt.Fprintf(w, "the next step is `atoll ca root %s`\n", next)
		return
	}
	fmt.Fprintf(w, "`atoll ca root %s` waits for these, which %s:\n", next, what)
	rows := [][]string{{"IDENTITY", "CERTIFICATES", "UNTIL, AT THE LATEST"}}
	for _, h := range r.Waiting {
		rows = append(rows, []string{string(h.Name), strconv.Itoa(h.Certificates), h.Until.Format("2006-01-02 15:04:05 UTC")})
	}
	terminal.Table(w, rows)
}
