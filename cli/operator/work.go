package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

func Work(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "work", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "ManifestWorks: what is applied on management clusters"}
	cmd.AddCommand(workApply(session), workList(session), workGet(session), workWhy(session), workDelete(session))
	return cmd
}

func workApply(session *terminal.Session) *cobra.Command {
	var file, cluster string
	var wait bool
	timeout := 2 * time.Minute
	cmd := &cobra.Command{
		Use:   "apply -f FILE --cluster NAME",
		Short: "Create a work, or make it what the file says",
		Long: `Posts the ManifestWork in a file (YAML or JSON, "-" for standard input) for a
management cluster. A work of that name is updated; applying the same file twice
changes nothing. With --wait it watches until every manifest is applied.`,
		Example: "  atoll work apply -f examples/hello.yaml --cluster management-01 --wait",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with a ManifestWork")
	cmd.Flags().StringVar(&cluster, "cluster", "", "management cluster")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is applied, showing progress")
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
		w, outcome, err := api.ApplyWork(cmd.Context(), cluster, manifestWork)
		if err != nil {
			return err
		}
		progress := session.Out
		if o.Format != "table" {
			progress = session.Err
		}
		fmt.Fprintf(progress, "work %s on %s %s: id %s, generation %d (%s)\n", w.Name, w.ClusterID, outcome, w.ID,
			w.Generation, terminal.Took(time.Since(start)))
		if wait {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				fmt.Errorf("not applied within %s; see `atoll work why %s`", timeout, w.ID))
			defer cancel()
			if err := awaitApplied(ctx, api, w, progress, start); err != nil {
				return err
			}
			if w, err = api.Work(cmd.Context(), w.ID); err != nil {
				return err
			}
			return o.Print(session.Out, w.Work, func(out io.Writer) { conditionsTable(out, w.Work) })
		}
		return o.Print(session.Out, w.Work, func(io.Writer) {})
	}
	return cmd
}

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
				fmt.Fprintf(out, "  %8s  %s\n", terminal.Took(time.Since(start)), text)
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

func workList(session *terminal.Session) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{Use: "list", Short: "List works", Args: cobra.NoArgs,
		Example: "  atoll work list --cluster management-01"}
	cmd.Flags().StringVar(&cluster, "cluster", "", "only of this management cluster")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		works, err := api.Works(cmd.Context(), cluster)
		if err != nil {
			return err
		}
		if works == nil {
			works = []platform.Work{}
		}
		return o.Print(session.Out, works, func(out io.Writer) {
			rows := [][]string{{"ID", "CLUSTER", "NAME", "GENERATION", "APPLIED", "AVAILABLE", "AGE"}}
			for _, w := range works {
				rows = append(rows, []string{w.ID, w.ClusterID, w.Name, strconv.FormatInt(w.Generation, 10),
					condition(w, "Applied"), condition(w, "Available"), terminal.Ago(w.CreatedAt, time.Now())})
			}
			terminal.Table(out, rows)
		})
	}
	return cmd
}

// condition returns the status of a condition, "-" when it is of an earlier generation or missing.
func condition(w platform.Work, kind string) string {
	if w.DeletedAt != nil {
		return "deleting"
	}
	for _, c := range w.Status.Conditions {
		if c.Type == kind && c.ObservedGeneration >= w.Generation {
			return string(c.Status)
		}
	}
	return "-"
}

func workGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "get ID", Short: "Show one work", Args: cobra.ExactArgs(1),
		Example: "  atoll work get ID -o yaml"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		w, err := api.Work(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return o.Print(session.Out, w.Work, func(out io.Writer) {
			fmt.Fprintf(out, "%s on %s, generation %d, created %s ago\n\n", w.Name, w.ClusterID, w.Generation,
				terminal.Ago(w.CreatedAt, time.Now()))
			conditionsTable(out, w.Work)
		})
	}
	return cmd
}

func workDelete(session *terminal.Session) *cobra.Command {
	var wait bool
	timeout := 2 * time.Minute
	cmd := &cobra.Command{
		Use:   "delete ID",
		Short: "Delete a work and, as its delete option says, what it applied",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := session.Client()
			if err != nil {
				return err
			}
			start := time.Now()
			if err := api.DeleteWork(cmd.Context(), args[0], ""); err != nil {
				return err
			}
			session.Printf("deletion of %s ordered\n", args[0])
			if !wait {
				return nil
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				fmt.Errorf("not gone within %s; see `atoll work why %s`", timeout, args[0]))
			defer cancel()
			if err := awaitGone(ctx, api, args[0]); err != nil {
				return err
			}
			session.Printf("%s is gone (%s)\n", args[0], terminal.Took(time.Since(start)))
			return nil
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until its agent has confirmed")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	return cmd
}

var errGone = errors.New("gone")

// awaitGone watches until the work is deleted. A watch begins with the existing works: when the
// first bookmark arrives before the work, it is deleted already.
func awaitGone(ctx context.Context, api *client.Client, id string) error {
	seen := false
	err := api.FollowBundles(ctx, remote.WatchOptions{ID: id}, func(e remote.Event) error {
		switch {
		case e.Type == remote.Relist:
			seen = false
		case e.Type == "DELETED", e.Type == "BOOKMARK" && !seen:
			return errGone
		case len(e.Object) > 0:
			seen = true
		}
		return nil
	})
	if errors.Is(err, errGone) {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
		return cause
	}
	return err
}
