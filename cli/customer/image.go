package customer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/hosting/localnodes"
	"atoll.dev/node"
	"atoll.dev/node/supervisor"
)

// Image returns the command `atoll image`.
func Image(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Images for the real nodes of a cluster",
		Long: `Brings container images to the real nodes of a cluster whose region runs on this
machine. Nothing is pulled from a registry.`,
		Example: "  atoll image load bin/demo-image.tar --cluster demo",
	}
	cmd.AddCommand(imageLoad(session))
	return cmd
}

func imageLoad(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "load FILE|DIR", Short: "Import images into the real nodes of a cluster", Args: cobra.ExactArgs(1),
		Long: `Imports the images of an archive in OCI layout or of docker save, or of a directory
in OCI layout, into each real node of a cluster that runs now. Pods name an image
as the archive does. A node that is made later does not have the images: repeat
the command then. It runs on the machine of the region, as root.`,
		Example: `  atoll image load bin/demo-image.tar --cluster demo
  docker save shop:v3 -o shop.tar && atoll image load shop.tar --cluster demo`,
	}
	cluster := addClusterFlag(session, cmd)
	cmd.MarkFlagRequired("cluster")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), *cluster, func(ctx context.Context, api *client.Client,
			owner client.Cluster) error {
			return loadImage(session, ctx, owner.ID, owner.Name, args[0])
		})
	}
	return cmd
}

// loadImage imports an archive into the running real nodes of a cluster.
func loadImage(session *terminal.Session, ctx context.Context, id, name, path string) error {
	home, err := session.Home()
	if err != nil {
		return err
	}
	programs, dirs, err := home.RealNodes()
	if err != nil {
		return err
	}
	homes := map[string]string{}
	for _, dir := range dirs {
		found, err := localnodes.Homes(dir, "clusters-"+id)
		if err != nil {
			return err
		}
		maps.Copy(homes, found)
	}
	if len(homes) == 0 {
		return fmt.Errorf("cluster %s has no real node on this machine; make some: atoll nodepool create NAME --cluster %s "+
			"--provider local (the region needs atoll up --nodes local)", name, name)
	}
	var problems []error
	for _, onNode := range slices.Sorted(maps.Keys(homes)) {
		if running, err := node.Running(homes[onNode]); err == nil && !running {
			problems = append(problems, fmt.Errorf("node %s does not run; repeat the command when it does", onNode))
			continue
		}
		if err := supervisor.LoadImage(ctx, homes[onNode], programs, path, session.Err); err != nil {
			problems = append(problems, fmt.Errorf("node %s: %w", onNode, err))
			continue
		}
		session.Printf("%s is on node %s\n", path, onNode)
	}
	return errors.Join(problems...)
}
