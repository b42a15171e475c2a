package backup

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// watch receives all changes of an etcd from a revision on, over a connection of its own. While its gate is closed,
// the changes wait in the buffers of the operating system, and those that do not fit in etcd.
type watch struct {
	responses chan *pb.WatchResponse // unbuffered: while the store is slow, etcd keeps the changes
	gate      *gate
	ended     chan struct{} // closed when the watch has ended with err; all responses were received then
	err       error
	freeing   sync.WaitGroup // of the goroutine that frees the gate; it ends with the watch
}

// wait returns when the watch has ended, and its goroutines with it.
func (w *watch) wait() {
	<-w.ended
	w.freeing.Wait()
}

// startWatch starts a watch of all changes from a revision on. It ends when ctx or etcd ends. When the connection of
// the chain's other calls is lost, etcd has probably ended: then the gate does not delay the last changes any more.
func (c *chain) startWatch(ctx context.Context, from int64) (*watch, error) {
	w := &watch{responses: make(chan *pb.WatchResponse), gate: newGate(), ended: make(chan struct{})}
	conn, err := c.f.o.Dial(w.gate.wrap)
	if err != nil {
		return nil, err
	}
	watching, cancel := context.WithCancel(ctx)
	go func() {
		defer close(w.ended)
		defer cancel()
		w.err = w.run(ctx, conn, from)
		conn.Close()
	}()
	w.freeing.Go(func() {
		c.conn.WaitForStateChange(watching, connectivity.Ready)
		w.gate.free()
	})
	return w, nil
}

// run sends all changes to responses. It always returns an error.
func (w *watch) run(ctx context.Context, conn *grpc.ClientConn, from int64) error {
	stream, err := pb.NewWatchClient(conn).Watch(ctx, grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{
			Key: []byte(allKeys), RangeEnd: []byte(allKeys), StartRevision: from, Fragment: true,
		},
	}}); err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.Canceled || r.CompactRevision > 0 {
			return errCompacted
		}
		if len(r.Events) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case w.responses <- r:
		}
	}
}
