package backup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"atoll.dev/envelope"
	"atoll.dev/plane"
)

const (
	partSize    = 1 << 20   // of a compressed snapshot; a follower has one part in memory
	windowSize  = 256 << 10 // of the compression
	maxMessage  = 32 << 20  // of etcd: a fragment of a watch has at most two requests of 1.5 MiB
	sampleEvery = time.Second
	callLimit   = 10 * time.Second // of one call of etcd
)

// chain makes one chain of a backup: a snapshot, and the log of the changes after it. Only the goroutine of run uses
// its members, except the channels and stop.
type chain struct {
	f    *Follower
	conn *grpc.ClientConn
	poll *poll // of etcd's revision; nil before the first sample, and while samples is used
	// samples are those that the plane takes; nil: it takes none, or untrue ones, and poll asks for the revision.
	samples *samples
	ctx     context.Context
	stop    context.CancelFunc // ends run; the stored objects stay

	complete chan struct{} // closed when the chain can replace the one before it
	ended    chan struct{} // closed when run has returned err
	err      error
	large    chan struct{} // closed when the log is so large that the next chain should begin

	prefix   string // of its objects
	name     string
	period   time.Time // Order.Period
	key      envelope.DataKey
	compress *zstd.Encoder

	// Of the log.
	number   int       // of the next segment
	previous []byte    // checksum of the object before it
	last     Sample    // end of the log that is stored
	size     int       // bytes of the log
	stored   time.Time // of the look after which the last object of the log was stored; at first, when the log began
	hasLog   bool      // an object of the log was stored
}

func newChain(f *Follower, conn *grpc.ClientConn) *chain {
	return &chain{f: f, conn: conn, period: f.readClock().period, complete: make(chan struct{}),
		ended: make(chan struct{}), large: make(chan struct{})}
}

// run stores the snapshot, and then the log, until ctx ends or an error occurs. After an error the follower begins a
// new chain.
func (c *chain) run() (err error) {
	if c.compress, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(windowSize), zstd.WithLowerEncoderMem(true)); err != nil {
		return err
	}
	defer c.compress.Close()
	defer c.closePoll()
	if c.key, err = envelope.NewDataKey(c.ctx, c.f.o.KMS); err != nil {
		return err
	}
	if err := c.takeSnapshot(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if c.samples != nil {
		c.closePoll()
	}
	if err := c.keepLog(); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}

// errSetBack is the error of a chain that ends because the clock of this machine was set back. Within a chain, times
// never decrease.
var errSetBack = errors.New("the clock of this machine was set back")

// takeSample reads etcd's revision. The sample's time is the time before the request.
func (c *chain) takeSample() (s Sample, err error) {
	at := c.f.readClock()
	if !at.period.Equal(c.period) {
		return Sample{}, errSetBack
	}
	if c.poll == nil {
		if c.poll, err = startPoll(c.ctx, c.conn); err != nil {
			return Sample{}, err
		}
	}
	s = Sample{Time: at.now}
	s.Revision, err = c.poll.revision()
	return s, err
}

func (c *chain) closePoll() {
	if c.poll != nil {
		c.poll.close()
		c.poll = nil
	}
}

// snapshotLimit bounds a snapshot: etcd's largest quota is 8 GiB, and a plane must not fill the disk of the spool.
const snapshotLimit = 10 << 30

