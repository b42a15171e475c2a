package etcd

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// NewClient returns a client whose requests are function calls of the member: nothing is encoded for a wire, and nothing
// listens. Its errors are those that a remote client sees. The caller closes it.
func (s *Server) NewClient() *clientv3.Client {
	return v3client.New(s.etcd.Server)
}
