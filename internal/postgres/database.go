package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"atoll.dev/internal/pgsession"
)

// EnsureDatabase makes the role owner and the database db that belongs to it, where they do not exist yet. Only the
// owner and the superuser may connect to it. It is idempotent, may be interrupted and repeated, and may run at the same
// time in several processes.
func (c *Cluster) EnsureDatabase(ctx context.Context, db, owner string) error {
	conn, err := pgsession.Connect(ctx, c.DSN("postgres", Superuser))
	if err != nil {
		return fmt.Errorf("making database %s: %w", db, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	role, name := pgx.Identifier{owner}.Sanitize(), pgx.Identifier{db}.Sanitize()

	var hasRole, hasDatabase bool
	err = conn.QueryRow(
		ctx, `select exists (select from pg_roles where rolname = $1), exists (select from pg_database where datname = $2)`,
		owner, db).Scan(&hasRole, &hasDatabase)
	if err != nil {
		return fmt.Errorf("making database %s: %w", db, err)
	}
	if !hasRole {
		if err := ignoreExists(conn.Exec(ctx, `create role `+role+` login`)); err != nil {
			return fmt.Errorf("making role %s: %w", owner, err)
		}
	}
	if !hasDatabase {
		if err := ignoreExists(conn.Exec(ctx, `create database `+name+` owner `+role+
			` template template0`)); err != nil {
			return fmt.Errorf("making database %s: %w", db, err)
		}
	}
	// Each time, not only after making it: an interrupted call may have left the last step out.
	for _, stmt := range []string{
		`alter database ` + name + ` owner to ` + role,
		`revoke all on database ` + name + ` from public`,
	} {
		if err := execWithRetry(ctx, conn, stmt); err != nil {
			return fmt.Errorf("making database %s: %w", db, err)
		}
	}
	return nil
}

// execWithRetry runs a statement, and repeats it up to ten times when another session changes the same
// catalogue row.
func execWithRetry(ctx context.Context, conn *pgx.Conn, stmt string) error {
	var err error
	for range 10 {
		_, err = conn.Exec(ctx, stmt)
		// "tuple concurrently updated"
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "XX000" {
			return err
		}
	}
	return err
}

// ignoreExists returns nil for the error of an object that exists: another process made it
// in the meantime.
func ignoreExists(_ pgconn.CommandTag, err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code {
		case "42710", "42P04", "23505": // duplicate_object, duplicate_database, unique_violation in the catalogue
			return nil
		}
	}
	return err
}
