package services

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/access/audit"
	"atoll.dev/cli/terminal"
	"atoll.dev/clm"
	"atoll.dev/fleet"
	"atoll.dev/local"
	"atoll.dev/maestro/database"
	"atoll.dev/sentinel"
	"atoll.dev/store"
)

// DescribeProgram returns the command that prints the versions of this program and of its database schemas. `atoll
// region apply` runs it in the program of another version.
func DescribeProgram(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "describe-program", Hidden: true, Args: cobra.NoArgs,
		Short: "Print the version of this program and of the schemas of its databases, as JSON",
		RunE: func(*cobra.Command, []string) error {
			return json.NewEncoder(session.Out).Encode(local.ProgramDescription{
				Version: terminal.Version,
				Schemas: map[string]int{
					"store": store.SchemaVersion(), "clm": clm.SchemaVersion(), "fleet": fleet.SchemaVersion(),
					"sentinel": sentinel.SchemaVersion(), "maestro": database.SchemaVersion(),
					"platform": len(access.Migrations()), "audit": audit.SchemaVersion(),
				},
			})
		},
	}
}
