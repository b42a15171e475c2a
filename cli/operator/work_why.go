package operator

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
)

// deliveryProgress is the output of `work why`: the progress of the present generation.
type deliveryProgress struct {
	ID         string          `json:"id"`
	Name       string          `json:"name"`
	Cluster    string          `json:"cluster"`
	Generation int64           `json:"generation"`
	Deleting   bool            `json:"deleting,omitempty"`
	Stages     []deliveryStage `json:"stages"`
	Attempts   int             `json:"attempts"`
	LastError  string          `json:"last_error,omitempty"`
	// UnansweredSince is when the generation was first sent. It is nil when the agent has acknowledged the generation.
	UnansweredSince *time.Time `json:"unanswered_since,omitempty"`
}

// deliveryStage is one step of the delivery.
type deliveryStage struct {
	Stage string     `json:"stage"`
	At    *time.Time `json:"at,omitempty"`
	After string     `json:"after,omitempty"` // since it was accepted
}

// forceDeleteHintAfter is the duration of a deletion after which the output mentions force-delete.
const forceDeleteHintAfter = 10 * time.Minute

func workWhy(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why ID",
		Short: "Show how far a work has come, and the error that stops it",
		Long: `Shows when the region accepted the work's present generation and sent it to the management
cluster, when the agent there received and applied it, and the last error of these steps.
The last two times are of the management cluster's clock.`,
		Example: "  atoll work why ID -o json",
		Args:    cobra.ExactArgs(1),
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		w, err := api.Work(cmd.Context(), work.ID(args[0]))
		if err != nil {
			return err
		}
		s := deliveryStages(w.Work)
		return o.Print(session.Out, s, func(out io.Writer) { deliveryTable(out, s) })
	}
	return cmd
}

// deliveryStages returns the stages that the delivery of a work has reached.
func deliveryStages(w platform.Work) deliveryProgress {
	s := deliveryProgress{ID: w.ID, Name: w.Name, Cluster: w.ClusterID, Generation: w.Generation,
		Deleting: w.DeletedAt != nil}
	d := w.Delivery
	if d == nil {
		d = &platform.Delivery{}
	}
	for _, st := range []deliveryStage{{Stage: "accepted", At: d.AcceptedAt}, {Stage: "sent", At: d.SentAt},
		{Stage: "received", At: d.ReceivedAt}, {Stage: "applied", At: d.AppliedAt}} {
		if st.At != nil && d.AcceptedAt != nil && st.Stage != "accepted" {
			st.After = terminal.FormatDuration(st.At.Sub(*d.AcceptedAt))
		}
		s.Stages = append(s.Stages, st)
	}
	s.Attempts, s.LastError, s.UnansweredSince = d.Attempts, d.LastError, d.UnansweredSince
	for _, m := range w.Status.ResourceStatus.Manifests {
		for _, c := range m.Conditions {
			if s.LastError == "" && c.Type == "Applied" && c.Status == metav1.ConditionFalse {
				s.LastError = fmt.Sprintf("%s %s: %s", m.ResourceMeta.Kind, m.ResourceMeta.Name, c.Message)
			}
		}
	}
	return s
}

// deliveryTable prints the progress of a delivery as text.
func deliveryTable(out io.Writer, s deliveryProgress) {
	what := ""
	if s.Deleting {
		what = ", being deleted"
	}
	fmt.Fprintf(out, "work %s on %s, generation %d%s\n\n", s.Name, s.Cluster, s.Generation, what)
	rows := [][]string{{"STAGE", "AT", "AFTER"}}
	for i, st := range s.Stages {
		at := "not yet"
		switch wasReached := func(l deliveryStage) bool { return l.At != nil }; {
		case st.At != nil:
			at = st.At.Format("15:04:05.000 MST")
		case slices.ContainsFunc(s.Stages[i:], wasReached):
			at = "not recorded" // Maestro records the time of publishing later, in batches
		}
		rows = append(rows, []string{st.Stage, at, st.After})
	}
	terminal.Table(out, rows)
	if s.Attempts > 1 {
		fmt.Fprintf(out, "sent %d times\n", s.Attempts)
	}
	if s.UnansweredSince != nil {
		fmt.Fprintf(out, "the cluster's agent has not answered since %s\n", s.UnansweredSince.Format(
			"2006-01-02 15:04:05 MST"))
		if s.Deleting && time.Since(*s.UnansweredSince) > forceDeleteHintAfter {
			fmt.Fprintf(out, "if it never answers: atoll maestro force-delete %s --reason WHY\n", s.ID)
		}
	}
	if s.LastError != "" {
		fmt.Fprintf(out, "last error: %s\n", s.LastError)
	}
}

// feedbackText returns the value of a feedback rule as text.
func feedbackText(v workv1.FeedbackValue) string {
	switch f := v.Value; {
	case f.Integer != nil:
		return strconv.FormatInt(*f.Integer, 10)
	case f.String != nil:
		return *f.String
	case f.Boolean != nil:
		return strconv.FormatBool(*f.Boolean)
	case f.JsonRaw != nil:
		return *f.JsonRaw
	}
	return ""
}
