package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/local"
)

// Down returns the command `atoll down`.
func Down(session *terminal.Session) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:     "down",
		Short:   "Stop everything that `up` started, and nothing else",
		Example: "  atoll down\n  atoll down --purge   # and delete the region's data",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			home, err := session.Home()
			if err != nil {
				return err
			}
			data := local.KeepData
			if purge {
				data = local.DeleteData
			}
			return stopRegion(session, home, data)
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "also delete the home and its database, for good")
	return cmd
}
