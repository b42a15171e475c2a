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

// A watch that is caught up from the database keeps one chunk in memory until its client has taken it.
const (
	watchChunkDocuments = 100
	watchChunkBytes     = 256 << 10
)

// makePools makes the pools of writers and readers, of followers and of watches. They connect when they are used.
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
	s.watchers = &reader{s: s, pool: watch, turns: make(chan struct{}, s.opts.ReplayConns),
		documents: watchChunkDocuments, bytes: watchChunkBytes}
	return nil
}

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
	pgsession.Prepare(config.ConnConfig, s.timeouts())
	return config
}

// feedConfig configures a pool of readers of the feed. Their statements are few and always want their indexes, whatever
// the statistics say about the newest rows.
func (s *Store) feedConfig(base *pgxpool.Config, name string, conns int) *pgxpool.Config {
	config := s.configure(base, name)
	config.MaxConns = int32(conns)
	pgsession.Prepare(config.ConnConfig, s.feedSettings())
	return config
}

func (s *Store) feedSettings() pgsession.Settings {
	settings := pgsession.Settings{
		"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "max_parallel_workers_per_gather": "0",
		"enable_bitmapscan": "off", // it reads all that changed before it sorts
	}
	maps.Copy(settings, s.timeouts())
	return settings
}

// singleConfig configures connections of their own: migrations, listening, ringing. They have no time-outs.
func (s *Store) singleConfig(base *pgxpool.Config) *pgx.ConnConfig {
	config := s.configure(base, singleSession).ConnConfig
	pgsession.Prepare(config, nil)
	return config
}

func (s *Store) timeouts() pgsession.Settings {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return pgsession.Settings{
		"statement_timeout":                   ms(s.opts.StatementTimeout),
		"lock_timeout":                        ms(s.opts.LockTimeout),
		"idle_in_transaction_session_timeout": ms(s.opts.IdleInTxTimeout),
	}
}

// configure returns a copy of the config with what all of the store's connections have in common.
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
