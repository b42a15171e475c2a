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

	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
)

func clmGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND ID|NAME",
		Short: "Show one resource",
		Long: `Shows a resource with its conditions; -o yaml shows all of it. KIND is a kind or its
plural, such as cluster or clusters, or "all". Name a resource by its id or its name;
KIND/ID means the same as KIND ID. With a kind alone it lists, as "atoll clm list" does.`,
		Example: `  atoll clm get clusters my-cluster
  atoll clm get all 0199b3a0-5f1c-7a00-8000-0123456789ab -o yaml`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
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

// resourceTable prints one resource as text.
func resourceTable(w io.Writer, r clmclient.Resource, now time.Time) {
	fmt.Fprintf(w, "%s %s (%s), generation %d\n", r.Kind, r.Name, r.ID, r.Generation)
	fmt.Fprintf(w, "created %s ago by %s, changed %s ago by %s\n", terminal.FormatAge(r.CreatedTime, now), r.CreatedBy,
		terminal.FormatAge(r.UpdatedTime, now), r.UpdatedBy)
	if r.DeletedTime != nil {
		fmt.Fprintf(w, "being deleted for %s, by %s\n", terminal.FormatAge(*r.DeletedTime, now), r.DeletedBy)
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
			terminal.FormatAge(c.LastTransitionTime, now), c.Reason, c.Message})
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
