package customer

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func clusterCredentials(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "credentials", Aliases: []string{"credential"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Credentials of a cluster: list, revoke",
		Example: `  atoll cluster credentials list demo
  atoll cluster credentials revoke demo 019abc...`,
	}
	list := &cobra.Command{
		Use: "list NAME", Aliases: []string{
			"ls"}, Short: "List a cluster's credentials: who may use it, and until when", Args: cobra.ExactArgs(1),
		Example:           "  atoll cluster credentials list demo -o json",
		ValidArgsFunction: completion(session, completeClusters),
	}
	out := terminal.AddOutputFlag(list, "name")
	list.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			all, err := api.Credentials(ctx, client.ClusterID(cluster.ID))
			if err != nil {
				return err
			}
			if out.Format == "name" {
				ids := make([]string, len(all))
				for i, cred := range all {
					ids[i] = cred.ID
				}
				return out.PrintNamed(session.Out, all, ids...)
			}
			return out.Print(session.Out, all, func(w io.Writer) { credentialTable(w, all, time.Now()) })
		})
	}
	revoke := &cobra.Command{
		Use:               "revoke NAME CREDENTIAL",
		Short:             "End a credential before it expires",
		Args:              cobra.ExactArgs(2),
		Example:           "  atoll cluster credentials revoke demo 019abc...",
		ValidArgsFunction: completion(session, completeCredentials),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
				cluster client.Cluster) error {
				if err := api.RevokeCredential(ctx, client.ClusterID(cluster.ID), client.CredentialID(args[1])); err != nil {
					return err
				}
				session.Printf("credential %s of cluster %s is being revoked\n", args[1], cluster.Name)
				return nil
			})
		},
	}
	cmd.AddCommand(list, revoke)
	return cmd
}

func credentialTable(w io.Writer, all []platform.Credential, now time.Time) {
	rows := [][]string{{"ID", "USER", "ROLE", "AGE", "EXPIRES IN"}}
	for _, cred := range all {
		remaining := "expired"
		if cred.ExpiresAt.After(now) {
			remaining = terminal.FormatAge(now, cred.ExpiresAt)
		}
		rows = append(rows, []string{cred.ID, cred.Username, string(cred.Role), terminal.FormatAge(cred.CreatedAt, now),
			remaining})
	}
	terminal.Table(w, rows)
}

// completeCredentials completes the name of a cluster, and then the id of one of its credentials.
func completeCredentials(session *terminal.Session, cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) == 0 {
		return completeClusters(session, cmd, args, word)
	}
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	var words []cobra.Completion
	err := callRegion(session, ctx, func(ctx context.Context, api *client.Client) error {
		cluster, err := findCluster(ctx, api, args[0])
		if err != nil {
			return err
		}
		all, err := api.Credentials(ctx, client.ClusterID(cluster.ID))
		for _, cred := range all {
			words = append(words, cobra.CompletionWithDesc(cred.ID, cred.Username))
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
