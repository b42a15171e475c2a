// Package store keeps versioned documents in PostgreSQL and sends their changes to followers.
//
// A document has a spec and a status (JSON), a version that each change increases and a generation
// that changes of the spec increase. Writes are compare-and-swap on the version; a write whose
// content equals what is stored writes nothing. Followers hold a cursor (a PostgreSQL snapshot) and
// read, in one statement, the rows that were written by transactions which that snapshot did not
// see. So a follower skips no change, does not wait for open transactions, and never gets an older
// version of a document after a newer one. Each service owns one database and opens one Store on
// it; delivery, the sentinel, watches, audit and status all follow the same feed.
// docs/invariants.md lists the guarantees as I1 to I5.
//
// It is a tool: it knows no service, and no HTTP. It must not be imported by api or internal
// packages.
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

	"atoll.dev/envelope"
	"atoll.dev/internal/pgsession"
)

// Kind is the name of a kind of documents, such as "Bundle" or "Cluster": a letter, then letters
// and digits.
type Kind string

// Document is one versioned document. It is a copy: a change of the value does not change the
// database.
type Document struct {
	Kind Kind
	ID   string
	// Scope is the owner of the document: the consumer of a bundle, the account of a cluster; "" if
	// there is none. It does not change while the document exists.
	Scope string
	// Name is unique within (Kind, Scope) among documents whose deletion was not requested; several
	// documents may have no name, "". It does not change while the document exists.
	Name string
	// Each change increases Version by 1, and each change of Spec increases Generation by 1. Both
	// start at 1. When an id is created again after its removal, both continue after the removed
	// document's.
	Version, Generation int64
	// Spec and Status are JSON objects. PostgreSQL stores them as jsonb: what is read back has the
	// same meaning, but other white space, another order of keys, numbers in plain notation, and
	// the last of duplicate keys only.
	Spec, Status json.RawMessage
	// Wire is the result of the kind's Render at the last write of the document.
	Wire                 []byte
	CreatedAt, UpdatedAt time.Time
	// DeletedAt is when deletion was requested; the document exists until Remove. It never becomes
	// nil again.
	DeletedAt *time.Time
	// Removed marks a tombstone, which has the last content of the document. Only followers and
	// Tombstone return these.
	Removed bool

	// Decoded is the caller's decoded form of Spec and Status. The kind's Decode and the change of an
	// Update may set it for the kind's Render and Compare. The store neither reads nor stores it.
	Decoded any

	sealed *sealed // nil: the document has no sealed values

	observation []byte // the times that the columns status and wire do not have; see ObservationForm
	isPartial   bool   // Spec and the head of Wire were not read; see GetStatus
	head        int    // how many bytes of the wire form the column head has
	token       int64  // of the last write or observation; version and token identify a state of the row
}

// SameState reports whether two reads found the document in the same state, times of observation
// included.
func (d Document) SameState(other Document) bool {
	return d.Kind == other.Kind && d.ID == other.ID && d.Version == other.Version && d.token == other.token
}

// Options are the parameters of Open. DSN and Kinds are needed.
type Options struct {
	DSN    string
	Kinds  []KindSpec
	Logger *slog.Logger // default: discard

	// Migrations are SQL that makes the service's own tables, in order; each runs once. Add only to
	// the end.
	Migrations []string

	// MaxConns is the maximum number of connections of writers and readers; default 16. Followers
	// use at most FollowConns further connections, watches ReplayConns, and the store itself two.
	MaxConns    int
	FollowConns int // default 4
	ReplayConns int // for watches whose cursor is older than what a Broadcast remembers; default 2
	// AcquireTimeout is how long a caller waits for a connection, connecting included, while the database answers
	// nothing; default 1.5 s. QueueTimeout is how long it waits while the database answers the statements of others;
	// default 10 s.
	AcquireTimeout, QueueTimeout time.Duration

	StatementTimeout time.Duration // default 5 s
	LockTimeout      time.Duration // default 1.5 s
	IdleInTxTimeout  time.Duration // default 10 s: the server ends a transaction that is idle for longer
	ResolveTimeout   time.Duration // for resolving a commit whose answer was lost; default 1.5 s
	PollInterval     time.Duration // how often followers read without a notification; default 1 s
	// FeedInterval is the shortest time between two reads of one follower, and between two
	// notifications; default 5 ms. After a slow read the pause is longer: see feedPause.
	FeedInterval time.Duration
	ChunkSize    int // documents per batch; default 500. A batch has at most about 8 MB, too

	// How many recent changes a Broadcast remembers for watches that continue from a cursor, and
	// how large they may be together; default 10,000 and 32 MB.
	ReplayChanges, ReplayBytes int

	// Envelope wraps the keys that encrypt the values that KindSpec.Sensitive finds; nil: these are stored in clear.
	// Values in clear, or under another key than the current one, are sealed in the background (see SealingProgress).
	// Give all processes of a database the same keys: one without them cannot read sealed documents.
	Envelope envelope.KMS
	// SealingProgress is called with the progress of the background every SealingInterval (default 10 s); nil: not at all.
	SealingProgress func(SealingProgress)
	SealingInterval time.Duration

	// Tracer gets each statement, and must be quick; nil: none.
	Tracer pgx.QueryTracer

	Hooks Hooks
}

