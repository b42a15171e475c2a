// Package etcd runs one etcd member inside the process, reachable by this process only.
//
// Writes have no socket at all, neither of clients nor of peers: Client returns a client that calls the
// member's services in memory. The member's name and peer address exist only inside its data. Backups
// read through a Unix socket of this user, which refuses every call that would change something. A member
// with such a socket samples its revision in each second, for backups: see sampler.
//
// The member takes care of itself: see decide.
//
// Writes are acknowledged when they are on disk (fsync of the write-ahead log). What etcd logs as
// fatal, or would die of, is handed to Failed instead, so that the caller decides how the process
// ends.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc"
)

// ErrDamaged says that the data in the directory cannot be used.
var ErrDamaged = errors.New("damaged")

// Endpoint is the member's address where one must be named. Nothing listens on it: see [Server.Client].
const Endpoint = "http://etcd.in-process"

const (
	connectionBuffer = 16 << 10    // of each connection to the socket for reads
	walSegment       = 8 << 20     // preallocated, twice; upstream's 64 MB are for one etcd per machine
	snapshotCount    = 2000        // entries kept in memory until the next snapshot; upstream keeps 10,000
	catchUpEntries   = 200         // entries kept after it for slow followers, of which there are none
	slow             = time.Second // what etcd warns of
)

// DefaultQuota is the size of the database at which etcd refuses writes, when Options name none.
const DefaultQuota = 2 << 30

// MinQuota is the least quota: an empty Kubernetes has 1 to 3 MiB.
const MinQuota = 8 << 20

// MaxQuota is the largest quota that etcd recommends.
const MaxQuota = 8 << 30

// Options are the member's data directory and settings.
type Options struct {
	Dir    string
	Socket string  // path of the Unix socket for reads; "" for none
	Quota  int64   // of the database in bytes; 0 means DefaultQuota
	Log    LogFunc // receives warnings and errors; nil for none
}

// Server is a running etcd member.
type Server struct {
	etcd     *embed.Etcd
	services *services
	reads    *grpc.Server // nil without a socket
	socket   string       // path of the socket of reads
	sampler  *sampler     // nil without a socket
	failed   chan error
	stop     sync.Once

	stopCare context.CancelFunc
	cared    chan struct{} // closed when the caretaker has ended

	stopSampling context.CancelFunc // nil without a socket
	sampled      chan struct{}      // closed when the goroutine of the sampler has ended
}

// Start starts the member on the data in o.Dir, making it when there is none. It returns when the
// member runs; its clients wait until it has elected itself, a fraction of a second later.
func Start(o Options) (*Server, error) {
	if o.Quota == 0 {
		o.Quota = DefaultQuota
	}
	first, err := begin(o.Dir)
	if err != nil {
		return nil, err
	}
	if err := checkDatabase(o.Dir); err != nil {
		return nil, err
	}
	wal.SegmentSizeBytes = walSegment
	s := &Server{failed: make(chan error, 1)}
	started := make(chan error, 1)
	go func() {
		// Damage also shows as a panic, or as a fault in the mapped database.
		debug.SetPanicOnFault(true)
		defer func() {
			if r := recover(); r != nil {
				started <- fmt.Errorf("etcd data in %s is %w: %v", o.Dir, ErrDamaged, r)
			}
		}()
		var err error
		s.etcd, err = embed.StartEtcd(config(o, s.failed))
		started <- err
	}()
	select {
	case err := <-started:
		if err != nil {
			return nil, fmt.Errorf("starting etcd in %s: %w", o.Dir, err)
		}
	case err := <-s.failed:
		return nil, fmt.Errorf("etcd data in %s is %w: %w", o.Dir, ErrDamaged, err)
	}
	s.services = newServices(s.etcd.Server)
	if err := s.openReads(o.Socket); err != nil {
		s.etcd.Close()
		return nil, err
	}
	go s.serve(o.Dir, first)
	s.takeCare(o)
	return s, nil
}

// openReads serves reads on the Unix socket, when the member has one. They wait until the member has elected itself.
func (s *Server) openReads(socket string) error {
	if socket == "" {
		return nil
	}
	l, err := listenReaders(socket)
	if err != nil {
		return err
	}
	s.sampler = newSampler(func() int64 { return s.etcd.Server.KV().Rev() })
	s.reads, s.socket = s.readers(), socket
	go func() {
		<-s.etcd.Server.ReadyNotify()
		s.reads.Serve(l)
	}()
	ctx, cancel := context.WithCancel(context.Background())
	s.stopSampling, s.sampled = cancel, make(chan struct{})
	go func() {
		defer close(s.sampled)
		select {
		case <-ctx.Done():
		case <-s.etcd.Server.ReadyNotify():
			s.sampler.run(ctx)
		}
	}()
	return nil
}

// takeCare starts the caretaker, which ends before etcd does.
func (s *Server) takeCare(o Options) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopCare, s.cared = cancel, make(chan struct{})
	c := &caretaker{server: s.etcd.Server, quota: o.Quota, log: o.Log, defragmented: time.Now()}
	go func() {
		defer close(s.cared)
		c.run(ctx)
	}()
}

// serve lets the calls of clients begin when the member has elected itself, since it would refuse them before,
// and on a first start only after its data is complete, so that no client gets an answer about a write that the
// next start would remove.
func (s *Server) serve(dir string, first bool) {
	<-s.etcd.Server.ReadyNotify()
	if first {
		if err := finish(dir); err != nil {
			select {
			case s.failed <- err:
			default:
			}
			return
		}
	}
	s.services.open()
}

func config(o Options, failed chan<- error) *embed.Config {
	c := embed.NewConfig()
	c.Name = "plane"
	c.Dir = o.Dir
	c.ListenClientUrls, c.ListenPeerUrls, c.ListenMetricsUrls = nil, nil, nil
	c.AdvertiseClientUrls = nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2380"}} // recorded, never listened on
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(o.Log, failed))
	// A lone member waits for one election timeout at each start.
	c.TickMs, c.ElectionMs = 50, 250
	c.SnapshotCount = snapshotCount
	c.SnapshotCatchUpEntries, c.ExperimentalSnapshotCatchUpEntries = catchUpEntries, catchUpEntries
	c.QuotaBackendBytes = o.Quota
	c.WarningApplyDuration, c.ExperimentalWarningApplyDuration = slow, slow
	c.WarningUnaryRequestDuration, c.ExperimentalWarningUnaryRequestDuration = slow, slow
	return c
}

// Failed delivers the error that made etcd unable to go on.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop cancels watches, waits for them and for the calls in progress, cuts off reads through the socket, and ends the
// member. Everything acknowledged is on disk already.
func (s *Server) Stop() {
	s.stop.Do(func() {
		s.stopCare()
		if s.reads != nil {
			s.reads.Stop()
			os.Remove(s.socket) // what stays of a killed process, the next start removes
			s.stopSampling()
			s.sampler.stop() // a call may still be in progress
			<-s.sampled
		}
		s.services.stop()
		<-s.cared
		s.etcd.Close()
	})
}
