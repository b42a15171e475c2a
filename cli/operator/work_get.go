package operator

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
)

func workGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "get ID", Short: "Show one work", Args: cobra.ExactArgs(1),
		Example: "  atoll work get ID -o yaml"}
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
		return o.Print(session.Out, w.Work, func(out io.Writer) {
			fmt.Fprintf(out, "%s on %s, generation %d, created %s ago\n\n", w.Name, w.ClusterID, w.Generation,
				terminal.FormatAge(w.CreatedAt, time.Now()))
			conditionsTable(out, w.Work)
		})
	}
	return cmd
}
