package operator

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/access/audit"
	"atoll.dev/backup"
	"atoll.dev/cli/terminal"
)

// verifiedChain is the result of the verification of a region's records.
type verifiedChain struct {
	Records int64        `json:"records"`
	First   int64        `json:"first"`
	Head    audit.Anchor `json:"head"`
}

func auditVerify(session *terminal.Session) *cobra.Command {
	var expect, store, region string
	cmd := &cobra.Command{
		Use: "verify", Short: "Find a removed, altered or moved audit record", Args: cobra.NoArgs,
		Long: `Reads all audit records of the region and computes their hashes. It prints the first record that was
removed, altered or moved, and then exits with status 1. Only operators may read the records of the region.

An attacker who can write the database can compute a whole new chain. Keep the head that this command prints in
another place: with --expect, the next verification fails when the chain does not have that head.

With --store it reads the copy in the object store to which "atoll platform --audit-export" writes, and needs no
region. A fork is a record after which the copy has a second chain: the region was restored as of an earlier moment,
or an attacker replaced the chain in its database.`,
		Example: `  atoll audit verify
  atoll audit verify --expect 4711:6f0c...
  atoll audit verify --store /etc/atoll/audit.yaml --region eu-1`,
	}
	cmd.Flags().StringVar(&expect, "expect", "", "SEQ:HASH, the head that an earlier verification printed")
	cmd.Flags().StringVar(&store, "store", "", "file that names an object store: verify the copy there")
	cmd.Flags().StringVar(&region, "region", "", "with --store: the region's name")
	cmd.MarkFlagsRequiredTogether("store", "region")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		known, err := parseAnchor(expect)
		if err != nil {
			return err
		}
		if store != "" {
			return verifyExport(cmd.Context(), session.Out, o, store, region, known)
		}
		api, err := session.Client()
		if err != nil {
			return err
		}
		defer api.Close()
		v, err := audit.Verify(cmd.Context(), known, readChain(api))
		if err != nil {
			return err
		}
		return o.Print(session.Out, verifiedChain{v.Records, v.First, v.Head}, func(w io.Writer) {
			fmt.Fprintf(w, "%d records, none is missing or altered\nhead %d:%s\n", v.Records, v.Head.Seq, v.Head.Hash)
		})
	}
	return cmd
}

// verifiedExport is the result of the verification of an export.
type verifiedExport struct {
	verifiedChain
	Objects  int     `json:"objects"`
	Repeated int64   `json:"repeated"`
	Forks    []int64 `json:"forks"`
}

// verifyExport verifies a region's export in the store that a file names.
func verifyExport(ctx context.Context, out io.Writer, o *terminal.Output, file, region string,
	known audit.Anchor) error {
	objects, err := backup.ReadStore(file)
	if err != nil {
		return err
	}
	v, err := audit.VerifyExport(ctx, known, audit.ExportPrefix(region), objects)
	if err != nil {
		return err
	}
	if v.Objects == 0 {
		return fmt.Errorf("%s has no audit records of region %s", objects, region)
	}
	result := verifiedExport{verifiedChain{v.Records, v.First, v.Head}, v.Objects, v.Repeated,
		append([]int64{}, v.Forks...)}
	return o.Print(out, result, func(w io.Writer) {
		fmt.Fprintf(w, "%d records from %d on in %d objects, none is missing or altered\nhead %d:%s\n", v.Records, v.First,
			v.Objects, v.Head.Seq, v.Head.Hash)
		for _, seq := range v.Forks {
			fmt.Fprintf(w, "fork at record %d: the region was restored as of an earlier moment, or its chain was replaced\n",
				seq)
		}
	})
}

// parseAnchor parses SEQ:HASH, the value of --expect. It returns the zero anchor for "".
func parseAnchor(text string) (a audit.Anchor, err error) {
	if text == "" {
		return a, nil
	}
	seq, hash, ok := strings.Cut(text, ":")
	if a.Seq, err = strconv.ParseInt(seq, 10, 64); err != nil || !ok || len(hash) != 64 {
		return a, fmt.Errorf("--expect %s is not SEQ:HASH, as atoll audit verify prints the head", text)
	}
	a.Hash = hash
	return a, nil
}
