package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/clm"
	"atoll.dev/api/fleet"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

func clmWhy(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why ID | KIND ID|NAME",
		Short: "Show what a resource waits for, from whom, since when, and the last error",
		Long: `Shows whether a resource is reconciled, and if not, which adapters have not done their
part of the present generation, what they said last and since when they are awaited; of a
deletion also what belongs to the resource and is still there.`,
		Example: "  atoll clm why 0199b3a0-5f1c-7a00-8000-0123456789ab\n  atoll clm why clusters my-cluster",
		Args:    cobra.RangeArgs(1, 2),
	}
	call := addCLM(cmd)
	out := terminal.AddOutputFlag(cmd)
	cmd.ValidArgsFunction = completeResources(c, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && !strings.Contains(args[0], "/") {
			args = []string{"all", args[0]}
		}
		return callCLM(c, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, r, err := l.one(ctx, args)
			if err != nil {
				return err
			}
			f := findings{Resource: r.Resource, Now: time.Now()}
			if f.Reports, err = l.Statuses(ctx, in, r.ID); err != nil {
				return err
			}
			if r.DeletedTime != nil {
				for child, err := range l.All(ctx, clmclient.AllKinds, clmclient.ResourceQuery{
					Search: remote.Equal("owner_id", r.ID), Order: "created_time"}) {
					if err != nil {
						return err
					}
					f.Children = append(f.Children, child.Resource)
				}
			}
			if r.Kind == "Cluster" {
				p, err := l.Placement(ctx, r.ID)
				switch status := remote.StatusOf(err); {
				case err == nil:
					f.Placement = &p
				case status < 400 || status >= 500: // else there is none, or no fleet
					return err
				}
			}
			// The latest records are enough: who asked before them was answered.
			if f.History, err = l.History(ctx, in, r.ID, 0, 20); err != nil &&
				remote.StatusOf(err) != http.StatusNotFound {
				return err
			}
			w := whyOf(f)
			return out.Print(c.Out, w, func(out io.Writer) { waitTable(out, w, in, f.Now) })
		})
	}
	return cmd
}

// findings are what a resource's state is explained by.
type findings struct {
	Resource clm.Resource
	Reports  []clm.AdapterStatus
	Children []clm.Resource      // of one that is being deleted
	History  []clm.HistoryRecord // the latest first

	Placement *fleet.Placement // of a cluster; nil: none
	Now       time.Time
}

// wait is what `clm why` shows.
type wait struct {
	ID         string     `json:"id"`
	Kind       string     `json:"kind"`
	Name       string     `json:"name"`
	Generation int32      `json:"generation"`
	Changed    time.Time  `json:"changed"` // when the generation was made
	ChangedBy  string     `json:"changed_by"`
	Deleting   bool       `json:"deleting,omitempty"`
	Reconciled string     `json:"reconciled,omitempty"` // "" when no adapter works for the kind
	Since      *time.Time `json:"since,omitempty"`
	Message    string     `json:"message,omitempty"`
	Awaited    []awaited  `json:"awaited"`
	Done       []awaited  `json:"done"` // reports that are as they should be
	LastError  *lastError `json:"last_error,omitempty"`
	Asked      *asked     `json:"asked,omitempty"` // the last time that somebody asked for work

	Placement *fleet.Placement `json:"placement,omitempty"` // of a cluster
}

// awaited is an adapter, or something that belongs to the resource, and what is
// known of it.
type awaited struct {
	From       string    `json:"from"` // adapter, or KIND NAME
	Since      time.Time `json:"since"`
	Generation int32     `json:"generation,omitempty"` // that it reported on last; 0 for none
	What       string    `json:"what"`
}

