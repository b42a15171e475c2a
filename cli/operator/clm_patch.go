package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/internal/rest"
)

func clmPatch(session *terminal.Session) *cobra.Command {
	var file, patch, etag string
	var replace bool
	cmd := &cobra.Command{
		Use:   "patch KIND ID|NAME",
		Short: "Change a resource's spec, labels or references",
		Long: `Merges a patch into a resource (RFC 7396: members of the patch are set, null removes
them). With --replace each of spec, labels and references in the patch replaces the stored
one. A patch that changes nothing makes no new generation.`,
		Example: `  atoll clm patch clusters my-cluster -p '{"spec":{"nodes":3},"labels":{"env":null}}' --wait
  atoll clm patch clusters my-cluster -f spec.yaml --replace`,
		Args: requireResource,
	}
	call := addCLMFlags(cmd)
	cmd.Flags().StringVarP(&patch, "patch", "p", "", "the patch, JSON or YAML")
	cmd.Flags().StringVarP(&file, "file", "f", "", `file with the patch; "-" for standard input`)
	cmd.Flags().BoolVar(&replace, "replace", false, "replace instead of merging")
	cmd.Flags().StringVar(&etag, "if-match", "", "change the resource only if it still has this ETag")
	cmd.MarkFlagsOneRequired("patch", "file")
	cmd.MarkFlagsMutuallyExclusive("patch", "file")
	wait := terminal.AddWaitFlags(cmd, "reconciled")
	out := terminal.AddOutputFlag(cmd)
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body, err := terminal.YAMLToJSON("--patch", []byte(patch))
		if file != "" {
			body, err = session.ReadYAML(file)
		}
		if err != nil {
			return err
		}
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			change := l.Merge
			if replace {
				change = l.Replace
			}
			before := r.ETag
			if r, err = change(ctx, in, r.ID, body, etag); err != nil {
				return err
			}
			verb := "changed"
			if rest.SameVersion(r.ETag, before) {
				verb = "already has these values"
			}
			return finishChange(session, ctx, l, in, r, verb, wait, out)
		})
	}
	return cmd
}
