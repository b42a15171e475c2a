package store

import (
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"atoll.dev/internal/pgsession"
)

// Names of the store's sessions in pg_stat_activity, after the DSN's application_name or "atoll".
const (
	feedSession   = " feed"
	watchSession  = " watch"
	singleSession = " single"
)

// The size of a chunk for a watch that reads missed changes from the database. The watch keeps a
// chunk in memory until its client has taken it.
const (
	watchChunkDocuments = 100
	watchChunkBytes     = 256 << 10
)

// makePools makes the pools of writers and readers, of followers and of watches. A pool connects at
// its first use.
func (s *Store) makePools(ctx context.Context, base *pgxpool.Config) (err error) {
	if s.pool, err = pgxpool.NewWithConfig(ctx, s.poolConfig(base)); err != nil {
		return err
	}
	feed, err := pgxpool.NewWithConfig(ctx, s.feedConfig(base, feedSession, s.opts.FollowConns))
	if err != nil {
		s.pool.Close()
		return err
	}
	watch, err := pgxpool.NewWithConfig(ctx, s.feedConfig(base, watchSession, s.opts.ReplayConns))
	if err != nil {
		s.pool.Close()
		feed.Close()
		return err
	}
	s.followers = &reader{s: s, pool: feed, documents: s.opts.ChunkSize, bytes: maxChunkBytes}
	s.watchers = &reader{s: s, pool: watch, permits: make(chan struct{}, s.opts.ReplayConns),
		documents: watchChunkDocuments, bytes: watchChunkBytes}
	return nil
}

// pools returns all pools of the store.
func (s *Store) pools() []*pgxpool.Pool {
	return []*pgxpool.Pool{s.pool, s.followers.pool, s.watchers.pool}
}

func (s *Store) closePools() {
	for _, pool := range s.pools() {
		pool.Close()
	}
}

// poolConfig configures the pool of writers and readers.
func (s *Store) poolConfig(base *pgxpool.Config) *pgxpool.Config {
	config := s.configure(base, "")
	config.MaxConns = int32(s.opts.MaxConns)
	pgsession.Configure(config.ConnConfig, s.timeouts())
	return config
}

// feedConfig configures a pool of readers of the feed. Their statements are few and must use their
// indexes, although PostgreSQL's statistics do not count the newest rows yet.
func (s *Store) feedConfig(base *pgxpool.Config, name string, conns int) *pgxpool.Config {
	config := s.configure(base, name)
	config.MaxConns = int32(conns)
	pgsession.Configure(config.ConnConfig, s.feedSettings())
	return config
}

// feedSettings make PostgreSQL read the feed through its indexes, in their order.
func (s *Store) feedSettings() pgsession.Settings {
	settings := pgsession.Settings{
		"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "max_parallel_workers_per_gather": "0",
		"enable_bitmapscan": "off", // a bitmap scan reads all changes before it sorts them
	}
	maps.Copy(settings, s.timeouts())
	return settings
}

// singleConfig configures connections outside the pools: migrations, LISTEN and NOTIFY. They have
// no time-outs.
func (s *Store) singleConfig(base *pgxpool.Config) *pgx.ConnConfig {
	config := s.configure(base, singleSession).ConnConfig
	pgsession.Configure(config, nil)
	return config
}

// timeouts are the server's time-outs for statements of the pools.
func (s *Store) timeouts() pgsession.Settings {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return pgsession.Settings{
		"statement_timeout":                   ms(s.opts.StatementTimeout),
		"lock_timeout":                        ms(s.opts.LockTimeout),
		"idle_in_transaction_session_timeout": ms(s.opts.IdleInTxTimeout),
	}
}

// configure returns a copy of the config with the settings of all connections of the store, and
// with the name of the session.
func (s *Store) configure(base *pgxpool.Config, name string) *pgxpool.Config {
	config := base.Copy()
	cc := config.ConnConfig
	cc.ConnectTimeout = s.opts.AcquireTimeout
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "atoll"
	}
	cc.RuntimeParams["application_name"] += name
	cc.Tracer = s.opts.Tracer
	if s.opts.Hooks.Dial != nil {
		cc.DialFunc = s.opts.Hooks.Dial
	}
	config.MaxConnLifetime = time.Hour
	config.MaxConnIdleTime = 5 * time.Minute
	config.PingTimeout = s.opts.AcquireTimeout
	config.AfterConnect = identify
	return config
}
