package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

func workApply(session *terminal.Session) *cobra.Command {
	var file, cluster string
	var wait bool
	timeout := 2 * time.Minute
	cmd := &cobra.Command{
		Use:   "apply -f FILE --cluster NAME",
		Short: "Create a work, or update it from the file",
		Long: `Posts the ManifestWork in a file (YAML or JSON, "-" for standard input) for a
management cluster. A work of that name is updated; applying the same file twice
changes nothing. With --wait it watches until every manifest is applied.`,
		Example: "  atoll work apply -f examples/hello.yaml --cluster management-01 --wait",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with a ManifestWork")
	cmd.Flags().StringVar(&cluster, "cluster", "", "management cluster")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the work is applied, and show the progress")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.MarkFlagRequired("file")
	cmd.MarkFlagRequired("cluster")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		manifestWork, err := session.ReadYAML(file)
		if err != nil {
			return err
		}
		api, err := session.Client()
		if err != nil {
			return err
		}
		start := time.Now()
		w, outcome, err := api.ApplyWork(cmd.Context(), client.ManagementClusterName(cluster), manifestWork)
		if err != nil {
			return err
		}
		progress := session.Out
		if o.Format != "table" {
			progress = session.Err
		}
		fmt.Fprintf(progress, "work %s on %s %s: id %s, generation %d (%s)\n", w.Name, w.ClusterID, outcome, w.ID,
			w.Generation, terminal.FormatDuration(time.Since(start)))
		if wait {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				fmt.Errorf("not applied within %s; see `atoll work why %s`", timeout, w.ID))
			defer cancel()
			if err := awaitApplied(ctx, api, w, progress, start); err != nil {
				return err
			}
			if w, err = api.Work(cmd.Context(), work.ID(w.ID)); err != nil {
				return err
			}
			return o.Print(session.Out, w.Work, func(out io.Writer) { conditionsTable(out, w.Work) })
		}
		return o.Print(session.Out, w.Work, func(io.Writer) {})
	}
	return cmd
}

// errApplied ends the watch of awaitApplied.
var errApplied = errors.New("applied")

// awaitApplied watches the work until the posted generation is applied, and prints each change of
// its condition Applied.
func awaitApplied(ctx context.Context, api *client.Client, w client.Work, out io.Writer, start time.Time) error {
	lastText := ""
	err := api.FollowBundles(ctx, remote.WatchOptions{ID: w.ID}, func(e remote.Event) error {
		if e.Type == "DELETED" {
			return fmt.Errorf("work %s was deleted meanwhile", w.ID)
		}
		if len(e.Object) == 0 {
			return nil
		}
		var b platform.ResourceBundle
		if err := json.Unmarshal(e.Object, &b); err != nil {
			return fmt.Errorf("watching: %w", err)
		}
		if b.Status == nil || b.ID != w.ID {
			return nil
		}
		for _, cond := range b.Status.Conditions {
			if cond.Type != "Applied" || cond.ObservedGeneration < w.Generation {
				continue
			}
			if text := fmt.Sprintf("%s=%s %s", cond.Type, cond.Status, cond.Message); text != lastText {
				lastText = text
				fmt.Fprintf(out, "  %8s  %s\n", terminal.FormatDuration(time.Since(start)), text)
				for _, m := range b.Status.ResourceStatus {
					for _, mc := range m.Conditions {
						if mc.Type == "Applied" && mc.Status == metav1.ConditionFalse {
							fmt.Fprintf(out, "            %s %s/%s: %s\n", m.ResourceMeta.Kind,
								m.ResourceMeta.Namespace, m.ResourceMeta.Name, mc.Message)
						}
					}
				}
			}
			if cond.Status == metav1.ConditionTrue {
				return errApplied
			}
		}
		return nil
	})
	if errors.Is(err, errApplied) {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
		return cause
	}
	return err
}

// conditionsTable prints the conditions of a work and of its objects, and the values of its feedback rules.
func conditionsTable(out io.Writer, w platform.Work) {
	rows := [][]string{{"OBJECT", "CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, c := range w.Status.Conditions {
		rows = append(rows, []string{"work " + w.Name, c.Type, string(c.Status), c.Reason, c.Message})
	}
	for _, m := range w.Status.ResourceStatus.Manifests {
		name := m.ResourceMeta.Kind + " " + m.ResourceMeta.Name
		if ns := m.ResourceMeta.Namespace; ns != "" {
			name = m.ResourceMeta.Kind + " " + ns + "/" + m.ResourceMeta.Name
		}
		for _, c := range m.Conditions {
			rows = append(rows, []string{name, c.Type, string(c.Status), c.Reason, c.Message})
		}
	}
	terminal.Table(out, rows)
	for _, m := range w.Status.ResourceStatus.Manifests {
		for _, v := range m.StatusFeedbacks.Values {
			fmt.Fprintf(out, "feedback of %s: %s = %s\n", m.ResourceMeta.Name, v.Name, feedbackText(v))
		}
	}
}
