// Package pgsession opens PostgreSQL sessions that set what Atoll's statements rely on.
//
// Settings of a server, a database or a role belong to whoever owns the server: a just-in-time compiler that takes
// seconds for each statement, another time zone, another isolation level. A session that does not set a value itself
// depends on them. Every session of Atoll is configured here, with SET after it was connected, so that a pooler in
// session mode needs no list of startup parameters. Decision 047 says which settings are left to the owner, and why.
//
// Nothing else may parse a DSN or dial PostgreSQL; a test of the repository checks that.
package pgsession

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Settings are settings of a session by their names.
type Settings map[string]string

// defaults are the settings that all sessions have, unless Configure is given another value.
var defaults = Settings{
	// Statements are short, and the feed's are planned with enable_seqscan off, which makes their estimated cost
	// very high: a server that may compile them does so at every poll, for 1 to 3 s each.
	"jit": "off",

	// Plans are made from the statistics. An owner who switched a method off for another program does not know ours.
	"plan_cache_mode":         "auto",
	"enable_seqscan":          "on",
	"enable_indexscan":        "on",
	"enable_indexonlyscan":    "on",
	"enable_bitmapscan":       "on",
	"enable_nestloop":         "on",
	"enable_hashjoin":         "on",
	"enable_sort":             "on",
	"enable_incremental_sort": "on",

	// The isolation level of a plain "begin". Statements retry a conflict of their own row only, so at another level
	// serialization failures would reach callers.
	"default_transaction_isolation":  "read committed",
	"default_transaction_deferrable": "off",

	// No time-out but the ones that the session's owner chooses.
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	"idle_session_timeout":                "0",

	// Text forms: of times and intervals, bytea, floats and literals.
	"client_encoding":             "UTF8",
	"timezone":                    "UTC",
	"datestyle":                   "ISO, MDY",
	"intervalstyle":               "postgres",
	"bytea_output":                "hex",
	"extra_float_digits":          "1",
	"standard_conforming_strings": "on",

	"gin_fuzzy_search_limit": "0",   // another value loses rows of a search
	"transform_null_equals":  "off", // another value changes the meaning of "="
}

// unusableValues is SQL that replaces two of the owner's values, and only where Atoll cannot work with them.
const unusableValues = `
select set_config('search_path', '"$user", public', false) where current_schema() is null;
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'`

// Configure changes the config: each connection of it sets the default settings and the given ones, of which one with a
// default's name replaces the default. A later call replaces an earlier one.
func Configure(config *pgx.ConnConfig, settings Settings) {
	all := maps.Clone(defaults)
	maps.Copy(all, settings)
	var sql strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&sql, "set %s = '%s';", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	text := sql.String()
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		statements := text
		if serverMajor(conn) >= 17 {
			statements += "set transaction_timeout = 0;"
		}
		if _, err := conn.Exec(ctx, statements+unusableValues).ReadAll(); err != nil {
			return fmt.Errorf("setting up the session: %w", err)
		}
		return nil
	}
}

// serverMajor returns the server's major version, 0 if the server does not report it.
func serverMajor(conn *pgconn.PgConn) int {
	digits, _, _ := strings.Cut(conn.ParameterStatus("server_version"), ".")
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i]
	}
	major, _ := strconv.Atoi(digits)
	return major
}

// ParsePool parses a DSN for a pool whose connections have the default settings.
func ParsePool(dsn string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	Configure(config.ConnConfig, nil)
	return config, nil
}

// Connect opens one connection that has the default settings.
func Connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	Configure(config, nil)
	return pgx.ConnectConfig(ctx, config)
}

// ConnectReplication opens a connection that takes the commands of PostgreSQL's replication protocol, and no SQL that
// depends on a session's settings.
func ConnectReplication(ctx context.Context, dsn string) (*pgconn.PgConn, error) {
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the server's address: %w", err)
	}
	config.RuntimeParams["replication"] = "true"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connecting for replication: %w", err)
	}
	return conn, nil
}
