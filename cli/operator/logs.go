package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/local"
)

// Logs returns the command `atoll logs`.
func Logs(session *terminal.Session) *cobra.Command {
	o := local.LogOptions{Tail: 200}
	cmd := &cobra.Command{
		Use:     "logs [PROCESS]",
		Short:   "Show the logs of the region's processes",
		Example: "  atoll logs maestro -f\n  atoll logs --tail 20",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			home, err := session.Home()
			if err != nil {
				return err
			}
			o.Processes = args
			if len(args) == 0 {
				if o.Processes, err = home.LogNames(); err != nil {
					return err
				}
			}
			return home.Logs(cmd.Context(), o, func(process, text string) {
				if len(args) == 1 {
					session.Printf("%s\n", text)
					return
				}
				session.Printf("%s | %s\n", process, text)
			})
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			home, err := session.Home()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			names, _ := home.LogNames()
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on as the logs grow")
	cmd.Flags().IntVar(&o.Tail, "tail", o.Tail, "lines of each log to begin with")
	return cmd
}
