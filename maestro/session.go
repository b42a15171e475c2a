package maestro

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// query runs a query of one row on a separate session, with a time limit.
func query(ctx context.Context, conn *pgx.Conn, sql string, result any, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return conn.QueryRow(ctx, sql, args...).Scan(result)
}
