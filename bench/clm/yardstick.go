package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/postgres"
)

// stockSettings undoes what internal/postgres sets, so that the bench measures a server with PostgreSQL's defaults.
var stockSettings = map[string]string{
	"jit": "on", "wal_compression": "off", "max_connections": "100", "min_wal_size": "80MB",
	"log_min_duration_statement": "-1",
}

// yardstick measures the machine: the processor time of PostgreSQL for one simple write of pgbench. Processor times
// divided by it can be compared between machines, and between runs on a machine that is busy.
type yardstick struct {
	cluster *postgres.Cluster
	times   []time.Duration // one for each measurement
}

const yardstickScale = "10"

var processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)

// newYardstick makes pgbench's tables in a database of their own.
func newYardstick(ctx context.Context, c *postgres.Cluster) (*yardstick, error) {
	y := &yardstick{cluster: c}
	if err := c.EnsureDatabase(ctx, "yardstick", "yardstick"); err != nil {
		return nil, err
	}
	_, err := y.pgbench(ctx, "-i", "-q", "-s", yardstickScale)
	return y, err
}

func (y *yardstick) pgbench(ctx context.Context, args ...string) (string, error) {
	program := filepath.Join(y.cluster.Binaries.Dir, "pgbench")
	cmd := exec.CommandContext(ctx, program, append(args, y.cluster.DSN("yardstick", "yardstick"))...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return string(out), nil
}

// measure runs pgbench once more.
func (y *yardstick) measure(ctx context.Context, at *target) error {
	_, before, err := at.cpu()
	if err != nil {
		return err
	}
	out, err := y.pgbench(ctx, "-N", "-n", "-M", "prepared", "-c", "8", "-j", "2", "-T",
		strconv.Itoa(max(1, int(duration.Seconds()/2))))
	if err != nil {
		return err
	}
	m := processed.FindStringSubmatch(out)
	if m == nil {
		return fmt.Errorf("pgbench did not say how many transactions there were:\n%s", out)
	}
	// Until the sessions of pgbench have ended and been waited for, their time may be in nobody's account.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(500 * time.Millisecond):
	}
	n, err := strconv.Atoi(m[1])
	if err != nil || n == 0 {
		return fmt.Errorf("pgbench made %s transactions", m[1])
	}
	_, after, err := at.cpu()
	y.times = append(y.times, (after-before)/time.Duration(n))
	return err
}

// unit is the mean of the last two measurements, 0 if there are none.
func (y *yardstick) unit() time.Duration {
	if y == nil || len(y.times) == 0 {
		return 0
	}
	sum := time.Duration(0)
	last := y.times[max(0, len(y.times)-2):]
	for _, t := range last {
		sum += t
	}
	return sum / time.Duration(len(last))
}

// size returns the size of the database on disk, in MB, after a vacuum.
func (b *bench) size(ctx context.Context) (map[string]any, error) {
	conn, err := pgx.Connect(ctx, b.target.dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	figures := map[string]any{}
	var bytes int64
	if err := conn.QueryRow(ctx, "select pg_database_size(current_database())").Scan(&bytes); err != nil {
		return nil, err
	}
	figures["database_mb"] = float64(bytes) / 1e6
	rows, err := conn.Query(ctx, `select relname, pg_total_relation_size(oid), pg_indexes_size(oid) from pg_class
		where relkind = 'r' and relnamespace = 'public'::regnamespace and pg_total_relation_size(oid) > 1000000`)
	if err != nil {
		return nil, err
	}
	var name string
	var indexes int64
	_, err = pgx.ForEachRow(rows, []any{&name, &bytes, &indexes}, func() error {
		figures[name+"_mb"], figures[name+"_indexes_mb"] = float64(bytes)/1e6, float64(indexes)/1e6
		return nil
	})
	return figures, err
}
