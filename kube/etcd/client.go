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

// Client returns a client of the member that calls its services directly: there is no connection, and no message of
// gRPC is encoded. The caller closes the client.
//
// It makes the calls that the API server needs: those on keys, watches, the grant of a lease, and the status. They wait
// until the member has become leader, and fail after the member has stopped. Other calls on leases and for maintenance
// return the code Unimplemented; Cluster and Auth are nil. The client has no endpoints, so calls that ask each endpoint
// ask none.
func (s *Server) Client() *clientv3.Client {
	c := clientv3.NewCtxClient(context.Background(), clientv3.WithZapLogger(s.etcd.Server.Logger()))
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(s.services), c)
	c.Lease = clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(s.services), c, time.Second)
	c.Watcher = clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(s.services), c)
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(
		adapter.MaintenanceServerToMaintenanceClient(s.services), c)
	return c
}

// services are the member's services for clients. Their calls wait until open is called, and fail after stop.
type services struct {
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	kv          pb.KVServer
	lease       pb.LeaseServer
	watch       pb.WatchServer
	maintenance pb.MaintenanceServer

	opened  chan struct{}      // closed by open
	stopped context.Context    // done after stop was called
	cancel  context.CancelFunc // of stopped
	calls   sync.RWMutex       // held for reading by each call
}

func newServices(member *etcdserver.EtcdServer) *services {
	v := &services{
		kv: v3rpc.NewQuotaKVServer(member), lease: v3rpc.NewQuotaLeaseServer(member),
		watch: v3rpc.NewWatchServer(member), maintenance: v3rpc.NewMaintenanceServer(member, nil),
		opened: make(chan struct{}),
	}
	v.stopped, v.cancel = context.WithCancel(context.Background())
	return v
}

// open lets calls begin.
func (v *services) open() { close(v.opened) }

// stop cancels all watches, and returns when all calls in progress have ended; etcd limits the time of other calls.
// Later calls fail. A watch reads etcd's database, which must stay open until the watch has ended.
func (v *services) stop() {
	v.cancel()
	v.calls.Lock()
	v.calls.Unlock() //nolint:staticcheck // later calls see that stopped is done
}

// begin waits until open is called. Without an error the caller calls v.calls.RUnlock at the end of the call.
func (v *services) begin(ctx context.Context) error {
	select {
	case <-v.opened:
	case <-ctx.Done():
		return ctx.Err()
	case <-v.stopped.Done():
	}
	v.calls.RLock()
	if v.stopped.Err() != nil {
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
	return call(ctx, v, v.lease.LeaseGrant, r)
}

// Status implements [pb.MaintenanceServer].
func (v *services) Status(ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	return call(ctx, v, v.maintenance.Status, r)
}

// call makes a call that is not a watch.
func call[Request, Response any](ctx context.Context, v *services,
	f func(context.Context, Request) (Response, error), request Request) (Response, error) {
	if err := v.begin(ctx); err != nil {
		var none Response
		return none, err
	}
	defer v.calls.RUnlock()
	return f(ctx, request)
}

// Watch implements [pb.WatchServer].
func (v *services) Watch(stream pb.Watch_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(v.stopped, cancel)()
	if err := v.begin(ctx); err != nil {
		return err
	}
	defer v.calls.RUnlock()
	return v.watch.Watch(stoppable{stream, ctx})
}

// stoppable is a stream of a watch with a context that is done after stop, too.
type stoppable struct {
	pb.Watch_WatchServer
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s stoppable) Context() context.Context { return s.ctx }
