package operator

import (
	"context"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/clm"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

func clmList(session *terminal.Session) *cobra.Command {
	var order string
	var limit int
	cmd := &cobra.Command{
		Use:   "list KIND [ID|NAME]",
		Short: "List resources",
		Long: `Lists the resources of a kind, or of all kinds ("all"), the latest first. Resources
that are being deleted are listed until they are removed. With an id or a name it prints the
line of that resource.`,
		Example: `  atoll clm list clusters --label env=prod
  atoll clm list all --search "status.conditions.Reconciled='False'" -o wide
  atoll clm list nodepools --owner CLUSTER-ID --order name`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	sel := addSelectFlags(cmd)
	cmd.Flags().StringVar(&order, "order", "",
		`order, such as "name" or "updated_time desc, name" (default: the latest first)`)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most this many resources; 0 is all")
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, name, err := l.parseTarget(args)
			if err != nil {
				return err
			}
			q := clmclient.ResourceQuery{Search: sel.condition(), Order: order}
			if name != "" {
				r, err := l.find(ctx, in, name)
				if err != nil {
					return err
				}
				q.Search = withID(r.ID, q.Search)
			}
			return showList(session, ctx, l, in, q, limit, out)
		})
	}
	return cmd
}

// withID returns a search for one resource by its id, restricted to what search finds.
func withID(id, search string) string {
	term := remote.SearchEqual("id", id)
	if search != "" {
		term += " and (" + search + ")"
	}
	return term
}

// showList prints the resources that a query finds, at most limit of them; 0 is no limit.
func showList(session *terminal.Session, ctx context.Context, l *clmConnection, in clmclient.Collection,
	q clmclient.ResourceQuery, limit int, out *terminal.Output) error {
	found := []clmclient.Resource{}
	for r, err := range l.All(ctx, in, q) {
		if err != nil {
			return err
		}
		if found = append(found, r); len(found) == limit {
			break
		}
	}
	if out.Format == "name" {
		for _, r := range found {
			session.Printf("%s/%s\n", l.pluralOf(r.Kind), r.ID)
		}
		return nil
	}
	return out.Print(session.Out, found, func(w io.Writer) {
		rows := [][]string{{"NAME", "ID", "GENERATION", "RECONCILED", "SINCE", "AGE"}}
		if out.Format == "wide" {
			rows[0] = append(rows[0], "OWNER", "CREATED BY", "LABELS", "MESSAGE")
		}
		for _, r := range found {
			rows = append(rows, resourceRow(r.Resource, out.Width(), time.Now()))
		}
		if in == clmclient.AllKinds {
			for i := range rows {
				kind := "KIND"
				if i > 0 {
					kind = found[i-1].Kind
				}
				rows[i] = slices.Insert(rows[i], 0, kind)
			}
		}
		terminal.Table(w, rows)
	})
}

// resourceRow returns the row of a resource in a list.
func resourceRow(r clm.Resource, width terminal.Width, now time.Time) []string {
	state, since := stateOf(r)
	row := []string{r.Name, r.ID, strconv.Itoa(int(r.Generation)), state, "-", terminal.FormatAge(r.CreatedTime, now)}
	if !since.IsZero() {
		row[4] = terminal.FormatAge(since, now)
	}
	if width == terminal.Narrow {
		return row
	}
	owner, message := "-", ""
	if r.OwnerReferences != nil {
		owner = r.OwnerReferences.Kind + "/" + r.OwnerReferences.ID
	}
	if c := clmclient.Reconciled(r); c != nil {
		message = c.Message
	}
	return append(row, owner, r.CreatedBy, terminal.LabelText(r.Labels), message)
}

// stateOf returns the status of the Reconciled condition of a resource and the time of its last
// change. It returns "-" for a resource without required adapters.
func stateOf(r clm.Resource) (state string, since time.Time) {
	switch c := clmclient.Reconciled(r); {
	case r.DeletedTime != nil:
		return "deleting", *r.DeletedTime
	case c != nil:
		return c.Status, c.LastTransitionTime
	}
	return "-", time.Time{}
}
