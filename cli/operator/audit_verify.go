package operator

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/access/audit"
	"atoll.dev/cli/terminal"
)

// auditHead is the result of a verification.
type auditHead struct {
	Records int64        `json:"records"`
	First   int64        `json:"first"`
	Head    audit.Anchor `json:"head"`
}

func auditVerify(session *terminal.Session) *cobra.Command {
	var expect string
	cmd := &cobra.Command{
		Use: "verify", Short: "Find a removed, altered or moved audit record", Args: cobra.NoArgs,
		Long: `Reads all audit records of the region and computes their hashes. It prints the first record that was
removed, altered or moved, and then ends with 1. It is for operators.

Who can write the database could compute a whole chain anew. Keep the head that this command prints in another
place: with --expect, the next verification finds a chain without it.`,
		Example: `  atoll audit verify
  atoll audit verify --expect 4711:6f0c...`,
	}
	cmd.Flags().StringVar(&expect, "expect", "", "SEQ:HASH, the head that an earlier verification printed")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		known, err := parseAnchor(expect)
		if err != nil {
			return err
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
		return o.Print(session.Out, auditHead{v.Records, v.First, v.Head}, func(w io.Writer) {
			fmt.Fprintf(w, "%d records, none is missing or altered\nhead %d:%s\n", v.Records, v.Head.Seq, v.Head.Hash)
		})
	}
	return cmd
}

// parseAnchor reads SEQ:HASH; "" is none.
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
