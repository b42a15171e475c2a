package backup

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"go.etcd.io/bbolt"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// Contents are the keys of an etcd at one moment, and the revision in which each was written last. A restore keeps
// these revisions, and no revision is used twice: a key with the same revision has the same value.
type Contents map[string]int64

const (
	// rangePage bounds the keys in one response of etcd.
	rangePage = 2000
	// revisionSize is the size of a revision in etcd's database: two numbers and a separator. A deletion has a byte
	// more.
	revisionSize = 17
	// checksumSize is the size of the checksum behind a snapshot.
	checksumSize = 32
	// databasePage divides the size of every database of etcd: a snapshot whose size has a remainder of checksumSize
	// ends with a checksum.
	databasePage = 512
)

// ReadContents returns the contents of the etcd that the files of Fetch make.
func ReadContents(snapshot, log string) (Contents, error) {
	if err := cutChecksum(snapshot); err != nil {
		return nil, err
	}
	c := Contents{}
	from, err := c.addSnapshot(snapshot)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if err := c.addLog(log, from); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return c, nil
}

// cutChecksum removes the checksum behind a snapshot, which etcd appends to its database.
func cutChecksum(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size()%databasePage == checksumSize {
		return os.Truncate(path, info.Size()-checksumSize)
	}
	return nil
}

// addSnapshot adds the keys of etcd's database, and returns its last revision.
func (c Contents) addSnapshot(path string) (last int64, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return last, db.View(func(tx *bbolt.Tx) error {
		keys := tx.Bucket([]byte("key"))
		if keys == nil {
			return fmt.Errorf("%w: it has no keys", ErrCorrupt)
		}
		return keys.ForEach(func(revision, value []byte) error { // in the order of the revisions
			if len(revision) < revisionSize {
				return fmt.Errorf("%w: a revision has %d bytes", ErrCorrupt, len(revision))
			}
			last = max(last, int64(binary.BigEndian.Uint64(revision)))
			var kv mvccpb.KeyValue
			if err := kv.Unmarshal(value); err != nil {
				return fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			if len(revision) > revisionSize {
				delete(c, string(kv.Key))
			} else if len(kv.Key) > 0 { // else it is the entry by which a restore raises the revision
				c[string(kv.Key)] = kv.ModRevision
			}
			return nil
		})
	})
}

// addLog applies the changes of a log after a revision.
func (c Contents) addLog(path string, after int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	for {
		size, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: the size of a change cannot be read: %w", ErrCorrupt, err)
		}
		if size > maxSegment {
			return fmt.Errorf("%w: a change has %d bytes, at most %d are possible", ErrCorrupt, size, maxSegment)
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(in, data); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		var e mvccpb.Event
		if err := e.Unmarshal(data); err != nil || e.Kv == nil {
			return fmt.Errorf("%w: a change cannot be read", ErrCorrupt)
		}
		switch {
		case e.Kv.ModRevision <= after: // in the snapshot
		case e.Type == mvccpb.DELETE:
			delete(c, string(e.Kv.Key))
		default:
			c[string(e.Kv.Key)] = e.Kv.ModRevision
		}
	}
}

// ErrCompacted is the error of a revision that etcd has compacted: its contents cannot be read any more.
var ErrCompacted = errors.New("etcd has compacted the revision")

// ErrTooManyKeys is the error of contents that would take too much memory.
var ErrTooManyKeys = fmt.Errorf("etcd has more than %d keys", mostKeys)

// mostKeys bounds Contents that are read from a plane's etcd: a hostile plane may send many keys. 2,000,000 keys take
// some 300 MiB.
const mostKeys = 2_000_000

// ReadLiveContents returns the contents of a running etcd.
func ReadLiveContents(ctx context.Context, conn *grpc.ClientConn) (Contents, error) {
	return ReadContentsAt(ctx, conn, 0)
}

// ReadContentsAt returns the contents that a running etcd had at a revision; 0 is the present one. The error is
// ErrCompacted when etcd has compacted the revision, also while the contents are read.
func ReadContentsAt(ctx context.Context, conn *grpc.ClientConn, revision int64) (Contents, error) {
	c, kv, read := Contents{}, pb.NewKVClient(conn), 0
	request := &pb.RangeRequest{Key: []byte(allKeys), RangeEnd: []byte(allKeys), KeysOnly: true, Limit: rangePage,
		Revision: revision}
	for {
		r, err := kv.Range(ctx, request, grpc.MaxCallRecvMsgSize(maxMessage))
		if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
			return nil, fmt.Errorf("%w %d", ErrCompacted, request.Revision)
		}
		if err != nil {
			return nil, err
		}
		for _, kv := range r.Kvs {
			c[string(kv.Key)] = kv.ModRevision
		}
		if read += len(r.Kvs); read > mostKeys {
			return nil, ErrTooManyKeys
		}
		if !r.More || len(r.Kvs) == 0 {
			return c, nil
		}
		if request.Revision == 0 {
			request.Revision = r.Header.GetRevision()
		}
		request.Key = append(r.Kvs[len(r.Kvs)-1].Key, 0)
	}
}

// CountKeys returns how many keys with a prefix a running etcd had at a revision; the prefix "" is that of all.
func CountKeys(ctx context.Context, conn *grpc.ClientConn, prefix string, revision int64) (int, error) {
	request := &pb.RangeRequest{Key: []byte(allKeys), RangeEnd: []byte(allKeys), CountOnly: true, Revision: revision}
	if n := len(prefix); n > 0 {
		request.Key, request.RangeEnd = []byte(prefix), []byte(prefix[:n-1]+string(prefix[n-1]+1))
	}
	r, err := pb.NewKVClient(conn).Range(ctx, request)
	if err != nil {
		return 0, err
	}
	return int(r.Count), nil
}
