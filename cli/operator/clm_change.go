package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"atoll.dev/api/clm"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/internal/rest"
)

// finishChange reports a change, waits with --wait, and prints the resource.
func finishChange(session *terminal.Session, ctx context.Context, l *lifecycle, in clmclient.Collection,
	r clmclient.Resource, verb string, f *terminal.WaitFlags, out *terminal.Output) error {
	progress := out.Progress(session)
	fmt.Fprintf(progress, "%s %s %s: id %s, generation %d\n", r.Kind, r.Name, verb, r.ID, r.Generation)
	if f.Wait {
		if err := awaitResource(session, ctx, l, in, r, resourceReconciled, f.Timeout, progress); err != nil {
			return err
		}
		var err error
		if r, err = l.Get(ctx, in, r.ID, ""); err != nil {
			return err
		}
	}
	return out.Print(session.Out, r, func(io.Writer) {})
}

func clmCreate(session *terminal.Session) *cobra.Command {
	var file, owner string
	cmd := &cobra.Command{
		Use:   "create -f FILE",
		Short: "Create a resource",
		Long: `Creates the resource in a file (YAML or JSON, "-" for standard input): kind, name, spec,
and labels and references where there are some. What belongs to another resource needs
--owner.`,
		Example: `  atoll clm create -f cluster.yaml --wait
  echo '{"kind":"NodePool","name":"workers","spec":{}}' | atoll clm create -f - --owner my-cluster`,
		Args: cobra.NoArgs,
	}
	call := addCLMFlags(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with a resource")
	cmd.Flags().StringVar(&owner, "owner", "", "id or name of the resource that it belongs to")
	cmd.MarkFlagRequired("file")
	wait := terminal.AddWaitFlags(cmd, "reconciled")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := session.ReadYAML(file)
		if err != nil {
			return err
		}
		var body clm.ResourceCreate
		strict := json.NewDecoder(bytes.NewReader(text)) // an unknown field is an error
		strict.DisallowUnknownFields()
		if err := strict.Decode(&body); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, err := l.collection(body.Kind)
			if err != nil {
				return fmt.Errorf("%s: kind: %w", file, err)
			}
			into := in
			for _, k := range l.kinds {
				if k.Plural != in {
					continue
				}
				switch {
				case k.Owner == "" && owner != "":
					return fmt.Errorf("a %s belongs to nothing: leave --owner out", k.Kind)
				case k.Owner != "" && owner == "":
					return fmt.Errorf("a %s belongs to one of %s: name it with --owner", k.Kind, k.Owner)
				case k.Owner != "":
					o, err := l.find(ctx, k.Owner, owner)
					if err != nil {
						return fmt.Errorf("--owner: %w", err)
					}
					into = k.Owner.Below(o.ID, in)
				}
			}
			r, err := l.Create(ctx, into, body, uuid.NewString())
			if err != nil {
				return err
			}
			return finishChange(session, ctx, l, in, r, "created", wait, out)
		})
	}
	return cmd
}

func clmPatch(session *terminal.Session) *cobra.Command {
	var file, patch, etag string
	var replace bool
	cmd := &cobra.Command{
		Use:   "patch KIND ID|NAME",
		Short: "Change a resource's spec, labels or references",
		Long: `Merges a patch into a resource (RFC 7396: members of the patch are set, null removes
them). With --replace each of spec, labels and references that the patch has replaces the
one that is there. A change that changes nothing makes no generation.`,
		Example: `  atoll clm patch clusters my-cluster -p '{"spec":{"nodes":3},"labels":{"env":null}}' --wait
  atoll clm patch clusters my-cluster -f spec.yaml --replace`,
		Args: requireResource,
	}
	call := addCLMFlags(cmd)
	cmd.Flags().StringVarP(&patch, "patch", "p", "", "the patch, JSON or YAML")
	cmd.Flags().StringVarP(&file, "file", "f", "", `file with the patch; "-" for standard input`)
	cmd.Flags().BoolVar(&replace, "replace", false, "replace instead of merging")
	cmd.Flags().StringVar(&etag, "if-match", "", "only if the resource still has this ETag")
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
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
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
				verb = "has all that already"
			}
			return finishChange(session, ctx, l, in, r, verb, wait, out)
		})
	}
	return cmd
}

func clmDelete(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete KIND ID|NAME",
		Short: "Delete a resource and what belongs to it",
		Long: `Asks for the deletion of a resource. It is gone when its adapters have said that they
have cleaned up; "atoll clm why" says who has not.`,
		Example: "  atoll clm delete clusters my-cluster --wait",
		Args:    requireResource,
	}
	call := addCLMFlags(cmd)
	wait := terminal.AddWaitFlags(cmd, "gone")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			if r, err = l.Delete(ctx, in, r.ID, ""); err != nil {
				return err
			}
			session.Printf("deletion of %s %s (%s) ordered\n", r.Kind, r.Name, r.ID)
			if !wait.Wait {
				return nil
			}
			return awaitResource(session, ctx, l, in, r, resourceGone, wait.Timeout, session.Out)
		})
	}
	return cmd
}

func clmForceDelete(session *terminal.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "force-delete KIND ID|NAME",
		Short: "Remove a resource whose deletion does not end",
		Long: `Removes a resource that is being deleted, and all below it, without waiting for its
adapters any longer. What they made for it stays behind, unknown to the region. The
reason goes into the history.`,
		Example: `  atoll clm force-delete clusters my-cluster --reason "management-07 burnt down"`,
		Args:    requireResource,
	}
	call := addCLMFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	cmd.MarkFlagRequired("reason")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			if err := l.ForceDelete(ctx, in, r.ID, reason); err != nil {
				return err
			}
			session.Printf("%s %s (%s) is gone; what was made for it may still be there\n", r.Kind, r.Name, r.ID)
			return nil
		})
	}
	return cmd
}

func clmReconcile(session *terminal.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "reconcile KIND [ID|NAME]",
		Short: "Have adapters work on a resource again, or on all of a kind",
		Long: `Has the sentinel send an event for a resource soon, whatever its state and however often
it was tried before; for all resources of a kind, or with "all" of all kinds, it sends them
at a pace. It is in the resource's history.`,
		Example: `  atoll clm reconcile clusters my-cluster
  atoll clm reconcile all --reason "management-07 was restored from a backup"`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, name, err := l.parseTarget(args)
			if err != nil {
				return err
			}
			if name == "" {
				if err := l.ReconcileAll(ctx, l.kind(in), reason); err != nil {
					return err
				}
				session.Printf("asked for work on all %s\n", in)
				return nil
			}
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			if err := l.Reconcile(ctx, in, r.ID, reason); err != nil {
				return err
			}
			session.Printf("asked for work on %s %s (%s)\n", r.Kind, r.Name, r.ID)
			return nil
		})
	}
	return cmd
}
