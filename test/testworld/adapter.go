package testworld

import (
	"io/fs"
	"net/http"
	"os"
	"time"

	"atoll.dev/adapter"
	"atoll.dev/adapters"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// AdapterOptions say which adapter StartAdapter starts.
type AdapterOptions struct {
	Name      string // of its directory in package adapters
	CLM       *CLM
	Broker    *testsite.Broker
	Transport adapter.Transport
}

// StartAdapter starts an adapter with the files that Atoll brings along, and waits until it receives events.
func StartAdapter(s *testsite.Site, o AdapterOptions) {
	s.T.Helper()
	read := func(file string) []byte {
		data, err := fs.ReadFile(adapters.Files, o.Name+"/"+file)
		if err != nil {
			s.T.Fatal(err)
		}
		return data
	}
	config, err := adapter.ParseConfig("config.yaml", read("config.yaml"), nil)
	if err != nil {
		s.T.Fatal(err)
	}
	task, err := adapter.ParseTask("task.yaml", read("task.yaml"), os.ReadFile)
	if err != nil {
		s.T.Fatal(err)
	}
	config.Clients.API.BaseURL = o.CLM.URL
	calls := &http.Transport{}
	s.T.Cleanup(calls.CloseIdleConnections)
	log := s.Log.With("part", "adapter "+o.Name)
	engine, err := adapter.New(adapter.Options{Config: config, Task: task, Transport: o.Transport,
		API: &http.Client{Transport: calls, Timeout: time.Minute}, Log: log})
	if err != nil {
		s.T.Fatal(err)
	}
	options := adapter.WorkerOptions{Name: config.Adapter.Name, Subscription: config.Clients.Broker.SubscriptionID,
		Topic: config.Clients.Broker.Topic, Engine: engine, Log: log,
		Bus: o.Broker.ClientOptions(pki.ServiceName("adapter"))}
	options.Watcher, _ = o.Transport.(adapter.Watcher)
	worker := adapter.NewWorker(options)
	testsite.Run(s.T, "the adapter "+o.Name, worker.Run)
	testsite.Eventually(s.T, "the adapter "+o.Name+" is ready", func() error { return worker.Ready(s.T.Context()) })
}
