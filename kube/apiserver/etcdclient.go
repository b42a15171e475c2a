package apiserver

import (
	"context"
	_ "unsafe" // for go:linkname

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// newETCD3Client is upstream's variable: the function that makes the etcd client of each resource. Upstream has no
// setting for it. If a later version has no such variable, the program does not link.
//
//go:linkname newETCD3Client k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newETCD3Client func(storagebackend.TransportConfig) (*kubernetes.Client, error)

// useEtcd lets upstream's storage of every resource have a client of its own that newClient makes. Upstream's clients
// each have a gRPC connection, with its buffers and six goroutines; a plane has a hundred clients.
func useEtcd(ctx context.Context, newClient func() *clientv3.Client, endpoint string) {
	newETCD3Client = func(storagebackend.TransportConfig) (*kubernetes.Client, error) {
		c := &kubernetes.Client{Client: newClient()}
		c.Kubernetes = c
		return c, nil
	}
	// Upstream asks each endpoint of a client whether it can report the progress of watches, without which a watch cache
	// answers no consistent reads. These clients have no endpoints.
	feature.DefaultFeatureSupportChecker.CheckClient(ctx, named{newClient(), endpoint}, storage.RequestWatchProgress)
}

// named is a client with an endpoint.
type named struct {
	*clientv3.Client
	endpoint string
}

// Endpoints returns the endpoint.
func (n named) Endpoints() []string { return []string{n.endpoint} }
