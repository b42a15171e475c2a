package services

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"atoll.dev/agent"
	"atoll.dev/bus"
	"atoll.dev/cli/terminal"
	"atoll.dev/pki"
)

func Agent(c *terminal.Session) *cobra.Command {
	var kubeconfig, broker, driver, source string
	o := agent.Options{}
	id := &identityFlags{}
	cmd := serviceCommand(c, "agent", "The region's hands inside a management cluster",
		`Applies works to one Kubernetes cluster and feeds their status back. It makes
outbound connections only: to the broker, to the CA, to the cluster's API. It may
run inside the cluster (without --kubeconfig) or anywhere that reaches its API.`, func(ctx context.Context, s *service) error {
			agent.FitProcess()
			s.identity = *id
			p, err := s.begin(ctx)
			if err != nil {
				return err
			}
			if o.DataDir == "" {
				if o.DataDir, err = agentDir(o.Consumer); err != nil {
					return err
				}
			}
			klog.SetSlogLogger(s.log) // client-go's own lines, in our form
			if o.Kube, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			if err := s.workSource(p, &o, driver, source, &broker); err != nil {
				return err
			}
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
	optionalIdentity(cmd) // a file of --workload-source-config may have its own
	cmd.Flags().StringVar(&o.Consumer, "consumer-name", "", "name of the management cluster")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "of the cluster; default: the one that the agent runs in")
	cmd.Flags().StringVar(&broker, "mqtt", "",
		"the broker, host:port; its text names what the agent owns, so it must not change")
	cmd.Flags().StringVar(&o.DataDir, "data-dir", "",
		"directory of the agent's works; holds their Secrets (default: atoll-agent/CONSUMER in the user's cache "+
			"directory)")
	cmd.Flags().Float32Var(&o.QPS, "kube-api-qps", 0, "calls to the cluster's API per second (default 1000)")
	cmd.Flags().IntVar(&o.Burst, "kube-api-burst", 0, "burst of calls to the cluster's API (default 2000)")
	cmd.Flags().Float64Var(&o.PublishRate, "publish-rate", 0,
		"events per second to the region, for brokers with a quota (default 200)")
	cmd.Flags().IntVar(&o.PublishBurst, "publish-burst", 0,
		"burst of events to the region (default five times --publish-rate)")
	cmd.Flags().StringVar(&driver, "workload-source-driver", "mqtt", "how works come: mqtt or grpc")
	cmd.Flags().StringVar(&source, "workload-source-config", "",
		"file that says where works come from; with mqtt, instead of --mqtt: brokerHost, username, password, caFile, "+
			"clientCertFile, clientKeyFile, topics; with grpc: url, caFile, clientCertFile, clientKeyFile, "+
			"tokenFile, keepAliveConfig; without caFile and without --identity the connection is plain")
	agentCompatible(cmd, &o)
	cmd.MarkFlagRequired("consumer-name")
	return cmd
}

// workSource makes the options of the agent's way to its server. at becomes
// the address whose text names what the agent owns.
func (s *service) workSource(p *parts, o *agent.Options, driver, file string, at *string) error {
	var config agent.GRPCConfig
	switch driver {
	case "mqtt":
		return s.mqttSource(p, o, file, at)
	case "grpc":
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("--workload-source-config: %w", err)
		}
		if config, err = agent.ParseGRPCConfig(data); err != nil {
			return fmt.Errorf("--workload-source-config %s: %w", file, err)
		}
		*at = config.URL
	default:
		return fmt.Errorf("--workload-source-driver %q is neither mqtt nor grpc", driver)
	}
	var own *tls.Config // the agent's identity towards its server
	switch {
	case config.CAFile+config.CAData != "": // the file says all
	case s.identity.empty():
		s.log.Warn(
			"the connection to the server is plain: the configuration file names no caFile, and there is no --identity",
			"server", config.URL)
	default:
		var err error
		if own, err = s.agentTLS(p, o, "maestro"); err != nil {
			return err
		}
	}
	options, err := config.Options(own)
	if err != nil {
		return fmt.Errorf("--workload-source-config %s: %w", file, err)
	}
	o.GRPC = &options
	return nil
}

// mqttSource is workSource for a broker: one with the region's certificates, or
// one of which a file says all.
func (s *service) mqttSource(p *parts, o *agent.Options, file string, at *string) error {
	switch {
	case file == "" && *at == "":
		return errors.New("--mqtt is needed, the broker, or --workload-source-config")
	case file != "" && *at != "":
		return errors.New("--mqtt and --workload-source-config both name a broker; give one")
	case file != "":
		config, err := bus.ReadConfig(file)
		if err != nil {
			return fmt.Errorf("--workload-source-config: %w", err)
		}
		*at, o.Bus, o.Topics = config.BrokerHost, config.Options(), config.Topics
		if !config.Keys.Empty() || !s.identity.given() {
			return nil // its own keys, or none
		}
	default:
		o.Bus = bus.ClientOptions{Addr: *at}
	}
	var err error
	o.Bus.TLS, err = s.agentTLS(p, o, "broker")
	return err
}

// agentTLS is the agent's identity towards one of the region's services.
func (s *service) agentTLS(p *parts, o *agent.Options, service string) (*tls.Config, error) {
	if !s.identity.given() {
		return nil, errNoIdentity
	}
	identity, err := s.openIdentity(p, pki.Name(o.Consumer))
	if err != nil {
		return nil, err
	}
	return identity.ClientTLS(service), nil
}
