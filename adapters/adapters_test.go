package adapters

import (
	"io/fs"
	"net/http"
	"os"
	"testing"

	"atoll.dev/adapter"
	"atoll.dev/adapter/transporttest"
)

// The engine accepts every adapter.
func TestTheAdaptersAreWellFormed(t *testing.T) {
	dirs, err := fs.ReadDir(Files, ".")
	if err != nil || len(dirs) < 3 {
		t.Fatalf("%d directories, %v", len(dirs), err)
	}
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) {
			data, err := fs.ReadFile(Files, d.Name()+"/config.yaml")
			if err != nil {
				t.Fatal(err)
			}
			config, err := adapter.ParseConfig(d.Name()+"/config.yaml", data, nil)
			if err != nil {
				t.Fatal(err)
			}
			if string(config.Adapter.Name) != d.Name() || config.Clients.Broker.SubscriptionID != d.Name() {
				t.Errorf("the adapter is %s, its subscription %s", config.Adapter.Name,
					config.Clients.Broker.SubscriptionID)
			}
			if data, err = fs.ReadFile(Files, d.Name()+"/task.yaml"); err != nil {
				t.Fatal(err)
			}
			task, err := adapter.ParseTask(d.Name()+"/task.yaml", data, os.ReadFile)
			if err != nil {
				t.Fatal(err)
			}
			config.Clients.API.BaseURL = "http://clm.test"
			if _, err := adapter.New(adapter.Options{Config: config, Task: task, Transport: transporttest.NewMemory(),
				API: http.DefaultClient}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
