package plane

import (
	"context"
	"fmt"
	"net"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"

	"atoll.dev/internal/beneath"
)

// socketName is the Unix socket in a plane's directory on which its etcd answers reads.
const socketName = "etcd.sock"

// StoreStatus is the state of a plane's etcd.
type StoreStatus struct {
	Size     int64 // of the database file in bytes
	InUse    int64 // of it, without free pages
	Quota    int64 // size at which etcd refuses writes
	Revision int64 // of the last write
	Full     bool  // etcd refuses writes and answers reads
	Corrupt  bool  // etcd has found damage in its data and refuses everything
}

// window is the most that etcd sends on a connection before it is read, in bytes. A window of a fixed size bounds the
// memory of a reader that is slow. It also saves the messages by which gRPC measures the delay of a network, two for
// each answer: on a Unix socket there is nothing to measure.
const window = 256 << 10

// buffers are the buffers of all connections. The largest but one has room for a message of a snapshot, which is a
// little more than 32 KiB: of gRPC's own sizes the next one is 1 MiB, and is cleared for each message.
var buffers = func() mem.BufferPool {
	pool, err := mem.NewBinaryTieredBufferPool(8, 12, 14, 16, 18, 20) // 256 bytes to 1 MiB
	if err != nil {
		panic(err) // the sizes are not ascending
	}
	return pool
}()

// DialStore returns a connection to the plane's etcd, for the calls that read: KV.Range, Watch, Maintenance.Status,
// Maintenance.Snapshot, and that of ReadSamples. It connects with the first call. wrap, unless it is nil, replaces each
// network connection that DialStore makes. A plane that was started by an older program has no such socket; then each
// call fails.
func (c Config) DialStore(wrap func(net.Conn) net.Conn) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///etcd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0), // the end of a connection is the end of the plane's process
		grpc.WithSharedWriteBuffer(true), grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		experimental.WithBufferPool(buffers),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			socket, err := beneath.DialUnix(ctx, c.Dir, socketName)
			if err != nil || wrap == nil {
				return socket, err
			}
			return wrap(socket), nil
		}))
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	return conn, nil
}

// StoreStatus asks the plane's etcd for its state.
func (c Config) StoreStatus(ctx context.Context) (StoreStatus, error) {
	conn, err := c.DialStore(nil)
	if err != nil {
		return StoreStatus{}, err
	}
	defer conn.Close()
	r, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return StoreStatus{}, fmt.Errorf("plane %s: the state of its etcd: %w", c.Dir, err)
	}
	s := StoreStatus{Size: r.DbSize, InUse: r.DbSizeInUse, Quota: r.DbSizeQuota, Revision: r.Header.GetRevision()}
	for _, e := range r.Errors {
		s.Full = s.Full || strings.Contains(e, pb.AlarmType_NOSPACE.String())
		s.Corrupt = s.Corrupt || strings.Contains(e, pb.AlarmType_CORRUPT.String())
	}
	return s, nil
}
