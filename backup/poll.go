package backup

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// poll asks etcd for its revision, each time over the same stream: a call costs the follower and the plane twice as
// much. The stream has a watch of a key that nobody writes, so it is never behind, and etcd answers each progress
// request with the revision of the last write. Only one goroutine may use a poll. The caller closes it.
type poll struct {
	stream pb.Watch_WatchClient
	cancel context.CancelFunc
	stall  *time.Timer // cancels the stream when etcd does not answer
}

// unwrittenKey is the key of the watch: no key of Kubernetes begins so.
const unwrittenKey = "\x00"

var progressRequest = &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
	ProgressRequest: &pb.WatchProgressRequest{},
}}

// startPoll starts the stream. It ends with ctx.
func startPoll(ctx context.Context, conn *grpc.ClientConn) (*poll, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &poll{cancel: cancel, stall: time.AfterFunc(callLimit, cancel)}
	stream, err := pb.NewWatchClient(conn).Watch(ctx)
	if err == nil {
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte(unwrittenKey)},
		}})
	}
	if err != nil {
		p.close()
		return nil, err
	}
	p.stream = stream
	return p, nil
}

// revision returns etcd's revision: it has every write that etcd acknowledged before the call. After an error the poll
// cannot be used any more: an answer that comes late must not be taken for that of the next request.
func (p *poll) revision() (int64, error) {
	p.stall.Reset(callLimit)
	revision, err := p.ask()
	if !p.stall.Stop() && err != nil {
		return 0, fmt.Errorf("etcd did not answer within %s: %w", callLimit, err)
	}
	return revision, err
}

func (p *poll) ask() (int64, error) {
	_ = p.stream.Send(progressRequest) // after an error Recv returns the reason
	for {
		r, err := p.stream.Recv()
		switch {
		case err != nil:
			return 0, fmt.Errorf("asking etcd for its revision: %w", err)
		case r.Canceled:
			return 0, fmt.Errorf("asking etcd for its revision: etcd has ended the watch: %s", r.CancelReason)
		case !r.Created && len(r.Events) == 0:
			return r.Header.GetRevision(), nil
		}
	}
}

// close ends the stream.
func (p *poll) close() {
	p.stall.Stop()
	p.cancel()
}