// takeSnapshot stores the snapshot and the manifest.
func (c *chain) takeSnapshot() error {
	select {
	case <-c.ctx.Done():
		return c.ctx.Err()
	case c.f.o.Snapshots <- struct{}{}:
		defer func() { <-c.f.o.Snapshots }()
	}
	// The claim comes after the list of generations: a follower whose plane another owner takes meanwhile has no later
	// generation than the chains of that owner.
	order, unordered, err := nextOrder(c.ctx, c.f.o.Store, c.f.o.KMS, c.f.o.Plane, c.period)
	if err != nil {
		return err
	}
	if err := c.f.claim(c.ctx); err != nil {
		return err
	}
	if c.samples, err = startSamples(c.ctx, c.conn); err != nil && !errors.Is(err, plane.ErrNoSamples) &&
		c.ctx.Err() == nil {
		c.f.o.Log.Warn("the samples of a plane's revision cannot be read; the plane is asked each second", "error", err)
	}
	start, err := c.takeSample()
	if err != nil {
		return err
	}
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	c.name = start.Time.Format(chainTime) + "-" + hex.EncodeToString(random)
	c.prefix = c.f.o.Plane.prefix() + c.name + "/"
	m := Manifest{Plane: c.f.o.Plane.String(), Chain: c.name, Order: order, Unordered: unordered, Start: start}
	if c.f.o.Restores != nil {
		if m.Restores, err = c.f.o.Restores(); err != nil {
			return fmt.Errorf("reading the restore orders that the plane has executed: %w", err)
		}
	}
	if c.f.o.Release != nil {
		if m.Release, err = c.f.o.Release(); err != nil {
			return fmt.Errorf("reading the release of the plane: %w", err)
		}
	}
	spool, err := os.CreateTemp(c.f.o.Spool, "snapshot-*")
	if err != nil {
		return err
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil { // the open file stays usable, and a killed process leaves no file
		return err
	}
	if err := c.spoolSnapshot(spool, &m); err != nil {
		return err
	}
	if err := c.f.put(c.ctx, c.prefix+order.objectName(), []byte(order.objectName()+"\n")); err != nil {
		return err
	}
	if err := c.storeParts(spool, &m); err != nil {
		return err
	}
	if err := c.storeKeys(&m); err != nil {
		return err
	}
	object, err := sealManifest(c.prefix+manifestObject, c.key, m)
	if err != nil {
		return err
	}
	if err := c.f.put(c.ctx, c.prefix+manifestObject, object); err != nil {
		return err
	}
	c.number, c.previous, c.last = 1, sha256Of(object), start
	return nil
}

// spoolSnapshot copies the snapshot, compressed, into a file.
func (c *chain) spoolSnapshot(spool io.Writer, m *Manifest) error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	stream, err := pb.NewMaintenanceClient(c.conn).Snapshot(ctx, &pb.SnapshotRequest{},
		grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		return err
	}
	c.compress.Reset(spool)
	// All planes share the room of Options.Snapshots: an etcd that sends nothing must not keep it.
	stall := time.AfterFunc(callLimit, cancel)
	defer stall.Stop()
	for {
		stall.Reset(callLimit)
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && c.ctx.Err() == nil && ctx.Err() != nil {
			return fmt.Errorf("etcd sent nothing for %s", callLimit)
		}
		if err != nil {
			return err
		}
		if m.Size == 0 { // etcd has begun its transaction: the snapshot has nothing later than this sample
			if m.Complete, err = c.takeSample(); err != nil {
				return err
			}
		}
		if m.Size += int64(len(r.Blob)); m.Size > snapshotLimit {
			return fmt.Errorf("the snapshot has more than %d GiB", snapshotLimit>>30)
		}
		if _, err := c.compress.Write(r.Blob); err != nil {
			return err
		}
	}
	return c.compress.Close()
}

// storeParts stores the file in parts.
func (c *chain) storeParts(spool io.ReadSeeker, m *Manifest) error {
	left, err := spool.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	var object []byte // each part is stored before the next one takes its memory
	for n := 0; left > 0; n++ {
		size := min(left, int64(c.f.partSize))
		left -= size
		name := c.prefix + partName(n)
		if object, err = c.key.SealFrom(object, name, spool, int(size)); err != nil {
			return err
		}
		if err := c.f.put(c.ctx, name, object); err != nil {
			return err
		}
		m.Parts = append(m.Parts, Part{Size: len(object), SHA256: sha256Of(object)})
	}
	return nil
}
