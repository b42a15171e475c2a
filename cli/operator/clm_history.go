package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/api/clm"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

func clmHistory(session *terminal.Session) *cobra.Command {
	limit, before := 50, int64(0)
	cmd := &cobra.Command{
		Use:   "history KIND [ID|NAME]",
		Short: "Show who changed a resource, when, and what",
		Long: `Shows the changes of a resource, or of all resources of a kind, the latest first. With KIND
and ID it also shows the history of a removed resource. -o wide shows the resource after each
change; -o json shows the whole records.`,
		Example: `  atoll clm history clusters my-cluster
  atoll clm history nodepools ID --limit 500 -o json
  atoll clm history all`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "at most this many records")
	cmd.Flags().Int64Var(&before, "before", 0, "only records before the record of this number")
	out := terminal.AddOutputFlag(cmd, "wide")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, id, err := l.parseTarget(args)
			if err != nil {
				return err
			}
			if id != "" {
				var r clmclient.Resource
				in, r, err = l.findOne(ctx, args)
				switch {
				case err == nil:
					id = r.ID
				case remote.StatusOf(err) != http.StatusNotFound:
					return err
				}
			}
			records, err := l.History(ctx, in, id, before, limit)
			if err != nil {
				return err
			}
			return out.Print(session.Out, records, func(w io.Writer) {
				scope := oneResource
				if id == "" {
					scope = manyResources
				}
				historyTable(w, records, scope, out.Width())
			})
		})
	}
	return cmd
}

// historyScope says whether a history is of one resource or of many.
type historyScope uint8

const (
	oneResource   historyScope = iota
	manyResources              // the table has the columns KIND and ID
)

// historyTable prints records of the history.
func historyTable(w io.Writer, records []clm.HistoryRecord, scope historyScope, width terminal.Width) {
	rows := [][]string{{"TIME", "ACTION", "GENERATION", "BY", "WHAT"}}
	if width == terminal.Wide {
		rows[0] = []string{"NUMBER", "TIME", "ACTION", "GENERATION", "BY", "REQUEST", "WHAT"}
	}
	if scope == manyResources {
		rows[0] = append([]string{"KIND", "ID"}, rows[0]...)
	}
	for _, r := range records {
		generation := "-"
		if r.Generation > 0 {
			generation = strconv.Itoa(int(r.Generation))
		}
		at := r.Time.Format("2006-01-02 15:04:05.000 MST")
		row := []string{at, r.Action, generation, r.Principal, whatChanged(r)}
		if width == terminal.Wide {
			what := strings.TrimSpace(strings.Join([]string{string(r.Spec), string(r.Status), string(r.Note)}, " "))
			row = []string{strconv.FormatInt(r.Seq, 10), at, r.Action, generation, r.Principal, r.RequestID, what}
		}
		if scope == manyResources {
			row = append([]string{r.Kind, r.ID}, row...)
		}
		rows = append(rows, row)
	}
	terminal.Table(w, rows)
}

// whatChanged returns the reason that a record of the history has, otherwise the changed part of the resource: spec or
// status.
func whatChanged(r clm.HistoryRecord) string {
	var note struct{ Reason string }
	if r.Note != nil && json.Unmarshal(r.Note, &note) == nil && note.Reason != "" {
		return note.Reason
	}
	var status struct{ Conditions []clm.ResourceCondition }
	if r.Spec == nil && json.Unmarshal(r.Status, &status) == nil {
		for _, c := range status.Conditions {
			if c.Type == "Reconciled" {
				return fmt.Sprintf("status: Reconciled=%s %s", c.Status, c.Reason)
			}
		}
		return "status"
	}
	if r.Spec != nil {
		return "spec"
	}
	return ""
}
