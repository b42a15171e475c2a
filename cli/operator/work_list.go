package operator

import (
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func workList(session *terminal.Session) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{Use: "list", Short: "List works", Args: cobra.NoArgs,
		Example: "  atoll work list --cluster management-01"}
	cmd.Flags().StringVar(&cluster, "cluster", "", "only works of this management cluster")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		works, err := api.Works(cmd.Context(), client.ManagementClusterName(cluster))
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
					conditionStatus(w, "Applied"), conditionStatus(w, "Available"), terminal.FormatAge(w.CreatedAt, time.Now())})
			}
			terminal.Table(out, rows)
		})
	}
	return cmd
}

// conditionStatus returns the status of a condition, "-" when it is of an earlier generation or missing.
func conditionStatus(w platform.Work, kind string) string {
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