// Hooks are for tests: they inject faults where production has none. All may be nil.
type Hooks struct {
	// Dial replaces the dialling of PostgreSQL connections.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// BeforeWrite is called between the read and the write of an update.
	BeforeWrite func(kind Kind, id string)
	// BeforeNotify is called before the store notifies other processes; false drops the
	// notification.
	BeforeNotify func() bool
	// LocalWake is called before followers of the same process are woken; false drops the wake.
	LocalWake func() bool
	// AfterChunk is called between the read of a chunk and its delivery to a follower.
	AfterChunk func()
}

func (o Options) withDefaults() Options {
	setDefault := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	setDefault(&o.AcquireTimeout, 1500*time.Millisecond)
	setDefault(&o.QueueTimeout, 10*time.Second)
	setDefault(&o.StatementTimeout, 5*time.Second)
	setDefault(&o.LockTimeout, 1500*time.Millisecond)
	setDefault(&o.IdleInTxTimeout, 10*time.Second)
	setDefault(&o.ResolveTimeout, 1500*time.Millisecond)
	setDefault(&o.PollInterval, time.Second)
	setDefault(&o.FeedInterval, 5*time.Millisecond)
	setDefault(&o.SealingInterval, 10*time.Second)
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

// Patient returns the options with a minute for each limit of time that is 0, except ResolveTimeout. Tests of other
// subjects than these limits use it: on a machine under load, too, only a hang takes a minute.
func (o Options) Patient() Options {
	for _, limit := range []*time.Duration{&o.AcquireTimeout, &o.QueueTimeout, &o.StatementTimeout, &o.LockTimeout,
		&o.IdleInTxTimeout} {
		if *limit == 0 {
			*limit = time.Minute
		}
	}
	return o
}

// Store is an open database of documents. Several goroutines may use it. Functions that fail return
// one of the errors of this package where it describes the failure; otherwise the error is the
// database driver's or the cause of the context.
type Store struct {
	opts  Options
	kinds map[Kind]*KindSpec
	log   *slog.Logger

	pool      *pgxpool.Pool   // writes and reads
	followers *reader         // reads the feed for followers
	watchers  *reader         // reads the feed for watches whose cursor is older than the memory of a Broadcast
	single    *pgx.ConnConfig // for connections outside the pools: migrations, LISTEN, NOTIFY
	hub       *hub
	notifier  *notifier

	streams chan struct{} // holds a token for each stream that holds a connection
	// background holds a token for each connection that works in the background; see InBackground.
	background chan struct{}
	// resolving holds a token for each connection on which resolve asks.
	resolving     chan struct{}
	documentLocks keyedLocks // locks by document, for updaters that conflict again and again
	// Writes of several callers share statements.
	observations, writes queue[*sharedWrite]

	answered    atomic.Uint64 // how many statements and transactions the database has answered
	changeCount atomic.Uint64 // how many documents this process created and removed
	sealer      *sealer       // nil: the store has no KMS
	foldNow     chan struct{} // has a token when foldTally should fold

	stop context.CancelFunc
	done sync.WaitGroup
}

var (
	kindPattern  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)
	indexPattern = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	// statusPattern is an expression of the column status. An index on one would end the in-place updates of all
	// documents (decision 049).
	statusPattern = regexp.MustCompile(`\bstatus\s*->`)
)

