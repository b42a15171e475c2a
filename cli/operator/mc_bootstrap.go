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
	var f bootstrapFlags
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
			switch {
			case f.show:
				return f.print(session)
			case f.kubeconfig == "":
				return errors.New(
					"name the administrator's kubeconfig with --kubeconfig, or print the objects with " +
						"--show")
			}
			return f.bootstrap(cmd.Context(), session)
		},
	}
	f.add(cmd)
	return cmd
}

// bootstrapFlags are the flags of `atoll mc bootstrap`.
type bootstrapFlags struct {
	options                                 agent.BootstrapOptions
	kubeconfig, out, hostingOut, pullSecret string
	show                                    bool
}

func (f *bootstrapFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "administrator's kubeconfig of the cluster")
	cmd.Flags().StringVar(&f.out, "out", "", "file for the agent's kubeconfig (default: print it)")
	cmd.Flags().StringVar(&f.hostingOut, "hosting-out", "",
		"prepare the cluster for hosting, and write hosting's kubeconfig to this file")
	cmd.Flags().StringVar(&f.pullSecret, "pull-secret", "",
		"file with the registry credentials of hosted clusters, a .dockerconfigjson (default: those that are there, "+
			"or none)")
	cmd.Flags().BoolVar(&f.show, "show", false, "print the objects as YAML, and apply nothing")
	cmd.Flags().StringVar(&f.options.Namespace, "namespace", "",
		"namespace of the agent's service account (default open-cluster-management-agent)")
	cmd.Flags().StringSliceVar(&f.options.APIGroups, "api-groups", nil,
		"the API groups of the agent, separated by commas; an empty one is the core group (default: those of "+
			"workloads, RBAC, CRDs and HyperShift, see --show)")
	cmd.Flags().StringSliceVar(&f.options.MoreGroups, "more-api-groups", nil, "API groups besides these")
}

// print writes the objects as YAML.
func (f *bootstrapFlags) print(session *terminal.Session) error {
	data, err := agent.Manifests(f.options)
	if err != nil {
		return err
	}
	if f.hostingOut != "" {
		data = slices.Concat(data, []byte("---\n"), hosting.Manifests())
	}
	_, err = session.Out.Write(data)
	return err
}

// bootstrap prepares the cluster and writes the kubeconfigs.
func (f *bootstrapFlags) bootstrap(ctx context.Context, session *terminal.Session) error {
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", f.kubeconfig, err)
	}
	config.QPS, config.Burst = 200, 400 // the default, 5 calls a second, would take most of the time
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	data, err := agent.Bootstrap(ctx, config, f.options)
	if err != nil {
		return err
	}
	if err := bootstrapHosting(ctx, config, f.hostingOut, f.pullSecret); err != nil {
		return err
	}
	if f.out == "" {
		_, err = session.Out.Write(data)
		return err
	}
	return terminal.WritePrivate(f.out, data)
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
