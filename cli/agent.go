package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"atoll.dev/agent"
	"atoll.dev/bus"
	"atoll.dev/pki"
)

func (c *command) agent() *cobra.Command {
	var kubeconfig, broker string
	o := agent.Options{}
	id := &identityFlags{}
	cmd := c.serviceCommand("agent", "The region's hands inside a management cluster", `Applies works to one Kubernetes cluster and feeds their status back. It makes
outbound connections only: to the broker, to the CA, to the cluster's API. It may
run inside the cluster (without --kubeconfig) or anywhere that reaches its API.`, func(ctx context.Context, s *service) error {
		s.identity = *id
		p, err := s.begin(ctx)
		if err != nil {
			return err
		}
		klog.SetSlogLogger(s.log) // client-go's own lines, in our form
		if o.Kube, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
		identity, err := s.openIdentity(p, pki.Name(o.Consumer))
		if err != nil {
			return err
		}
		o.Bus = bus.ClientOptions{Addr: broker, TLS: identity.ClientTLS("broker")}
		o.BrokerHost, o.Log, o.Metrics = broker, s.log, s.ops.Registry
		a, err := agent.New(o)
		if err != nil {
			return err
		}
		s.ops.Check("kubernetes", a.ReadyKube)
		s.ops.Check("bus", a.ReadyBus)
		s.ops.Check("store", a.ReadyStore)
		p.run(a.Run)
		return p.wait()
	})
	cmd.Example = `  atoll agent --consumer-name edge-7 --kubeconfig agent.kubeconfig --mqtt broker.example:8883 \
    --pki https://pki.example:8443 --ca ca.pem --identity identity/ --token-file token --data-dir store/`
	addIdentity(cmd, id)
	cmd.Flags().StringVar(&o.Consumer, "consumer-name", "", "name of the management cluster")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "of the cluster; default: the one that the agent runs in")
	cmd.Flags().StringVar(&broker, "mqtt", "", "the broker, host:port; its text names what the agent owns, so it must not change")
	cmd.Flags().StringVar(&o.DataDir, "data-dir", "", "directory of the agent's works; holds their Secrets")
	cmd.Flags().Float32Var(&o.QPS, "kube-api-qps", 0, "calls to the cluster's API per second (default 1000)")
	cmd.Flags().IntVar(&o.Burst, "kube-api-burst", 0, "burst of calls to the cluster's API (default 2000)")
	for _, name := range []string{"consumer-name", "mqtt", "data-dir"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}
