package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

func clmReconcile(session *terminal.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "reconcile KIND [ID|NAME]",
		Short: "Have adapters work on a resource again, or on all of a kind",
		Long: `Makes the sentinel send an event for a resource soon, whatever its state and the number of
earlier attempts. For all resources of a kind, or with "all" of all kinds, the sentinel limits
the rate of the events. The resource's history records the request.`,
		Example: `  atoll clm reconcile clusters my-cluster
  atoll clm reconcile all --reason "management-07 was restored from a backup"`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why; the region records it")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, name, err := l.parseTarget(args)
			if err != nil {
				return err
			}
			if name == "" {
				if err := l.ReconcileAll(ctx, l.kindOf(in), reason); err != nil {
					return err
				}
				session.Printf("reconciliation of all %s requested\n", in)
				return nil
			}
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			if err := l.Reconcile(ctx, in, r.ID, reason); err != nil {
				return err
			}
			session.Printf("reconciliation of %s %s (%s) requested\n", r.Kind, r.Name, r.ID)
			return nil
		})
	}
	return cmd
}
