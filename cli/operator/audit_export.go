package operator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func auditExport(session *terminal.Session) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "export", Short: "Write all audit records to a file, as JSON lines", Args: cobra.NoArgs,
		Long: `Appends the audit records of the region to a file, one JSON object in a line, the oldest first. When the
file already has records, for example of an interrupted export, it continues after the last one. Only operators may
read the records of the region.`,
		Example: `  atoll audit export --to audit.jsonl`,
	}
	cmd.Flags().StringVar(&to, "to", "", "the file")
	_ = cmd.MarkFlagRequired("to")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		defer api.Close()
		file, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		last, err := prepareAppend(file)
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		written := 0
		for {
			page, err := api.Audit(cmd.Context(), client.AuditQuery{Scope: client.AuditOfRegion, After: &last.Seq, Limit: 500})
			if err != nil {
				return err
			}
			var lines bytes.Buffer
			for _, e := range page.Items {
				if last.Hash != "" && e.PreviousHash != last.Hash {
					return fmt.Errorf("%s: record %d of the region does not follow record %d of the file; "+
						"run: atoll audit verify", to, e.Seq, last.Seq)
				}
				line, err := json.Marshal(e)
				if err != nil {
					return err
				}
				lines.Write(append(line, '\n'))
				last = e
			}
			if _, err := file.Write(lines.Bytes()); err != nil {
				return err
			}
			if written += len(page.Items); len(page.Items) == 0 {
				break
			}
		}
		if err := file.Sync(); err != nil {
			return err
		}
		return o.Print(session.Out, map[string]any{"written": written, "last": last.Seq}, func(w io.Writer) {
			fmt.Fprintf(w, "%d records written to %s, the last one is %d\n", written, to, last.Seq)
		})
	}
	return cmd
}

// maxAuditLine is longer than any line of an export, in bytes.
const maxAuditLine = 64 << 10

// prepareAppend returns the last complete record of a file, removes the incomplete line after it, and sets the offset
// of the file to its end. For an empty file it returns the zero entry. It returns an error, and does not change the
// file, when the file has other content than audit records.
func prepareAppend(file *os.File) (last client.AuditEntry, err error) {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return last, err
	}
	from := max(0, end-2*maxAuditLine)
	tail := make([]byte, end-from)
	if _, err := file.ReadAt(tail, from); err != nil && !errors.Is(err, io.EOF) {
		return last, err
	}
	whole := tail[:bytes.LastIndexByte(tail, '\n')+1] // an interrupted write has left a part of a line
	if len(whole) == 0 && from > 0 {
		return last, fmt.Errorf("it has no lines of audit records: %w", fs.ErrInvalid)
	}
	if len(whole) > 0 {
		line := bytes.TrimSuffix(whole, []byte("\n"))
		line = line[bytes.LastIndexByte(line, '\n')+1:]
		if err := json.Unmarshal(line, &last); err != nil || last.Hash == "" {
			return last, fmt.Errorf("its last line is not an audit record: %w", fs.ErrInvalid)
		}
	} else if end > maxAuditLine || tail[0] != '{' {
		return last, fmt.Errorf("it has no lines of audit records: %w", fs.ErrInvalid)
	}
	end = from + int64(len(whole))
	if err := file.Truncate(end); err != nil {
		return last, err
	}
	_, err = file.Seek(end, io.SeekStart)
	return last, err
}
