package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// readMethods are the only calls that the socket answers: they read the store, its alarms included, and change nothing.
var readMethods = map[string]bool{
	"/etcdserverpb.KV/Range":             true,
	"/etcdserverpb.Watch/Watch":          true,
	"/etcdserverpb.Maintenance/Status":   true,
	"/etcdserverpb.Maintenance/Snapshot": true,
	samplesMethod:                        true,
}

func checkReads(method string) error {
	if readMethods[method] {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s: this socket only reads", method)
}

// readers returns a gRPC server with etcd's services and that of the sampler, which refuses everything but reads.
func (s *Server) readers() *grpc.Server {
	unary := func(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := checkReads(info.FullMethod); err != nil {
			return nil, err
		}
		return next(ctx, r)
	}
	stream := func(server any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := checkReads(info.FullMethod); err != nil {
			return err
		}
		return next(server, ss)
	}
	server := v3rpc.Server(s.etcd.Server, nil, unary, grpc.ChainStreamInterceptor(stream),
		grpc.SharedWriteBuffer(true), grpc.ReadBufferSize(connectionBuffer))
	server.RegisterService(s.sampler.service(), s.sampler)
	return server
}

// listenReaders makes the Unix socket at path, which only this user may open. The path may have any length: the kernel
// gets the name of an open directory instead of the long one.
func listenReaders(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the name above means another file by then
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
