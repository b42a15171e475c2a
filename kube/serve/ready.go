package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/kube/credentials"
)

// readyFile is the content of DIR/ready, which exists while the plane is ready.
type readyFile struct {
	PID     int    `json:"pid"`
	Address string `json:"address"`  // HOST:PORT of the API server, as this machine reaches it
	StartMS int64  `json:"start_ms"` // from the process's start until ready
	Version string `json:"version"`  // of Kubernetes

	Walls []string `json:"walls,omitempty"` // that stand, see package walls
}

func readyPath(dir string) string { return filepath.Join(dir, "ready") }

func writeReady(dir string, r readyFile) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return credentials.WriteFile(readyPath(dir), append(content, '\n'), 0o600)
}

func removeReady(dir string) error {
	if err := os.Remove(readyPath(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// awaitReady returns when the API server says to an authenticated client, over the network, that it is ready.
func awaitReady(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for {
		if answers(ctx, client, config.Host+"/readyz") {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, client *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body) // or the connection could not be used again
	return response.StatusCode == http.StatusOK
}
