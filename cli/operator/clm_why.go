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

func clmWhy(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why ID | KIND ID|NAME",
		Short: "Show what a resource waits for, from whom, since when, and the last error",
		Long: `Shows whether a resource is reconciled, and if not, which adapters have not done their
part of the present generation, what they said last and since when they are awaited; of a
deletion also what belongs to the resource and is still there.`,
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
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, r, err := l.findOne(ctx, args)
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

// findings are the facts that explain the state of a resource.
type findings struct {
	Resource clm.Resource
	Reports  []clm.AdapterStatus
	Children []clm.Resource      // set when the resource is being deleted
	History  []clm.HistoryRecord // the latest first

	Placement *fleet.Placement // of a cluster; nil: none
	Now       time.Time
}

// explanation is the output of `clm why`.
type explanation struct {
	ID         string            `json:"id"`
	Kind       string            `json:"kind"`
	Name       string            `json:"name"`
	Generation int32             `json:"generation"`
	Changed    time.Time         `json:"changed"` // when the generation was made
	ChangedBy  string            `json:"changed_by"`
	Deleting   bool              `json:"deleting,omitempty"`
	Reconciled string            `json:"reconciled,omitempty"` // "" when the kind has no required adapters
	Since      *time.Time        `json:"since,omitempty"`
	Message    string            `json:"message,omitempty"`
	Awaited    []dependency      `json:"awaited"`
	Done       []dependency      `json:"done"` // adapters that have reported success
	LastError  *lastError        `json:"last_error,omitempty"`
	Asked      *reconcileRequest `json:"asked,omitempty"` // the latest request to reconcile

	Placement *fleet.Placement `json:"placement,omitempty"` // of a cluster
}

// dependency is an adapter or an owned resource that the state of a resource depends on.
type dependency struct {
	From       string    `json:"from"` // adapter, or KIND NAME
	Since      time.Time `json:"since"`
	Generation int32     `json:"generation,omitempty"` // that it reported on last; 0 for none
	What       string    `json:"what"`
}

// lastError is the latest error that an adapter reported.
type lastError struct {
	From string    `json:"from"`
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// reconcileRequest is a request to reconcile, as the history records it.
type reconcileRequest struct {
	Time   time.Time `json:"time"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// explainResource explains a resource's state.
func explainResource(f findings) explanation {
	r := f.Resource
	w := explanation{
		ID: r.ID, Kind: r.Kind, Name: r.Name, Generation: r.Generation, Changed: r.UpdatedTime, ChangedBy: r.UpdatedBy,
		Deleting: r.DeletedTime != nil, Awaited: []dependency{}, Done: []dependency{}, Placement: f.Placement,
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
		a := explainReport(r, report)
		if at, ok := since[report.Adapter]; ok {
			a.Since = at
		}
		if slices.Contains(missing, report.Adapter) {
			w.Awaited = append(w.Awaited, a)
		} else {
			w.Done = append(w.Done, a)
		}
		if e := findError(report); e != nil && (w.LastError == nil || e.Time.After(w.LastError.Time)) {
			w.LastError = e
		}
	}
	for _, adapter := range missing {
		if !known[adapter] {
			a := dependency{From: adapter, Since: r.UpdatedTime, What: "has never reported"}
			if at, ok := since[adapter]; ok {
				a.Since = at
			}
			w.Awaited = append(w.Awaited, a)
		}
	}
	for _, child := range f.Children {
		a := dependency{From: child.Kind + " " + child.Name, Since: r.UpdatedTime, Generation: child.Generation,
			What: "belongs to it and is still there: " + child.ID}
		if child.DeletedTime != nil {
			a.Since = *child.DeletedTime
		}
		w.Awaited = append(w.Awaited, a)
	}
	slices.SortStableFunc(w.Awaited, func(a, b dependency) int {
		return cmp.Or(a.Since.Compare(b.Since),
			strings.Compare(a.From, b.From))
	})
	for _, h := range f.History {
		if h.Action == "reconcile" {
			w.Asked = &reconcileRequest{Time: h.Time, By: h.Principal}
			var note struct{ Reason string }
			if json.Unmarshal(h.Note, &note) == nil {
				w.Asked.Reason = note.Reason
			}
			break
		}
	}
	return w
}

// explainReport explains an adapter's last report on the resource.
func explainReport(r clm.Resource, report clm.AdapterStatus) dependency {
	a := dependency{From: report.Adapter, Since: r.UpdatedTime, Generation: report.ObservedGeneration}
	if report.ObservedGeneration < r.Generation {
		a.What = fmt.Sprintf("has not reported on generation %d; its last word was on %d", r.Generation,
			report.ObservedGeneration)
		return a
	}
	goalCondition := "Available"
	if r.DeletedTime != nil {
		goalCondition = "Finalized"
	}
	for _, c := range report.Conditions {
		if c.Type == goalCondition {
			a.What = "reports " + conditionText(c)
			if c.LastTransitionTime.After(a.Since) {
				a.Since = c.LastTransitionTime
			}
			return a
		}
	}
	a.What = "does not report " + goalCondition
	return a
}

// conditionText returns a condition as TYPE=STATUS (REASON: MESSAGE).
func conditionText(c clm.AdapterCondition) string {
	text := c.Type + "=" + c.Status
	if why := strings.Join(slices.DeleteFunc([]string{c.Reason, c.Message}, func(s string) bool { return s == "" }),
		": "); why != "" {
		text += " (" + why + ")"
	}
	return text
}

// findError returns the error of a report, nil when it has none. The condition Health is about the
// adapter, the others are about its work.
func findError(report clm.AdapterStatus) *lastError {
	for _, kind := range []string{"Health", "Applied", "Available"} {
		for _, c := range report.Conditions {
			if c.Type == kind && c.Status == "False" && c.Message != "" {
				return &lastError{From: report.Adapter, Time: report.LastReportTime, Text: conditionText(c)}
			}
		}
	}
	return nil
}

// explanationTable prints an explanation as text.
func explanationTable(out io.Writer, w explanation, in clmclient.Collection, now time.Time) {
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
	if w.Deleting && len(w.Awaited) > 0 && now.Sub(w.Changed) > forceDeleteHintAfter {
		fmt.Fprintf(out, "if it never ends: atoll clm force-delete %s %s --reason WHY\n", in, w.ID)
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
