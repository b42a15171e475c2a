package testworld

import (
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/agent"
	"atoll.dev/api/work"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// AgentOptions select the agent that StartAgent starts. One of Broker and GRPC is set.
type AgentOptions struct {
	Consumer work.Consumer
	Admin    *rest.Config // the administrator of the management cluster, who gives the agent its rights

	Broker *testsite.Broker
	GRPC   *agent.GRPCOptions

	DataDir string               // default: a new directory
	Change  func(*agent.Options) // last, before each start; may be nil
}

// Agent is an agent that the test stops and starts again. It keeps its directory.
type Agent struct {
	Kube *rest.Config // as the agent calls its cluster

	site *testsite.Site
	o    AgentOptions
	stop func()
}

// StartAgent starts an agent. It does not wait for the agent's connection.
func StartAgent(s *testsite.Site, o AgentOptions) *Agent {
	s.T.Helper()
	kubeconfig, err := agent.Bootstrap(s.T.Context(), o.Admin, agent.BootstrapOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
	a := &Agent{site: s, o: o}
	if a.Kube, err = clientcmd.RESTConfigFromKubeConfig(kubeconfig); err != nil {
		s.T.Fatal(err)
	}
	if a.o.DataDir == "" {
		a.o.DataDir = filepath.Join(s.T.TempDir(), "agent")
	}
	a.Start()
	return a
}

// Start starts the agent again after Stop.
func (a *Agent) Start() {
	s := a.site
	s.T.Helper()
	o := agent.Options{Consumer: a.o.Consumer, Kube: a.Kube, GRPC: a.o.GRPC, DataDir: a.o.DataDir,
		Log: s.Log.With("part", "agent of "+a.o.Consumer)}
	if a.o.Broker != nil {
		o.BrokerHost, o.Bus = a.o.Broker.Address, a.o.Broker.ClientOptions(pki.Name(a.o.Consumer))
	} else {
		o.BrokerHost = a.o.GRPC.URL
	}
	if a.o.Change != nil {
		a.o.Change(&o)
	}
	run, err := agent.New(o)
	if err != nil {
		s.T.Fatal(err)
	}
	a.stop = testsite.Run(s.T, "the agent of "+string(a.o.Consumer), run.Run)
}

// Stop stops the agent and waits for its end.
func (a *Agent) Stop() { a.stop() }
