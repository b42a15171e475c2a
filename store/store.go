// Package store keeps versioned documents in PostgreSQL and sends their changes to followers.
//
// A document has a spec and a status (JSON), a version that each change bumps and a generation that spec changes bump.
// Writes are compare-and-swap on the version; a write whose content equals what is stored writes nothing. Followers
// hold a cursor (a PostgreSQL snapshot) and read, in one statement, the rows that were written by transactions which
// that snapshot did not see: nothing is skipped, nothing waits for an open transaction, and a document never goes back.
// Each service owns one database and opens one Store on it; delivery, the sentinel, watches, audit and status all
// follow the same feed. What keeps followers honest is listed in docs/invariants.md as I1 to I5.
//
// It is a tool: it knows no service, and no HTTP. It must not be imported by api or internal packages.
package store

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"atoll.dev/internal/pgsession"
)

// Kind names a sort of document: "Bundle", "Cluster". Letters and digits, starting with a letter.
type Kind string

// Document is one versioned document. Values are copies: changing one changes nothing in the database.
type Document struct {
	Kind Kind
	ID   string
	// Scope is what owns the document: the consumer of a bundle, the account of a cluster; "" if nothing does.
	// It does not change while the document lives.
	Scope string
	// Name is unique within (Kind, Scope) among documents whose deletion was not requested; "" is
	// no name and never clashes. It does not change while the document lives.
	Name string
	// Version is bumped by each change, Generation by changes of Spec. Both start at 1, and go on where they ended when
	// a removed id is created again.
	Version, Generation int64
	// Spec and Status are JSON objects. PostgreSQL stores them as jsonb: what is read back has the same meaning, but
	// other white space, another order of keys, numbers in plain notation, and the last of duplicate keys only.
	Spec, Status json.RawMessage
	// Wire is the result of the kind's Render at the last write of the document.
	Wire                 []byte
	CreatedAt, UpdatedAt time.Time
	// DeletedAt is when deletion was requested; the document lives on until Remove. Once set it stays.
	DeletedAt *time.Time
	// Removed marks a tombstone, which only followers see. It has the last content of the document.
	Removed bool

	// Decoded is the caller's decoded form of Spec and Status. The change of an Update may set it for the kind's Render
	// and Compare. The store neither reads nor stores it.
	Decoded any

	head  int   // how many bytes of Wire the column head has
	token int64 // of the last write or observation; version and token identify a state of the row
}

// SameState reports whether two reads found the document in the same state, times of observation included.
func (d Document) SameState(other Document) bool {
	return d.Kind == other.Kind && d.ID == other.ID && d.Version == other.Version && d.token == other.token
}

// KindSpec describes one kind.
type KindSpec struct {
	Kind Kind
	// Render makes the wire form, once per write, of the document as it will be stored. Nil: no wire form. It must be a
	// function of the document alone. Its error refuses the write, wrapped in ErrInvalid.
	Render func(Document) ([]byte, error)
	// Head returns how many of the wire form's first bytes change only with the spec or with a deletion. PostgreSQL
	// stores them apart, so that a change of the status does not write them again. Nil: 0.
	Head func(wire []byte) int
	// Tail makes what follows the head, of a document whose head is stored already: Render is not called for a change of
	// the status alone. Nil: Render is.
	Tail func(Document) ([]byte, error)
	// Facets are words by which an index on the table feed finds documents: "Reconciled=False". Nil: none.
	Facets func(Document) []string
	// Begin completes the spec of a document that is being created, once its generation is known:
	// an id that was removed is created again with the generation after the removed one's. It may
	// be called several times. Nil: nothing is added.
	Begin func(*Document) error
	// Observed reports whether two statuses differ only in times of observation, which are no content (I3): such a
	// change is written in place, with no version, feed entry or record, and wakes nobody. Nil: all differences count.
	// It needs History: after a lost answer to a commit, the record shows which write made a version.
	Observed func(before, after json.RawMessage) bool
	// Compare says how the statuses of two states of a document differ, for kinds that can tell it faster than by
	// comparing all JSON, and instead of Observed. Nil: SameJSON and Observed.
	Compare func(before, after Document) Difference
	// Recorded returns the part of a changed status that the history keeps. It is stored packed, so that no search reads
	// it. Nil: the history keeps the whole status, as JSON.
	Recorded func(before, after Document) json.RawMessage
	// History keeps a record of every change, with its actor, in the transaction of the change: the audit record.
	History bool
	// Trail keeps less than History: the actor and the time of a change, without spec and status, and no record of
	// changes of the status alone. It is enough to resolve a commit whose answer was lost.
	Trail bool
	// Indexes are made at Open, for this kind's rows only.
	Indexes []Index
}

