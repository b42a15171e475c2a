package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"atoll.dev/api/clm"
	"atoll.dev/cli/terminal"
)

func clmCreate(session *terminal.Session) *cobra.Command {
	var file, owner string
	cmd := &cobra.Command{
		Use:   "create -f FILE",
		Short: "Create a resource",
		Long: `Creates the resource in a file (YAML or JSON, "-" for standard input): kind, name and spec,
and optionally labels and references. A kind that belongs to another kind, as a NodePool to
a Cluster, needs --owner.`,
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
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
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
					return fmt.Errorf("a %s has no owner: leave --owner out", k.Kind)
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
