package operator

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/maestroclient"
)

func maestroUnknown(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unknown", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Works that agents have and Maestro does not know: list, adopt, delete",
		Long: `After a loss of Maestro's database, agents keep the objects of works that Maestro does not
know any more. When a source publishes such a work again, Maestro knows it. For every other
work an operator decides: "adopt" makes it a bundle of a source, "delete" removes its objects.`,
		Example: `  atoll maestro unknown list
  atoll maestro unknown adopt management-01 ID --source ` + work.SourcePlatform,
	}
	cmd.AddCommand(unknownList(session), unknownAdopt(session), unknownDelete(session))
	return cmd
}

func unknownList(session *terminal.Session) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{Use: "list", Short: "List unknown works", Args: cobra.NoArgs,
		Example: "  atoll maestro unknown list --cluster management-01"}
	cmd.Flags().StringVar(&cluster, "cluster", "", "only of this management cluster")
	out := terminal.AddOutputFlag(cmd)
	o := addMaestroFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callMaestro(session, cmd.Context(), o, func(ctx context.Context, m *maestroclient.Client) error {
			all, err := m.AllUnknownWorks(ctx, work.Consumer(cluster))
			if err != nil {
				return err
			}
			return out.Print(session.Out, all, func(w io.Writer) { unknownTable(w, all, time.Now()) })
		})
	}
	return cmd
}

func unknownTable(w io.Writer, works []api.UnknownWork, now time.Time) {
	rows := [][]string{{"CLUSTER", "ID", "GENERATION", "KNOWN FOR", "ADOPTING FOR"}}
	for _, u := range works {
		rows = append(rows, []string{u.ConsumerName, u.ID, strconv.FormatInt(u.Version, 10), terminal.FormatAge(u.FirstSeenAt,
			now),
			u.AdoptingFor})
	}
	terminal.Table(w, rows)
}

func unknownAdopt(session *terminal.Session) *cobra.Command {
	var source, reason string
	cmd := &cobra.Command{
		Use:   "adopt MC ID",
		Short: "Make an unknown work a bundle of a source; its objects stay",
		Long: `Asks the agent for the work and makes a bundle of it that belongs to a source. Nothing
changes on the cluster. Only Atoll's agents support it.`,
		Example: "  atoll maestro unknown adopt management-01 ID --source " + work.SourcePlatform,
		Args:    cobra.ExactArgs(2),
	}
	cmd.Flags().StringVar(&source, "source", work.SourcePlatform, "source that is to own the bundle")
	cmd.Flags().StringVar(&reason, "reason", "", "why; the region records it")
	o := addMaestroFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callMaestro(session, cmd.Context(), o, func(ctx context.Context, m *maestroclient.Client) error {
			adopted, err := m.AdoptUnknownWork(ctx, work.Consumer(args[0]), work.ID(args[1]), source, reason)
			switch {
			case err != nil:
				return err
			case adopted:
				session.Printf("%s on %s belongs to %s\n", args[1], args[0], source)
			default:
				session.Printf("%s on %s will be adopted for %s when its agent has sent the work\n", args[1], args[0],
					source)
			}
			return nil
		})
	}
	return cmd
}

func unknownDelete(session *terminal.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "delete MC ID",
		Short:   "Order the agent of a management cluster to delete an unknown work",
		Example: `  atoll maestro unknown delete management-01 ID --reason "its cluster was deleted"`,
		Args:    cobra.ExactArgs(2),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; the region records it")
	cmd.MarkFlagRequired("reason")
	o := addMaestroFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callMaestro(session, cmd.Context(), o, func(ctx context.Context, m *maestroclient.Client) error {
			if err := m.DeleteUnknownWork(ctx, work.Consumer(args[0]), work.ID(args[1]), reason); err != nil {
				return err
			}
			session.Printf("deletion of %s on %s ordered\n", args[1], args[0])
			return nil
		})
	}
	return cmd
}
