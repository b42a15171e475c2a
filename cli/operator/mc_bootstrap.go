package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/agent"
	"atoll.dev/cli/terminal"
	"atoll.dev/hosting"
)

func mcBootstrap(session *terminal.Session) *cobra.Command {
	var kubeconfig, out, hostingOut, pullSecret string
	var show bool
	o := agent.BootstrapOptions{}
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Prepare a cluster for its agent: CRD, service account, bounded rights",
		Long: `Run once, by a person with administrator rights in the cluster (and by "atoll up"
for its local ones). Installs the objects that the agent needs and writes a kubeconfig for the
agent. The agent may do everything in the API groups of a list, and nothing in other groups:
it reports a manifest of another group as Applied=False. Running the command again is safe,
and replaces the list by the given one.

The token in a kubeconfig is valid for a day, and the process that uses the file replaces it.
The command ends the tokens of earlier versions, which never expired: give the agent and
hosting the new files.

An agent that runs in its cluster is installed, with the same rights, by the Helm
chart deploy/charts/agent; it needs no bootstrap.

With --hosting-out the cluster is prepared for hosting, too ("atoll hosting"): the kinds
HostedCluster, NodePool, Credential, ExternalSecret and ManagedCluster, the namespace
atoll-hosting with hosting's service account, its bounded rights, and the pull secret
that hosted clusters get. A cluster with HyperShift does not need --hosting-out.`,
		Example: `  atoll mc bootstrap --kubeconfig admin.kubeconfig --out agent.kubeconfig
  atoll mc bootstrap --kubeconfig admin.kubeconfig --api-groups=,apps,batch --out agent.kubeconfig
  atoll mc bootstrap --kubeconfig admin.kubeconfig --out agent.kubeconfig --hosting-out hosting.kubeconfig --pull-secret pull.json
  atoll mc bootstrap --show`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if show {
				data, err := agent.Manifests(o)
				if err == nil && hostingOut != "" {
					data = slices.Concat(data, []byte("---\n"), hosting.Manifests())
				}
				if err == nil {
					_, err = session.Out.Write(data)
				}
				return err
			}
			if kubeconfig == "" {
				return errors.New(
					"name the administrator's kubeconfig with --kubeconfig, or print the objects with " +
						"--show")
			}
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
			}
			config.QPS, config.Burst = 200, 400 // the default, 5 calls a second, would take most of the time
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			data, err := agent.Bootstrap(ctx, config, o)
			if err != nil {
				return err
			}
			if err := bootstrapHosting(ctx, config, hostingOut, pullSecret); err != nil {
				return err
			}
			if out == "" {
				_, err = session.Out.Write(data)
				return err
			}
			return terminal.WritePrivate(out, data)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "administrator's kubeconfig of the cluster")
	cmd.Flags().StringVar(&out, "out", "", "file for the agent's kubeconfig (default: print it)")
	cmd.Flags().StringVar(&hostingOut, "hosting-out", "",
		"prepare the cluster for hosting, and write hosting's kubeconfig to this file")
	cmd.Flags().StringVar(&pullSecret, "pull-secret", "",
		"file with the registry credentials of hosted clusters, a .dockerconfigjson (default: those that are there, "+
			"or none)")
	cmd.Flags().BoolVar(&show, "show", false, "print the objects as YAML, and apply nothing")
	cmd.Flags().StringVar(&o.Namespace, "namespace", "",
		"namespace of the agent's service account (default open-cluster-management-agent)")
	cmd.Flags().StringSliceVar(&o.APIGroups, "api-groups", nil,
		"the API groups of the agent, separated by commas; an empty one is the core group (default: those of "+
			"workloads, RBAC, CRDs and HyperShift, see --show)")
	cmd.Flags().StringSliceVar(&o.MoreGroups, "more-api-groups", nil, "API groups besides these")
	return cmd
}

// bootstrapHosting prepares a cluster for hosting when out names a file for the kubeconfig of
// hosting.
func bootstrapHosting(ctx context.Context, config *rest.Config, out, pullSecret string) error {
	if out == "" {
		if pullSecret != "" {
			return errors.New("--pull-secret is for hosting: name the file for its kubeconfig with --hosting-out")
		}
		return nil
	}
	var o hosting.BootstrapOptions
	if pullSecret != "" {
		var err error
		if o.PullSecret, err = os.ReadFile(pullSecret); err != nil {
			return fmt.Errorf("--pull-secret: %w", err)
		}
	}
	data, err := hosting.Bootstrap(ctx, config, o)
	if err != nil {
		return err
	}
	return terminal.WritePrivate(out, data)
}