type lastError struct {
	From string    `json:"from"`
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

type asked struct {
	Time   time.Time `json:"time"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// whyOf explains a resource's state.
func whyOf(f findings) wait {
	r := f.Resource
	w := wait{
		ID: r.ID, Kind: r.Kind, Name: r.Name, Generation: r.Generation, Changed: r.UpdatedTime, ChangedBy: r.UpdatedBy,
		Deleting: r.DeletedTime != nil, Awaited: []awaited{}, Done: []awaited{}, Placement: f.Placement,
	}
	var missing []string
	since := map[string]time.Time{} // as the server says it
	for _, a := range r.Status.Awaiting {
		missing, since[a.Adapter] = append(missing, a.Adapter), a.Since
	}
	if c := clmclient.Reconciled(r); c != nil {
		w.Reconciled, w.Since, w.Message = c.Status, &c.LastTransitionTime, c.Message
		if missing == nil {
			missing = clmclient.MissingAdapters(c)
		}
	}
	known := map[string]bool{}
	for _, report := range f.Reports {
		known[report.Adapter] = true
		a := explain(r, report)
		if at, ok := since[report.Adapter]; ok {
			a.Since = at
		}
		if slices.Contains(missing, report.Adapter) {
			w.Awaited = append(w.Awaited, a)
		} else {
			w.Done = append(w.Done, a)
		}
		if e := errorIn(report); e != nil && (w.LastError == nil || e.Time.After(w.LastError.Time)) {
			w.LastError = e
		}
	}
	for _, adapter := range missing {
		if !known[adapter] {
			a := awaited{From: adapter, Since: r.UpdatedTime, What: "has never reported"}
			if at, ok := since[adapter]; ok {
				a.Since = at
			}
			w.Awaited = append(w.Awaited, a)
		}
	}
	for _, child := range f.Children {
		a := awaited{From: child.Kind + " " + child.Name, Since: r.UpdatedTime, Generation: child.Generation,
			What: "belongs to it and is still there: " + child.ID}
		if child.DeletedTime != nil {
			a.Since = *child.DeletedTime
		}
		w.Awaited = append(w.Awaited, a)
	}
	slices.SortStableFunc(w.Awaited, func(a, b awaited) int {
		return cmp.Or(a.Since.Compare(b.Since),
			strings.Compare(a.From, b.From))
	})
	for _, h := range f.History {
		if h.Action == "reconcile" {
			w.Asked = &asked{Time: h.Time, By: h.Principal}
			var note struct{ Reason string }
			if json.Unmarshal(h.Note, &note) == nil {
				w.Asked.Reason = note.Reason
			}
			break
		}
	}
	return w
}

// explain says what an adapter's last report means for the resource.
func explain(r clm.Resource, report clm.AdapterStatus) awaited {
	a := awaited{From: report.Adapter, Since: r.UpdatedTime, Generation: report.ObservedGeneration}
	if report.ObservedGeneration < r.Generation {
		a.What = fmt.Sprintf("has not reported on generation %d; its last word was on %d", r.Generation,
			report.ObservedGeneration)
		return a
	}
	wanted := "Available"
	if r.DeletedTime != nil {
		wanted = "Finalized"
	}
	for _, c := range report.Conditions {
		if c.Type == wanted {
			a.What = "reports " + textOf(c)
			if c.LastTransitionTime.After(a.Since) {
				a.Since = c.LastTransitionTime
			}
			return a
		}
	}
	a.What = "does not report " + wanted
	return a
}

// textOf is a condition as people read it.
func textOf(c clm.AdapterCondition) string {
	text := c.Type + "=" + c.Status
	if why := strings.Join(slices.DeleteFunc([]string{c.Reason, c.Message}, func(s string) bool { return s == "" }),
		": "); why != "" {
		text += " (" + why + ")"
	}
	return text
}

// errorIn finds what went wrong in a report: Health says how the adapter is,
// the others what became of its work.
func errorIn(report clm.AdapterStatus) *lastError {
	for _, kind := range []string{"Health", "Applied", "Available"} {
		for _, c := range report.Conditions {
			if c.Type == kind && c.Status == "False" && c.Message != "" {
				return &lastError{From: report.Adapter, Time: report.LastReportTime, Text: textOf(c)}
			}
		}
	}
	return nil
}

// waitTable shows it to people.
func waitTable(out io.Writer, w wait, in clmclient.Collection, now time.Time) {
	change := "changed"
	if w.Deleting {
		change = "deleted"
	}
	fmt.Fprintf(out, "%s %s (%s), generation %d, %s %s ago by %s\n", w.Kind, w.Name, w.ID, w.Generation, change,
		terminal.Ago(w.Changed, now), terminal.OneLine(w.ChangedBy))
	switch {
	case w.Reconciled == "":
		fmt.Fprintf(out, "no adapter has to do anything for a %s\n", w.Kind)
	case w.Reconciled == "True":
		fmt.Fprintf(out, "reconciled for %s\n", terminal.Ago(*w.Since, now))
	default:
		state := "not reconciled for " + terminal.Ago(*w.Since, now)
		if w.Deleting {
			state = "being deleted for " + terminal.Ago(w.Changed, now)
		}
		fmt.Fprintf(out, "%s: %s\n", state, terminal.OneLine(w.Message))
	}
	if p := w.Placement; p != nil {
		placementLines(out, *p)
	}
	show := func(title string, list []awaited) {
		if len(list) == 0 {
			return
		}
		rows := [][]string{{title, "SINCE", "GENERATION", "WHAT"}}
		for _, a := range list {
			seen := "-"
			if a.Generation > 0 {
				seen = strconv.Itoa(int(a.Generation))
			}
			rows = append(rows, []string{a.From, terminal.Ago(a.Since, now), seen, a.What})
		}
		fmt.Fprintln(out)
		terminal.Table(out, rows)
	}
	show("AWAITED", w.Awaited)
	show("REPORTED", w.Done)
	if w.LastError != nil || w.Asked != nil || len(w.Awaited) > 0 {
		fmt.Fprintln(out)
	}
	if e := w.LastError; e != nil {
		fmt.Fprintf(out, "last error: %s, %s ago: %s\n", e.From, terminal.Ago(e.Time, now), terminal.OneLine(e.Text))
	}
	if a := w.Asked; a != nil {
		reason := ""
		if a.Reason != "" {
			reason = ": " + a.Reason
		}
		fmt.Fprintf(out, "work was asked for %s ago by %s%s\n", terminal.Ago(a.Time, now), terminal.OneLine(a.By),
			terminal.OneLine(reason))
	}
	if len(w.Awaited) > 0 {
		fmt.Fprintf(out, "have it tried again now: atoll clm reconcile %s %s\n", in, w.ID)
	}
	if w.Deleting && len(w.Awaited) > 0 && now.Sub(w.Changed) > unansweredLong {
		fmt.Fprintf(out, "if it never ends: atoll clm force-delete %s %s --reason WHY\n", in, w.ID)
	}
}

// placementLines show where a cluster is placed, or what speaks against each
// management cluster.
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