// Open connects, migrates the schema under a lock, and makes the kinds' indexes. Several processes
// may open a database at once. Open returns ErrNewer when a newer binary has migrated the schema,
// ErrUnavailable when the database has been unavailable for 10 s, as after a crash it is while it
// recovers, and another error when the options are wrong. When the database was restored from a dump
// or a backup, Open begins a new incarnation: functions that continue from an earlier cursor return
// ErrGone. The end of ctx after Open has no effect.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	s := &Store{opts: o, kinds: map[Kind]*KindSpec{}, log: o.Logger, streams: make(chan struct{}, max(1, o.MaxConns/2)),
		foldNow: make(chan struct{}, 1), background: make(chan struct{}, max(1, o.MaxConns/2)),
		resolving: make(chan struct{}, resolvesAtOnce)}
	var err error
	if s.sealer, err = newSealer(ctx, o.Envelope, o.Logger); err != nil {
		return nil, fmt.Errorf("opening store: %w", err)
	}
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
			if statusPattern.MatchString(ix.On) {
				return nil, fmt.Errorf("opening store: the index %s of %s reads the status; then no change of a status of "+
					"any kind could be written in place", ix.Name, k.Kind)
			}
		}
		if k.Sensitive != nil && (k.History || k.Head != nil) {
			return nil, fmt.Errorf("opening store: kind %q has Sensitive, and History or Head", k.Kind)
		}
		k.sealer = s.sealer
		s.kinds[k.Kind] = &k
	}
	config, err := pgsession.ParsePool(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("opening store: %w", err)
	}
	s.single = s.singleConfig(config)

	if err := whileUnavailable(ctx, openPatience, func(ctx context.Context) error {
		return s.prepare(ctx, config)
	}); err != nil {
		return nil, fmt.Errorf("opening store: %w", err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.hub = newHub(s)
	s.notifier = newNotifier(s)
	s.done.Go(func() { s.notifier.run(background) })
	s.done.Go(func() { s.hub.run(background) })
	s.done.Go(func() { s.foldTally(background) })
	if s.sealer != nil {
		s.done.Go(func() { s.runSealing(background) })
	}
	return s, nil
}

// prepare migrates the schema, makes the pools, and compares the database with the incarnation and the keys that the
// store knows. After an error it has closed the pools, and may be called again.
func (s *Store) prepare(ctx context.Context, config *pgxpool.Config) error {
	if err := s.migrate(ctx); err != nil {
		return err
	}
	if err := s.makePools(context.WithoutCancel(ctx), config); err != nil {
		return err
	}
	err := s.ensureIncarnation(ctx)
	if err == nil {
		err = s.checkSealed(ctx)
	}
	if err != nil {
		s.closePools()
	}
	return err
}

// Close sends the last notification and closes the store's connections. The caller ends the
// contexts of all followers before.
func (s *Store) Close() {
	s.stop()
	s.done.Wait()
	s.closePools()
}

// Ping returns nil when the database answers; otherwise ErrUnavailable, after about AcquireTimeout. While all
// connections are in use, the answers to their statements count.
func (s *Store) Ping(ctx context.Context) error {
	answered := s.answered.Load()
	bounded, cancel := context.WithTimeoutCause(ctx, s.opts.AcquireTimeout, ErrUnavailable)
	defer cancel()
	err := s.read(bounded, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "select 1")
		return err
	})
	if err != nil && bounded.Err() != nil && ctx.Err() == nil && s.answered.Load() != answered {
		return nil
	}
	return err
}

// Read runs f, which must only read, on a connection, for example for metrics. When the connection
// breaks, Read runs f again on another, at most twice.
func (s *Store) Read(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return s.read(ctx, s.pool, f)
}

// Connections returns how many connections of the pools are open, and how many of these are in use
// and idle.
func (s *Store) Connections() (open, inUse, idle int) {
	for _, pool := range s.pools() {
		stat := pool.Stat()
		open, inUse, idle = open+int(stat.TotalConns()), inUse+int(stat.AcquiredConns()), idle+int(stat.IdleConns())
	}
	return open, inUse, idle
}

// kind returns the description of a kind, or ErrInvalid.
func (s *Store) kind(k Kind) (*KindSpec, error) {
	if spec := s.kinds[k]; spec != nil {
		return spec, nil
	}
	return nil, fmt.Errorf("%w: kind %q is not one of this store's", ErrInvalid, k)
}
