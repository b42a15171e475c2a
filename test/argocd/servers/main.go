// Command servers is the servers of Argo CD that the test runs, in one program: the application controller, the
// ApplicationSet controller and the repository server, as their owners released them.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	sets "github.com/argoproj/argo-cd/v3/cmd/argocd-applicationset-controller/commands"
	repository "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
)

func main() {
	root := &cobra.Command{Use: "servers", SilenceUsage: true}
	root.AddCommand(controller.NewCommand(), sets.NewCommand(), repository.NewCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
