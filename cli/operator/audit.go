package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access/audit"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// Audit returns the command `atoll audit`.
func Audit(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Audit records: list, verify, export",
		Long: `Shows who changed what and who was refused. Each record is in a chain: its hash covers the
record and the hash before it, so that "atoll audit verify" finds a removed or altered record.`,
		Example: `  atoll audit list --outcome denied
  atoll audit verify
  atoll audit export --to audit.jsonl`,
	}
	cmd.AddCommand(auditList(session), auditVerify(session), auditExport(session))
	return cmd
}

// auditRow is an entry as a command prints it.
type auditRow struct {
	client.AuditEntry
	record audit.Record
}

// MarshalJSON leaves the entry as the region sent it.
func (r auditRow) MarshalJSON() ([]byte, error) { return json.Marshal(r.AuditEntry) }

func auditList(session *terminal.Session) *cobra.Command {
	var q client.AuditQuery
	var allAccounts bool
	var since time.Duration
	var from, to string
	cmd := &cobra.Command{
		Use: "list", Short: "List audit records, the latest first", Args: cobra.NoArgs,
		Long: `Lists the records of the account: what its principals did, and what operators of the region did to
its resources. With --all, an operator lists the records of every account.`,
		Example: `  atoll audit list --since 1h
  atoll audit list --resource 0190c5e2-... -o json
  atoll audit list --all --account 123456789012 --outcome denied`,
	}
	flags := cmd.Flags()
	flags.BoolVar(&allAccounts, "all", false, "the records of all accounts, for operators")
	flags.StringVar((*string)(&q.Account), "account", "", "with --all: only records of this account")
	flags.DurationVar(&since, "since", 0, "only records that are not older than this, such as 1h")
	flags.StringVar(&from, "since-time", "", "only records of this time or later, such as 2026-11-23T10:00:00Z")
	flags.StringVar(&to, "until", "", "only records before this time")
	flags.StringVar(&q.Principal, "principal", "", "only records of this principal")
	flags.StringVar(&q.Action, "action", "", "only records of this action, such as DeleteCluster")
	flags.StringVar(&q.Outcome, "outcome", "", "only records with this outcome: done or denied")
	flags.StringVar(&q.ResourceKind, "kind", "", "only records about resources of this kind, such as Cluster")
	flags.StringVar(&q.Resource, "resource", "", "only records about the resource with this id")
	flags.StringVar(&q.Request, "request", "", "only records of the request with this id")
	flags.Int64Var(&q.Before, "before", 0, "only records with a smaller number: the next page of a longer list")
	flags.IntVar(&q.Limit, "limit", 50, "at most this many records, up to 500")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		q.Scope = client.AuditOfAccount
		if allAccounts {
			q.Scope = client.AuditOfRegion
		}
		if q.From, err = parseTime("--since-time", from); err != nil {
			return err
		}
		if q.To, err = parseTime("--until", to); err != nil {
			return err
		}
		if since > 0 {
			q.From = time.Now().Add(-since)
		}
		api, err := session.Client()
		if err != nil {
			return err
		}
		defer api.Close()
		page, err := api.Audit(cmd.Context(), q)
		if err != nil {
			return err
		}
		rows := make([]auditRow, len(page.Items))
		for i, item := range page.Items {
			rows[i].AuditEntry = item
			if err := json.Unmarshal(item.Record, &rows[i].record); err != nil {
				return fmt.Errorf("audit record %d: %w", item.Seq, err)
			}
		}
		return o.Print(session.Out, rows, func(w io.Writer) { auditTable(w, rows) })
	}
	return cmd
}

// parseTime parses the value of a flag that has a time. It returns the zero time for "".
func parseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("%s %s is not a time like 2026-11-23T10:00:00Z", flag, text)
	}
	return t, nil
}

// auditTable prints records as text.
func auditTable(w io.Writer, rows []auditRow) {
	table := [][]string{{"SEQ", "TIME", "OUTCOME", "PRINCIPAL", "ACTION", "RESOURCE", "REQUEST"}}
	for _, row := range rows {
		r := row.record
		outcome := r.Outcome
		if r.Code != "" {
			outcome += " " + r.Code
		}
		if r.Count > 0 {
			outcome += " ×" + strconv.Itoa(r.Count)
		}
		action := r.Action
		if action == "" {
			action = r.Change
		}
		resource := r.Resource.Kind
		if r.Resource.ID != "" {
			resource += "/" + r.Resource.ID
		}
		table = append(table, []string{strconv.FormatInt(row.Seq, 10), r.Time, outcome, terminal.DashIfEmpty(r.Principal),
			terminal.DashIfEmpty(action), terminal.DashIfEmpty(resource), terminal.DashIfEmpty(r.RequestID)})
	}
	terminal.Table(w, table)
}

// readChain returns a function for audit.Verify, which reads the records of the region after a number, page by page.
func readChain(api *client.Client) func(ctx context.Context, after int64) (audit.Page, error) {
	return func(ctx context.Context, after int64) (audit.Page, error) {
		page, err := api.Audit(ctx, client.AuditQuery{Scope: client.AuditOfRegion, After: &after, Limit: 500})
		if err != nil {
			return audit.Page{}, err
		}
		out := audit.Page{Head: audit.Anchor(page.Head), Anchor: audit.Anchor(page.Anchor)}
		for _, e := range page.Items {
			out.Entries = append(out.Entries, audit.Entry{Seq: e.Seq, Previous: e.PreviousHash, Hash: e.Hash,
				Record: e.Record})
		}
		return out, nil
	}
}
