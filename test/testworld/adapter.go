package testworld

import (
	"context"
	"net/http"
	"os"
	"path"
	"time"

	"atoll.dev/adapter"
	"atoll.dev/adapter/objects"
	"atoll.dev/adapter/works"
	"atoll.dev/adapters"
	"atoll.dev/api/work"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// AdapterOptions select the adapter that StartAdapter starts.
type AdapterOptions struct {
	Config, Task []byte // the content of its two files
	// Read reads the files that Task names; default os.ReadFile.
	Read      func(file string) ([]byte, error)
	Transport adapter.Transport // default: the one that Config asks for
}

// bundledAdapter returns the options of an adapter of Atoll, by its directory in package adapters.
func (w *World) bundledAdapter(name string) (o AdapterOptions) {
	w.T.Helper()
	for file, into := range map[string]*[]byte{"config.yaml": &o.Config, "task.yaml": &o.Task} {
		var err error
		if *into, err = adapters.Files.ReadFile(path.Join(name, file)); err != nil {
			w.T.Fatal(err)
		}
	}
	o.Read = adapters.Reader(name)
	return o
}

// StartAdapter starts an adapter and waits until it receives events.
func (w *World) StartAdapter(o AdapterOptions) {
	w.T.Helper()
	config, err := adapter.ParseConfig("config.yaml", o.Config, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	if o.Read == nil {
		o.Read = os.ReadFile
	}
	task, err := adapter.ParseTask("task.yaml", o.Task, o.Read)
	if err != nil {
		w.T.Fatal(err)
	}
	name := string(config.Adapter.Name)
	config.Clients.API.BaseURL = "https://" + w.CLM.Secure
	calls := &http.Transport{TLSClientConfig: w.ClientTLS(pki.ServiceName("adapter"), "clm"), MaxIdleConnsPerHost: 64}
	w.T.Cleanup(calls.CloseIdleConnections)
	if o.Transport == nil {
		o.Transport = w.transport(config, task)
	}
	log := w.Log.With("part", "adapter "+name)
	engine, err := adapter.New(adapter.Options{Config: config, Task: task, Transport: o.Transport,
		API: &http.Client{Transport: calls, Timeout: time.Minute}, Log: log,
		LookupEnv: func(name string) (string, bool) { v, ok := w.options.Env[name]; return v, ok }})
	if err != nil {
		w.T.Fatal(err)
	}
	options := adapter.WorkerOptions{Name: name, Subscription: config.Clients.Broker.SubscriptionID,
		Topic: config.Clients.Broker.Topic, Engine: engine, Log: log, Grace: 2 * time.Second,
		Bus: w.Broker.ClientOptions(pki.ServiceName("adapter"))}
	options.Watcher, _ = o.Transport.(adapter.Watcher)
	worker := adapter.NewWorker(options)
	testsite.Run(w.T, "the adapter "+name, worker.Run)
	testsite.Eventually(w.T, "the adapter "+name+" is ready", func() error { return worker.Ready(w.T.Context()) })
}

// transport returns the transport that the files of an adapter ask for: works of Maestro, objects of the first
// management cluster, or nil for a task that only calls the lifecycle manager.
func (w *World) transport(config *adapter.Config, task *adapter.Task) adapter.Transport {
	w.T.Helper()
	switch {
	case config.Clients.Maestro != nil:
		return works.New(works.Options{Client: w.Dial(config.Clients.Maestro.SourceID), Log: w.Log,
			Clusters: func(context.Context) ([]work.Consumer, error) { return w.options.Clusters, nil }})
	case len(task.Resources) == 0:
		return nil
	}
	transport, err := objects.New(objects.Options{Config: w.Clusters[w.options.Clusters[0]].Admin,
		Adapter: string(config.Adapter.Name), Log: w.Log})
	if err != nil {
		w.T.Fatal(err)
	}
	return transport
}
