package plane

import (
	"context"
	"fmt"
	"net"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

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

// DialStore returns a connection to the plane's etcd, for the calls that read: KV.Range, Watch, Maintenance.Status and
// Maintenance.Snapshot. It connects with the first call. A plane that was started by an older program has no such
// socket; then each call fails.
func (c Config) DialStore() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///etcd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithSharedWriteBuffer(true), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return beneath.DialUnix(ctx, c.Dir, socketName)
		}))
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	return conn, nil
}

// StoreStatus asks the plane's etcd for its state.
func (c Config) StoreStatus(ctx context.Context) (StoreStatus, error) {
	conn, err := c.DialStore()
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
