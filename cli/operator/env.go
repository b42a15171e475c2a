package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

// Env returns the command `atoll env`.
func Env(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print shell exports for clients of the region",
		Long: `Prints ATOLL_HOME, ATOLL_ENDPOINT, ATOLL_CA and the AWS_ variables with the first
key pair. The secret is in the output: evaluate it, do not log it.`,
		Example: `  eval "$(atoll env)"
  curl --cacert $ATOLL_CA --aws-sigv4 "aws:amz:$AWS_REGION:execute-api" \
    --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" $ATOLL_ENDPOINT/prod/api/v0/management_clusters`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			home, err := session.Home()
			if err != nil {
				return err
			}
			endpoint, region, err := home.Endpoint()
			if err != nil {
				return err
			}
			cred, err := home.Credentials()
			if err != nil {
				return err
			}
			for _, v := range [][2]string{
				{"ATOLL_HOME", home.Dir}, {"ATOLL_ENDPOINT", endpoint}, {"ATOLL_CA", home.CAFile()},
				{"AWS_ACCESS_KEY_ID", cred.AccessKeyID}, {"AWS_SECRET_ACCESS_KEY", cred.SecretAccessKey},
				{"AWS_REGION", region},
			} {
				session.Printf("export %s=%s\n", v[0], terminal.ShellQuote(v[1]))
			}
			return nil
		},
	}
}
