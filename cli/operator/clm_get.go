package operator

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/clm"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

func clmGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND ID|NAME",
		Short: "Show one resource",
		Long: `Shows a resource with its conditions; -o yaml shows all of it. KIND is a kind or its
plural, such as cluster or clusters, or "all"; a resource is named by its id or its name,
and KIND/ID is as good as KIND ID. With a kind alone it lists, as "atoll clm list" does.`,
		Example: `  atoll clm get clusters my-cluster
  atoll clm get all 0199b3a0-5f1c-7a00-8000-0123456789ab -o yaml`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			if in, name, err := l.parseTarget(args); err != nil || name == "" {
				if err != nil {
					return err
				}
				return showList(session, ctx, l, in, clmclient.ResourceQuery{}, 0, out)
			}
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			if out.Format == "name" {
				session.Printf("%s/%s\n", in, r.ID)
				return nil
			}
			return out.Print(session.Out, r, func(w io.Writer) { resourceTable(w, r, time.Now()) })
		})
	}
	return cmd
}

func clmList(session *terminal.Session) *cobra.Command {
	var order string
	var limit int
	cmd := &cobra.Command{
		Use:   "list KIND [ID|NAME]",
		Short: "List resources",
		Long: `Lists the resources of a kind, or of all kinds ("all"), the latest first. Resources
that are being deleted are listed until they are gone. Of one resource it is its line.`,
		Example: `  atoll clm list clusters --label env=prod
  atoll clm list all --search "status.conditions.Reconciled='False'" -o wide
  atoll clm list nodepools --owner CLUSTER-ID --order name`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	sel := addSelectFlags(cmd)
	cmd.Flags().StringVar(&order, "order", "",
		`order, such as "name" or "updated_time desc, name" (default: the latest first)`)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many; 0 is all")
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
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
	term := remote.Equal("id", id)
	if search != "" {
		term += " and (" + search + ")"
	}
	return term
}

// showList prints the resources that a query finds, at most limit of them; 0 is no limit.
func showList(session *terminal.Session, ctx context.Context, l *lifecycle, in clmclient.Collection,
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
			session.Printf("%s/%s\n", l.plural(r.Kind), r.ID)
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
	row := []string{r.Name, r.ID, strconv.Itoa(int(r.Generation)), state, "-", terminal.Ago(r.CreatedTime, now)}
	if !since.IsZero() {
		row[4] = terminal.Ago(since, now)
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

// resourceTable prints one resource as text.
func resourceTable(w io.Writer, r clmclient.Resource, now time.Time) {
	fmt.Fprintf(w, "%s %s (%s), generation %d\n", r.Kind, r.Name, r.ID, r.Generation)
	fmt.Fprintf(w, "created %s ago by %s, changed %s ago by %s\n", terminal.Ago(r.CreatedTime, now), r.CreatedBy,
		terminal.Ago(r.UpdatedTime, now), r.UpdatedBy)
	if r.DeletedTime != nil {
		fmt.Fprintf(w, "being deleted for %s, by %s\n", terminal.Ago(*r.DeletedTime, now), r.DeletedBy)
	}
	if o := r.OwnerReferences; o != nil {
		fmt.Fprintf(w, "belongs to %s %s\n", o.Kind, o.ID)
	}
	for _, refType := range slices.Sorted(maps.Keys(r.References)) {
		for _, ref := range r.References[refType] {
			fmt.Fprintf(w, "refers to %s %s (%s)\n", ref.Kind, ref.ID, refType)
		}
	}
	if len(r.Labels) > 0 {
		fmt.Fprintf(w, "labels %s\n", terminal.OneLine(terminal.LabelText(r.Labels)))
	}
	if len(r.Status.Conditions) == 0 {
		return
	}
	rows := [][]string{{"CONDITION", "STATUS", "GENERATION", "SINCE", "REASON", "MESSAGE"}}
	for _, c := range r.Status.Conditions {
		rows = append(rows, []string{c.Type, c.Status, strconv.Itoa(int(c.ObservedGeneration)),
			terminal.Ago(c.LastTransitionTime, now), c.Reason, c.Message})
	}
	fmt.Fprintln(w)
	terminal.Table(w, rows)
}

// sortedLabels returns labels as pairs in the order of their keys.
func sortedLabels(labels map[string]string) [][2]string {
	pairs := make([][2]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, [2]string{k, labels[k]})
	}
	return pairs
}