// Difference is how two statuses differ.
type Difference int

// The differences. ObservedLater is a difference only in times of observation (KindSpec.Observed).
const (
	Equal Difference = iota
	ObservedLater
	Different
)

// Index is an index for List queries on one kind.
type Index struct {
	Name string // letters, digits, underscores; unique within the kind. An index that changes gets another name
	// On is what follows "using": `gin ((spec->'labels') jsonb_path_ops)`, `btree ((spec->>'phase'))`.
	On string
	// Live leaves removed documents out, as lists do: what is in the index is then known without looking at the table.
	Live bool
}

// Options are the parameters of Open. DSN and Kinds are needed.
type Options struct {
	DSN    string
	Kinds  []KindSpec
	Logger *slog.Logger // default: discard

	// Migrations make the service's own side tables, in order; each runs once. Only ever add to the end.
	Migrations []string

	// MaxConns bounds the connections of writers and readers; default 16. Besides, followers use at most FollowConns
	// connections, watches ReplayConns, and the store itself two.
	MaxConns         int
	FollowConns      int           // default 4
	ReplayConns      int           // for watches whose cursor is older than what a Broadcast remembers; default 2
	AcquireTimeout   time.Duration // for getting a connection, connecting included; default 1.5 s
	StatementTimeout time.Duration // default 5 s
	LockTimeout      time.Duration // default 1.5 s
	IdleInTxTimeout  time.Duration // default 10 s: a transaction that is left open is ended by the server
	ResolveTimeout   time.Duration // for resolving a commit whose answer was lost; default 1.5 s
	PollInterval     time.Duration // of followers, behind the notifier; default 1 s
	// FeedInterval is the shortest time between two reads of one follower, and two notifications; default 5 ms.
	FeedInterval time.Duration
	ChunkSize    int // documents per batch; default 500. A batch has at most about 8 MB, too

	// How many recent changes a Broadcast remembers for watches that continue from a cursor, and how large they may be
	// together; default 10,000 and 32 MB.
	ReplayChanges, ReplayBytes int

	// Tracer observes each statement; it may be nil. It must be quick.
	Tracer pgx.QueryTracer

	Hooks Hooks
}

