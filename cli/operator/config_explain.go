package operator

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
)

func configExplain(session *terminal.Session, tree *configTree) *cobra.Command {
	var region, cluster string
	cmd := &cobra.Command{
		Use: "explain KEY", Args: cobra.ExactArgs(1),
		Short: "Show a setting's value, the file and line that set it, and what it replaced",
		Long: `Shows the value that a setting has for a region, or for one of its management
clusters, with the file and the line that set it, and below it each value of a
more general level that it replaced. For a group of settings it shows each.`,
		Example: `  atoll config explain versions.atoll --region eu-central-1
  atoll config explain managementCluster.capacity --region eu-central-1 --cluster mc02 -o json`,
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.Flags().StringVar(&region, "region", "", "name of the region, or ENVIRONMENT/NAME")
	cmd.Flags().StringVar(&cluster, "cluster", "", "name of a management cluster of the region")
	if err := cmd.MarkFlagRequired("region"); err != nil {
		panic(err) // the flag is defined above
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		fleet, err := tree.load()
		if err != nil {
			return err
		}
		explanations, err := explainSetting(fleet, args[0], region, cluster)
		if err != nil {
			return err
		}
		return o.Print(session.Out, explanations, func(w io.Writer) {
			for _, e := range explanations {
				printExplanation(w, e)
			}
		})
	}
	return cmd
}

func explainSetting(fleet gitops.Fleet, key, region, cluster string) ([]gitops.Explanation, error) {
	r, err := fleet.Region(region)
	if err != nil || cluster == "" {
		if err != nil {
			return nil, err
		}
		return r.Explain(key)
	}
	c, err := r.Cluster(cluster)
	if err != nil {
		return nil, err
	}
	return c.Explain(key)
}

func printExplanation(w io.Writer, e gitops.Explanation) {
	fmt.Fprintln(w, e.Key)
	if e.Description != "" {
		fmt.Fprintf(w, "  # %s\n", e.Description)
	}
	rows := make([][]string, len(e.Settings))
	for i, s := range e.Settings {
		relation := "replaces"
		if i == 0 {
			relation = "is"
		}
		value := "(deleted)"
		if !s.Deleted {
			value = asJSONText(s.Value)
		}
		rows[i] = []string{"  " + relation, value, s.At.String()}
	}
	terminal.Table(w, rows)
}

// asJSONText shows a value in one line.
func asJSONText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
