package etcd

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
)

// Client returns a client of the member that calls its services directly, without gRPC: nothing is encoded, and there
// is no connection. It does what upstream's v3client does. Calls wait until the member has elected itself, and fail
// when it stops. The caller closes the client.
//
// The client has no endpoints.
func (s *Server) Client() *clientv3.Client {
	c := clientv3.NewCtxClient(context.Background(), clientv3.WithZapLogger(s.etcd.Server.Logger()))
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(s.services), c)
	c.Lease = clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(s.services), c, time.Second)
	c.Watcher = clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(s.services), c)
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(
		adapter.MaintenanceServerToMaintenanceClient(s.services), c)
	return c
}

// services are the member's services for clients. Their calls wait until open is called, and fail after close.
type services struct {
	kv pb.KVServer
	pb.LeaseServer
	watch pb.WatchServer
	pb.MaintenanceServer

	opened chan struct{}
	closed context.Context
	close  context.CancelFunc
	calls  sync.RWMutex // held for reading by each call to kv
}

func newServices(member *etcdserver.EtcdServer) *services {
	v := &services{
		kv: v3rpc.NewQuotaKVServer(member), LeaseServer: v3rpc.NewQuotaLeaseServer(member),
		watch: v3rpc.NewWatchServer(member), MaintenanceServer: v3rpc.NewMaintenanceServer(member, nil),
		opened: make(chan struct{}),
	}
	v.closed, v.close = context.WithCancel(context.Background())
	return v
}

// open lets calls begin.
func (v *services) open() { close(v.opened) }

// stop ends all watches, waits for the other calls in progress and lets no more begin.
func (v *services) stop() {
	v.close()
	v.calls.Lock()
	v.calls.Unlock() //nolint:staticcheck // later calls see that closed is done
}

// begin waits until calls may begin. After a success the caller calls v.calls.RUnlock.
func (v *services) begin(ctx context.Context) error {
	select {
	case <-v.opened:
	case <-ctx.Done():
		return ctx.Err()
	case <-v.closed.Done():
	}
	v.calls.RLock()
	if v.closed.Err() != nil {
		v.calls.RUnlock()
		return rpctypes.ErrGRPCStopped
	}
	return nil
}

// Range implements [pb.KVServer].
func (v *services) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return call(ctx, v, v.kv.Range, r)
}

// Put implements [pb.KVServer].
func (v *services) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return call(ctx, v, v.kv.Put, r)
}

// DeleteRange implements [pb.KVServer].
func (v *services) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return call(ctx, v, v.kv.DeleteRange, r)
}

// Txn implements [pb.KVServer].
func (v *services) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return call(ctx, v, v.kv.Txn, r)
}

// Compact implements [pb.KVServer].
func (v *services) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return call(ctx, v, v.kv.Compact, r)
}

// LeaseGrant implements [pb.LeaseServer].
func (v *services) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return call(ctx, v, v.LeaseServer.LeaseGrant, r)
}

// Status implements [pb.MaintenanceServer].
func (v *services) Status(ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	return call(ctx, v, v.MaintenanceServer.Status, r)
}

func call[Q, A any](ctx context.Context, v *services, f func(context.Context, Q) (A, error), request Q) (A, error) {
	if err := v.begin(ctx); err != nil {
		var none A
		return none, err
	}
	defer v.calls.RUnlock()
	return f(ctx, request)
}

// Watch implements [pb.WatchServer].
func (v *services) Watch(stream pb.Watch_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(v.closed, cancel)()
	if err := v.begin(ctx); err != nil {
		return err
	}
	v.calls.RUnlock() // a watch lasts
	return v.watch.Watch(stoppable{stream, ctx})
}

// stoppable is a stream with a context that ends before the stream does.
type stoppable struct {
	pb.Watch_WatchServer
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s stoppable) Context() context.Context { return s.ctx }
