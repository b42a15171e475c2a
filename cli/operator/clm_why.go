package operator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/fleet"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

func clmWhy(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why ID | KIND ID|NAME",
		Short: "Show for which adapters a resource waits, since when, and the last error",
		Long: `Shows whether a resource is reconciled, and if not, which adapters have not reported
success at the present generation, their last reports and since when the resource waits
for them; for a deletion also the remaining resources below it.`,
		Example: "  atoll clm why 0199b3a0-5f1c-7a00-8000-0123456789ab\n  atoll clm why clusters my-cluster",
		Args:    cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	out := terminal.AddOutputFlag(cmd)
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && !strings.Contains(args[0], "/") {
			args = []string{"all", args[0]}
		}
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			f := resourceFacts{Resource: r.Resource, Now: time.Now()}
			if f.Reports, err = l.Statuses(ctx, in, r.ID); err != nil {
				return err
			}
			if r.DeletedTime != nil {
				for child, err := range l.All(ctx, clmclient.AllKinds, clmclient.ResourceQuery{
					Search: remote.SearchEqual("owner_id", r.ID), Order: "created_time"}) {
					if err != nil {
						return err
					}
					f.Children = append(f.Children, child.Resource)
				}
			}
			if r.Kind == "Cluster" {
				p, err := l.Placement(ctx, cluster.ID(r.ID))
				switch status := remote.StatusOf(err); {
				case err == nil:
					f.Placement = &p
				case status < 400 || status >= 500: // other 4xx: no placement, or no fleet
					return err
				}
			}
			// The latest records are enough: older requests to reconcile were handled.
			if f.History, err = l.History(ctx, in, r.ID, 0, 20); err != nil &&
				remote.StatusOf(err) != http.StatusNotFound {
				return err
			}
			w := explainResource(f)
			return out.Print(session.Out, w, func(out io.Writer) { explanationTable(out, w, in, f.Now) })
		})
	}
	return cmd
}

// explanationTable prints an explanation as text.
func explanationTable(out io.Writer, w explanation, in clmclient.Collection, now time.Time) {
	change := "changed"
	if w.Deleting {
		change = "deleted"
	}
	fmt.Fprintf(out, "%s %s (%s), generation %d, %s %s ago by %s\n", w.Kind, w.Name, w.ID, w.Generation, change,
		terminal.FormatAge(w.Changed, now), terminal.OneLine(w.ChangedBy))
	switch {
	case w.Reconciled == "":
		fmt.Fprintf(out, "no adapter has to do anything for a %s\n", w.Kind)
	case w.Reconciled == "True":
		fmt.Fprintf(out, "reconciled for %s\n", terminal.FormatAge(*w.Since, now))
	default:
		state := "not reconciled for " + terminal.FormatAge(*w.Since, now)
		if w.Deleting {
			state = "being deleted for " + terminal.FormatAge(w.Changed, now)
		}
		fmt.Fprintf(out, "%s: %s\n", state, terminal.OneLine(w.Message))
	}
	if p := w.Placement; p != nil {
		placementLines(out, *p)
	}
	show := func(title string, list []dependency) {
		if len(list) == 0 {
			return
		}
		rows := [][]string{{title, "SINCE", "GENERATION", "WHAT"}}
		for _, a := range list {
			seen := "-"
			if a.Generation > 0 {
				seen = strconv.Itoa(int(a.Generation))
			}
			rows = append(rows, []string{a.From, terminal.FormatAge(a.Since, now), seen, a.What})
		}
		fmt.Fprintln(out)
		terminal.Table(out, rows)
	}
	show("AWAITED", w.Awaited)
	show("REPORTED", w.Done)
	if w.LastError != nil || w.Request != nil || len(w.Awaited) > 0 {
		fmt.Fprintln(out)
	}
	if e := w.LastError; e != nil {
		fmt.Fprintf(out, "last error: %s, %s ago: %s\n", e.From, terminal.FormatAge(e.Time, now), terminal.OneLine(e.Text))
	}
	if r := w.Request; r != nil {
		reason := ""
		if r.Reason != "" {
			reason = ": " + r.Reason
		}
		fmt.Fprintf(out, "reconciliation was requested %s ago by %s%s\n", terminal.FormatAge(r.Time, now),
			terminal.OneLine(r.By), terminal.OneLine(reason))
	}
	if len(w.Awaited) > 0 {
		fmt.Fprintf(out, "to retry now: atoll clm reconcile %s %s\n", in, w.ID)
	}
	if w.Deleting && len(w.Awaited) > 0 && now.Sub(w.Changed) > forceDeleteHintAfter {
		fmt.Fprintf(out, "if the deletion never ends: atoll clm force-delete %s %s --reason WHY\n", in, w.ID)
	}
}

// placementLines prints where a cluster is placed, or the objections to each management cluster.
func placementLines(out io.Writer, p fleet.Placement) {
	if p.State == fleet.Placed {
		fmt.Fprintf(out, "placed on %s\n", p.ManagementCluster)
		return
	}
	fmt.Fprintf(out, "no management cluster takes it: %s\n", terminal.OneLine(p.Reason))
	if p.Decision == nil {
		return
	}
	for _, o := range p.Decision.Objections {
		fmt.Fprintf(out, "  %d of %d: %s\n", o.Count, p.Decision.Considered, o.Reason)
	}
}
