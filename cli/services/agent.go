package services

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"atoll.dev/agent"
	"atoll.dev/bus"
	"atoll.dev/internal/accounttoken"
	"atoll.dev/pki"
)

// agentService is `atoll agent`.
type agentService struct {
	kubeconfig string
	broker     string
	driver     string
	source     string
	options    agent.Options
	identity   identityFlags
}

// Agent returns the command of a management cluster's agent.
func Agent() *cobra.Command {
	f := &agentService{}
	cmd := serviceCommand("agent", "The agent of a management cluster: applies works and reports their status",
		`Applies works to one Kubernetes cluster and reports their status. It makes outbound
connections only: to the broker, to the CA, to the cluster's API. It may run inside
the cluster (without --kubeconfig) or anywhere that reaches its API.`, f)
	cmd.Example = `  atoll agent --consumer-name edge-7 --kubeconfig agent.kubeconfig --mqtt broker.example:8883 \
    --pki https://pki.example:8443 --ca ca.pem --identity identity/ --token-file token --data-dir store/`
	addIdentityFlags(cmd, &f.identity)
	makeIdentityOptional(cmd) // a file of --workload-source-config may have its own
	cmd.Flags().StringVar((*string)(&f.options.Consumer), "consumer-name", "", "name of the management cluster")
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: the cluster that the "+
		"agent runs in)")
	cmd.Flags().StringVar(&f.broker, "mqtt", "",
		"the broker, host:port; the hash of this text marks the agent's AppliedManifestWorks, so it must not change")
	cmd.Flags().StringVar(&f.options.DataDir, "data-dir", "",
		"directory of the agent's works; holds their Secrets (default: atoll-agent/CONSUMER in the user's cache "+
			"directory)")
	cmd.Flags().Float32Var(&f.options.QPS, "kube-api-qps", 0, "calls to the cluster's API per second (default 1000)")
	cmd.Flags().IntVar(&f.options.Burst, "kube-api-burst", 0, "burst of calls to the cluster's API (default 2000)")
	cmd.Flags().Float64Var(&f.options.PublishRate, "publish-rate", 0,
		"events per second to the region, for brokers with a quota (default 200)")
	cmd.Flags().IntVar(&f.options.PublishBurst, "publish-burst", 0,
		"burst of events to the region (default five times --publish-rate)")
	cmd.Flags().StringVar(&f.driver, "workload-source-driver", "mqtt", "protocol of works: mqtt or grpc")
	cmd.Flags().StringVar(&f.source, "workload-source-config", "",
		"file about the source of works; with mqtt, instead of --mqtt: brokerHost, username, password, caFile, "+
			"clientCertFile, clientKeyFile, topics; with grpc: url, caFile, clientCertFile, clientKeyFile, "+
			"tokenFile, keepAliveConfig; without caFile and without --identity the connection is plain")
	addCompatibleFlags(cmd, &f.options)
	cmd.MarkFlagRequired("consumer-name")
	return cmd
}

func (f *agentService) start(ctx context.Context, s *System) error {
	agent.FitProcess()
	s.identity = f.identity
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	if f.options.DataDir == "" {
		if f.options.DataDir, err = defaultAgentDir(f.options.Consumer); err != nil {
			return err
		}
	}
	klog.SetSlogLogger(s.Log) // client-go logs as this service does
	account, err := accounttoken.Open(f.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	f.options.Kube = account.RESTConfig()
	p.run(func(ctx context.Context) error { return account.Renew(ctx, s.Log) })
	if err := s.setWorkSource(p, &f.options, f.driver, f.source, &f.broker); err != nil {
		return err
	}
	f.options.BrokerHost, f.options.Log, f.options.Metrics = f.broker, s.Log, s.Ops.Registry
	a, err := agent.New(f.options)
	if err != nil {
		return err
	}
	s.Ops.Check("kubernetes", a.ReadyKube)
	s.Ops.Check("bus", a.ReadyBus)
	s.Ops.Check("store", a.ReadyStore)
	p.run(a.Run)
	return p.wait()
}

// setWorkSource sets the options of the agent's connection to its server. It sets *address to the
// server's address. The agent marks its AppliedManifestWorks with the hash of that address.
func (s *System) setWorkSource(p *parts, o *agent.Options, driver, file string, address *string) error {
	var config agent.GRPCConfig
	switch driver {
	case "mqtt":
		return s.setMQTTSource(p, o, file, address)
	case "grpc":
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("--workload-source-config: %w", err)
		}
		if config, err = agent.ParseGRPCConfig(data); err != nil {
			return fmt.Errorf("--workload-source-config %s: %w", file, err)
		}
		*address = config.URL
	default:
		return fmt.Errorf("--workload-source-driver %q is neither mqtt nor grpc", driver)
	}
	var identityTLS *tls.Config // the agent's identity towards its server
	switch {
	case config.CAFile+config.CAData != "": // the file has all
	case s.identity.isEmpty():
		s.Log.Warn(
			"the connection to the server is plain: the configuration file names no caFile, and there is no --identity",
			"server", config.URL)
	default:
		var err error
		if identityTLS, err = s.agentTLS(p, o, "maestro"); err != nil {
			return err
		}
	}
	options, err := config.Options(identityTLS)
	if err != nil {
		return fmt.Errorf("--workload-source-config %s: %w", file, err)
	}
	o.GRPC = &options
	return nil
}

// setMQTTSource is setWorkSource for a broker: the region's broker, or the broker of a configuration
// file.
func (s *System) setMQTTSource(p *parts, o *agent.Options, file string, address *string) error {
	switch {
	case file == "" && *address == "":
		return errors.New("--mqtt is needed, the broker, or --workload-source-config")
	case file != "" && *address != "":
		return errors.New("--mqtt and --workload-source-config both name a broker; give one")
	case file != "":
		config, err := bus.ReadConfig(file)
		if err != nil {
			return fmt.Errorf("--workload-source-config: %w", err)
		}
		*address, o.Bus, o.Topics = config.BrokerHost, config.Options(), config.Topics
		if !config.Keys.Empty() || !s.identity.isComplete() {
			return nil // its own keys, or none
		}
	default:
		o.Bus = bus.ClientOptions{Addr: *address}
	}
	var err error
	o.Bus.TLS, err = s.agentTLS(p, o, "broker")
	return err
}

// agentTLS returns the TLS configuration of the agent's connections to a service of the region.
func (s *System) agentTLS(p *parts, o *agent.Options, service string) (*tls.Config, error) {
	if !s.identity.isComplete() {
		return nil, errNoIdentity
	}
	identity, err := s.openIdentity(p, pki.Name(o.Consumer))
	if err != nil {
		return nil, err
	}
	return identity.ClientTLS(service), nil
}
