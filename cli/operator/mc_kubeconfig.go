package operator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
)

func mcKubeconfig(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig NAME",
		Short:   "Print an administrator's kubeconfig of a local management cluster",
		Example: "  atoll mc kubeconfig management-01 > /tmp/kc && kubectl --kubeconfig /tmp/kc get ns",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := session.Home()
			if err != nil {
				return err
			}
			data, err := os.ReadFile(home.AdminKubeconfig(cluster.ManagementCluster(args[0])))
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf(
					"%s is not a local management cluster of %s: the region holds no kubeconfig of any other", args[0],
					home.Dir)
			}
			if err != nil {
				return err
			}
			_, err = session.Out.Write(data)
			return err
		},
	}
}