// Hooks are for tests: they inject faults where production has none. All may be nil.
type Hooks struct {
	// Dial replaces the dialling of PostgreSQL connections.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// BeforeWrite is called between the read and the write of an update.
	BeforeWrite func(kind Kind, id string)
	// BeforeNotify is called before the store notifies other processes; false drops the notification.
	BeforeNotify func() bool
	// LocalWake is called before followers of the same process are woken; false drops the wake.
	LocalWake func() bool
	// AfterChunk is called when a follower has read a chunk and not yet applied it.
	AfterChunk func()
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.AcquireTimeout, 1500*time.Millisecond)
	def(&o.StatementTimeout, 5*time.Second)
	def(&o.LockTimeout, 1500*time.Millisecond)
	def(&o.IdleInTxTimeout, 10*time.Second)
	def(&o.ResolveTimeout, 1500*time.Millisecond)
	def(&o.PollInterval, time.Second)
	def(&o.FeedInterval, 5*time.Millisecond)
	if o.MaxConns == 0 {
		o.MaxConns = 16
	}
	if o.FollowConns == 0 {
		o.FollowConns = 4
	}
	if o.ReplayConns == 0 {
		o.ReplayConns = 2
	}
	if o.ReplayChanges == 0 {
		o.ReplayChanges = 10_000
	}
	if o.ReplayBytes == 0 {
		o.ReplayBytes = 32 << 20
	}
	if o.ChunkSize == 0 {
		o.ChunkSize = 500
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Store is an open database of documents. It is safe for concurrent use.
type Store struct {
	opts  Options
	kinds map[Kind]*KindSpec
	log   *slog.Logger

	pool      *pgxpool.Pool   // writes and reads
	followers *reader         // reads the feed for followers
	watchers  *reader         // reads the feed for watches whose cursor is older than the memory of a Broadcast
	single    *pgx.ConnConfig // connections of their own: migrations, listening, ringing
	hub       *hub
	notifier  *notifier

	streams chan struct{} // holds a token for each stream that holds a connection
	turns   keyed         // locks by document, for updaters that conflict again and again

	uncounted atomic.Uint64 // documents created and removed by this process
	foldNow   chan struct{} // holds a token when foldTally is to add up

	stop context.CancelFunc
	done sync.WaitGroup
}

var (
	kindPattern  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)
	indexPattern = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// Open connects, brings the schema up to date under a lock, and makes the kinds' indexes. It returns ErrNewer when the
// database was written by a newer binary, and ErrUnavailable when there is no server to talk to. When it finds that the
// database was restored from a dump or a backup, it starts a new incarnation: cursors from before get ErrGone.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	s := &Store{opts: o, kinds: map[Kind]*KindSpec{}, log: o.Logger, streams: make(chan struct{}, max(1, o.MaxConns/2)),
		foldNow: make(chan struct{}, 1)}
	for _, k := range o.Kinds {
		if !kindPattern.MatchString(string(k.Kind)) || s.kinds[k.Kind] != nil {
			return nil, fmt.Errorf("opening store: kind %q is malformed or named twice", k.Kind)
		}
		if (k.Observed != nil || k.Compare != nil) && !k.History {
			return nil, fmt.Errorf("opening store: kind %q has Observed or Compare and no History", k.Kind)
		}
		for _, ix := range k.Indexes {
			if !indexPattern.MatchString(ix.Name) {
				return nil, fmt.Errorf("opening store: index name %q of %s is malformed", ix.Name, k.Kind)
			}
		}
		s.kinds[k.Kind] = &k
	}
	config, err := pgsession.ParsePool(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("opening store: %w", err)
	}
	s.single = s.singleConfig(config)

	if err := s.migrate(ctx); err != nil {
		return nil, fmt.Errorf("opening store: %w", err)
	}
	if err := s.makePools(context.WithoutCancel(ctx), config); err != nil {
		return nil, fmt.Errorf("opening store: %w", err)
	}
	if err := s.adopt(ctx); err != nil {
		s.closePools()
		return nil, fmt.Errorf("opening store: %w", err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.hub = newHub(s)
	s.notifier = newNotifier(s)
	s.done.Go(func() { s.notifier.run(background) })
	s.done.Go(func() { s.hub.run(background) })
	s.done.Go(func() { s.foldTally(background) })
	return s, nil
}

// Close ends the store's connections. Followers must have been stopped by their contexts before.
func (s *Store) Close() {
	s.stop()
	s.done.Wait()
	s.closePools()
}

// Ping returns nil when the database answers; otherwise ErrUnavailable, after about AcquireTimeout.
func (s *Store) Ping(ctx context.Context) error {
	return s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "select 1")
		return err
	})
}

// Read runs f, which must only read, on a connection. It is for figures: there is no snapshot and no cursor. When the
// connection is broken, Read runs f again on another.
func (s *Store) Read(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return s.read(ctx, s.pool, f)
}

// Connections returns how many connections to the database are open, and how many of these are in use and idle.
func (s *Store) Connections() (open, inUse, idle int) {
	for _, pool := range s.pools() {
		stat := pool.Stat()
		open, inUse, idle = open+int(stat.TotalConns()), inUse+int(stat.AcquiredConns()), idle+int(stat.IdleConns())
	}
	return open, inUse, idle
}

func (s *Store) kind(k Kind) (*KindSpec, error) {
	if spec := s.kinds[k]; spec != nil {
		return spec, nil
	}
	return nil, fmt.Errorf("%w: kind %q is not one of this store's", ErrInvalid, k)
}
