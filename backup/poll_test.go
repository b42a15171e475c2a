package backup

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// startTestPoll starts a poll of a watch server, and returns a function that stops the server.
func startTestPoll(t *testing.T, w pb.WatchServer) (*poll, func()) {
	t.Helper()
	server := grpc.NewServer()
	pb.RegisterWatchServer(server, w)
	l := bufconn.Listen(64 << 10)
	go server.Serve(l)
	conn, err := grpc.NewClient("passthrough:etcd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	p, err := startPoll(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return p, func() { p.close(); conn.Close(); server.Stop(); l.Close() }
}

// countingWatch answers the n-th progress request with revision n.
type countingWatch struct {
	pb.UnimplementedWatchServer
	answers int64 // after which it answers no more
	end     error // of the stream after the answers; nil: it does not end
}

func (c countingWatch) Watch(s pb.Watch_WatchServer) error {
	for n := int64(0); ; n++ {
		if n > c.answers && c.end != nil {
			return c.end
		}
		if _, err := s.Recv(); err != nil {
			return err
		}
		if n > c.answers {
			continue
		}
		if err := s.Send(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: n}, Created: n == 0}); err != nil {
			return err
		}
	}
}

// When etcd ends the stream, the error has etcd's reason.
func TestAPollReportsWhyEtcdEndsTheStream(t *testing.T) {
	p, stop := startTestPoll(t, countingWatch{answers: 2, end: status.Error(codes.Unavailable, "no leader")})
	defer stop()
	for n := int64(1); n <= 2; n++ {
		if r, err := p.revision(); r != n || err != nil {
			t.Fatalf("answer %d: revision %d, %v", n, r, err)
		}
	}
	if _, err := p.revision(); err == nil || !strings.Contains(err.Error(), "no leader") {
		t.Fatal(err)
	}
}

// A poll of an etcd that hangs ends after callLimit.
func TestAPollOfAnEtcdThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := startTestPoll(t, countingWatch{answers: 1})
		defer stop()
		if r, err := p.revision(); r != 1 || err != nil {
			t.Fatal(r, err)
		}
		begun := time.Now()
		if _, err := p.revision(); err == nil || time.Since(begun) != callLimit {
			t.Fatalf("after %s: %v", time.Since(begun), err)
		}
	})
}

// A follower of an idle plane does little: it reads the samples and replaces a mark every 8 s, and nothing else wakes
// it up. The plane of an older program takes no samples: it is asked each second. More costs an idle plane more than a
// twentieth of its processor time (decision 191).
func TestAnIdleFollowerDoesLittle(t *testing.T) {
	for what, sampler := range map[string]*fakeSampler{"samples": {}, "an older program": nil} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorldWith(t, sampler)
				w.write(3, time.Second)
				sleep(5 * time.Minute)
				var puts, others, reads atomic.Int64
				w.store.setFault(func(op, _ string) error {
					if op == "put" {
						puts.Add(1)
					} else {
						others.Add(1)
					}
					return nil
				})
				if sampler != nil {
					sampler.reads.Store(0)
				}
				polls := w.etcd.polls.Load()
				sleep(16 * time.Minute)
				polls = w.etcd.polls.Load() - polls
				if sampler != nil {
					reads.Store(sampler.reads.Load())
				}
				if n := reads.Load(); sampler != nil && (polls != 0 || n < 115 || n > 125) ||
					sampler == nil && (n != 0 || polls < 955 || polls > 965) {
					t.Errorf("in 960 s samples were read %d times, and etcd was asked %d times", n, polls)
				}
				if p, o := puts.Load(), others.Load(); p < 115 || p > 161 || o != 0 {
					t.Errorf("%d objects were stored in 960 s; %d other requests", p, o)
				}
			})
		})
	}
}
