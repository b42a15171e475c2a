package apiserver

import (
	"context"
	"errors"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// newETCD3Client is upstream's variable of that name: every connection of the API server to etcd is made through it. There
// are two for each kind of resource, a hundred and more, so that a connection's buffers and goroutines, and the encoding of
// each request, cost more than anything else in an idle plane. Upstream has no other place to say that etcd is in
// the same process. Should the variable go, this one stays nil and useStorage says so at the first start.
//
//go:linkname newETCD3Client k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newETCD3Client func(storagebackend.TransportConfig) (*kubernetes.Client, error)

// useStorage makes the API server reach etcd through newClient. It holds for the whole process.
func useStorage(newClient func() *clientv3.Client) error {
	if newETCD3Client == nil {
		return errors.New("upstream no longer has factory.newETCD3Client")
	}
	newETCD3Client = func(storagebackend.TransportConfig) (*kubernetes.Client, error) {
		c := &kubernetes.Client{Client: newClient()}
		c.Kubernetes = c
		return c, nil
	}
	feature.DefaultFeatureSupportChecker = linkedEtcd{}
	return nil
}

// linkedEtcd knows what the etcd that this binary links can do; upstream's checker would ask each endpoint, and these
// clients have none.
type linkedEtcd struct{}

func (linkedEtcd) Supports(f storage.Feature) bool { return f == storage.RequestWatchProgress }
