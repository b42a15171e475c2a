package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/clm"
	"atoll.dev/internal/postgres"
)

// idle measures a region at rest: -idle clusters with two node pools each, all placed and reconciled,
// no adapter and no client. It starts the lifecycle manager (API, sentinel, fleet, and a broker) in a
// process of its own, and prints how long the start takes, what memory it needs, and the processor
// time of the process and of PostgreSQL, for the start and for each second of -for at rest.
//
// With -crashes it then kills the process and PostgreSQL in turn; see crash.
func idle(ctx context.Context, cluster *postgres.Cluster, database *database) error {
	postgresPid := database.PID()
	dsn := cluster.DSN("clm", "clm")
	began := time.Now()
	stored, err := hasIdle(ctx, dsn, *idleClusters)
	if err != nil {
		return err
	}
	if !stored {
		if err := storeIdle(ctx, dsn, *idleClusters); err != nil {
			return fmt.Errorf("storing clusters: %w", err)
		}
		fmt.Fprintf(os.Stderr, "%d clusters stored in %s\n", *idleClusters, time.Since(began).Round(time.Second))
	}
	figures := map[string]any{}
	before, err := bed.ProcessorTime(postgresPid)
	if err != nil {
		return err
	}
	began = time.Now()
	options, err := serverOptions(dsn)
	if err != nil {
		return err
	}
	defer os.RemoveAll(options.Dir)
	server, err := startServer(ctx, options)
	if err != nil {
		return err
	}
	defer func() { server.stop() }()
	figures["start_seconds"] = time.Since(began).Seconds()
	if err := server.waitComplete(ctx); err != nil {
		return err
	}
	figures["all_read_seconds"] = time.Since(began).Seconds()
	own, err := bed.ProcessorTime(server.pid())
	if err != nil {
		return err
	}
	after, err := bed.ProcessorTime(postgresPid)
	if err != nil {
		return err
	}
	figures["start_cpu_seconds"], figures["start_postgres_cpu_seconds"] = own.Seconds(), (after - before).Seconds()
	figures["start_peak_mib"] = memoryPeak(server.pid())
	for _, part := range []string{"settling", "rest"} { // in the first it ends the work that its start began
		if err := measureRest(ctx, part, server.pid(), postgresPid, figures); err != nil {
			return err
		}
	}
	figures["peak_mib"] = memoryPeak(server.pid())
	if *crashes {
		victims := []victim{
			{"lifecycle_manager", func(ctx context.Context) (err error) {
				server.kill()
				server, err = startServer(ctx, options)
				return err
			}},
			{"postgres", func(ctx context.Context) (err error) {
				database.Kill()
				database.Process, err = cluster.Start(ctx, io.Discard)
				return err
			}},
		}
		if err := measureCrashes(ctx, options, victims, figures); err != nil {
			return err
		}
		figures["crashes_mib"] = memoryPeak(server.pid())
	}
	params := map[string]any{"clusters": *idleClusters, "node_pools": 2 * *idleClusters, "seconds": duration.Seconds()}
	return report.Line(os.Stdout, "lifecycle/idle", params, figures)
}

// measureRest measures the processor time and memory of a server and of PostgreSQL for -for.
func measureRest(ctx context.Context, part string, server, postgres int, figures map[string]any) error {
	began := time.Now()
	serverBefore, err := bed.ProcessorTime(server)
	if err != nil {
		return err
	}
	postgresBefore, err := bed.ProcessorTime(postgres)
	if err != nil {
		return err
	}
	if err := wait(ctx, *duration); err != nil {
		return err
	}
	serverAfter, err := bed.ProcessorTime(server)
	if err != nil {
		return err
	}
	postgresAfter, err := bed.ProcessorTime(postgres)
	if err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	figures[part+"_cores"] = (serverAfter - serverBefore).Seconds() / seconds
	figures[part+"_postgres_cores"] = (postgresAfter - postgresBefore).Seconds() / seconds
	figures[part+"_mib"] = memoryNow(server)
	return nil
}

// measureCrashes kills the victims in turn and measures how the region recovers; see crash.
func measureCrashes(ctx context.Context, options regionOptions, victims []victim, figures map[string]any) error {
	c, err := newCrash(ctx, options, *idleClusters)
	defer func() { _ = c.region.Close() }()
	if err != nil {
		return err
	}
	for _, v := range victims {
		if err := c.measure(ctx, v, figures); err != nil {
			return fmt.Errorf("after a crash of %s: %w", v.name, err)
		}
	}
	return nil
}

// hasIdle reports whether a database that -data has kept has the clusters. Another number of clusters is an error.
func hasIdle(ctx context.Context, dsn string, n int) (bool, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)
	var there bool
	err = conn.QueryRow(ctx, `select to_regclass('document') is not null`).Scan(&there)
	if err != nil || !there {
		return false, err
	}
	var have int
	err = conn.QueryRow(ctx, `select count(*) from document where kind = 'Cluster' and removed_at is null`).Scan(&have)
	if err == nil && have != n {
		err = fmt.Errorf("the directory of -data has %d clusters, not the %d of -idle", have, n)
	}
	return true, err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// storeIdle makes one cluster with two node pools through the API, has all their adapters report, and
// copies all rows about them in the database, under other ids.
func storeIdle(ctx context.Context, dsn string, n int) error {
	region, err := startRegion(ctx, regionOptions{DSN: dsn, Entities: string(clm.DefaultEntities), Fleet: true})
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return errors.Join(err, region.Close())
	}
	defer conn.Close(ctx)
	sample, err := makeSample(ctx, region)
	if err == nil {
		err = await(ctx, func() error { return saveCursors(ctx, region, sample.host, conn) })
	}
	if err = errors.Join(err, region.Close()); err != nil {
		return err
	}
	return sample.copy(ctx, conn, n)
}

// saveCursors returns an error until the sentinel's saved cursors are after all changes of the sample, as in a region
// at rest. It changes the management cluster, because a cursor moves with the changes that follow.
func saveCursors(ctx context.Context, r *region, host string, conn *pgx.Conn) error {
	err := r.Call(ctx, "PATCH", "/managementclusters/"+host, map[string]any{"labels": map[string]string{
		"changed": strconv.FormatInt(time.Now().UnixNano(), 10)}}, nil)
	if err != nil {
		return err
	}
	var before int
	err = conn.QueryRow(ctx, `select count(*) from sentinel_slot s where s.cursor = '' or exists (select from document d
		where d.kind <> 'ManagementCluster' and
			not pg_visible_in_snapshot(d.xid, nullif(split_part(s.cursor, '.', 2), '')::pg_snapshot))`).Scan(&before)
	if err == nil && before > 0 {
		err = fmt.Errorf("the cursors of %d slots are before the last change", before)
	}
	return err
}

// sampleName is the cluster's name; its last eight digits count the copies.
const sampleName = "sample-00000000"

// sample is a cluster that is copied. The last eight digits of its ids count the copies.
type sample struct {
	ids  []string
	host string // the management cluster
}

func makeSample(ctx context.Context, r *region) (s sample, err error) {
	var made resource
	post := func(path string, body any) {
		if err == nil {
			err = r.Call(ctx, "POST", path, body, &made)
		}
	}
	reported := func(path string, adapters ...string) {
		for _, adapter := range adapters {
			if err == nil {
				err = r.Call(ctx, "PUT", path+"/statuses", idleReport(adapter), nil)
			}
		}
	}
	post(
		"/managementclusters",
		map[string]any{"kind": "ManagementCluster", "name": "management-01", "spec": map[string]any{
			"capacity": map[string]any{"planes": 1_000_000}, "versions": []string{"1.36.3"}}},
	)
	s.host = made.ID
	if err == nil {
		err = reportAgent(ctx, r, s.host)
	}
	post("/clusters", map[string]any{"kind": "Cluster", "name": sampleName, "spec": map[string]any{
		"hostedCluster": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}},
		"creatorARN":    "arn:aws:iam::123456789012:user/ada", "note": strings.Repeat("x", 500)}})
	cluster := "/clusters/" + made.ID
	s.ids = append(s.ids, made.ID)
	if err == nil {
		err = place(ctx, r, made.ID)
	}
	for _, name := range []string{"one", "two"} {
		post(cluster+"/nodepools", map[string]any{"kind": "NodePool", "name": name, "spec": map[string]any{"replicas": 2}})
		s.ids = append(s.ids, made.ID)
		reported(cluster+"/nodepools/"+made.ID, "node-pool")
	}
	reported(cluster, "placement", "pull-secret", "hosted-cluster")
	return s, err
}

// reportAgent reports the agent of a management cluster as connected, as Maestro does.
func reportAgent(ctx context.Context, r *region, managementCluster string) error {
	return r.Call(ctx, "PUT", "/managementclusters/"+managementCluster+"/statuses", idleReport("maestro"), nil)
}

// place places a cluster. The error is not nil when it finds no room: fleet may not have read the report of the
// management cluster yet.
func place(ctx context.Context, r *region, cluster string) error {
	return await(ctx, func() error {
		var placed struct{ State, Message string }
		err := r.Call(ctx, "POST", "/clusters/"+cluster+"/placement", map[string]any{}, &placed)
		if err == nil && placed.State != "Placed" {
			err = fmt.Errorf("cluster %s is %s: %s", cluster, placed.State, placed.Message)
		}
		return err
	})
}

func idleReport(adapter string) map[string]any {
	var conditions []map[string]any
	for _, kind := range []string{"Applied", "Available", "Health"} {
		conditions = append(conditions, map[string]any{"type": kind, "status": "True", "reason": "AsExpected",
			"message": "on management cluster management-01"})
	}
	return map[string]any{
		"adapter": adapter, "observed_generation": 1, "observed_time": time.Now().UTC().Format(time.RFC3339Nano),
		"conditions": conditions, "data": map[string]any{"target_cluster": "management-01"},
	}
}

// copy stores n-1 copies of the sample's rows of each table: their text with other ids in it, also where
// the ids stand in binary columns. Triggers fill the tables feed and tally.
func (s sample) copy(ctx context.Context, conn *pgx.Conn, n int) error {
	rows, err := conn.Query(ctx, `select relname from pg_class where relnamespace = 'public'::regnamespace
		and relkind = 'r' and relname not in ('history', 'idempotency', 'feed', 'tally')`)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, table := range tables {
		if err := s.copyTable(ctx, conn, table, n); err != nil {
			return fmt.Errorf("copying rows of %s: %w", table, err)
		}
	}
	_, err = conn.Exec(ctx, `update reservation set placements = $1::int, reserved =
		(select jsonb_object_agg(key, value::text::bigint * $1::int) from jsonb_each(reserved))`, n)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `with every as (delete from tally returning kind, n)
		insert into tally select kind, sum(n) from every group by kind`)
	if err != nil {
		return err
	}
	if _, err = conn.Exec(ctx, "vacuum (analyze)"); err == nil {
		_, err = conn.Exec(ctx, "vacuum (full) tally") // the copies made a row each, which autovacuum would fold early
	}
	return err
}

// texts returns the texts that each copy replaces: the sample's name and ids.
func (s sample) texts() []string {
	texts := []string{sampleName}
	for _, id := range s.ids {
		if id != "" {
			texts = append(texts, id)
		}
	}
	return texts
}

func (s sample) copyTable(ctx context.Context, conn *pgx.Conn, table string, n int) error {
	held := "false"
	for _, text := range s.texts() {
		held += fmt.Sprintf(" or to_jsonb(t)::text like '%%%s%%'", text)
	}
	var rows bytes.Buffer
	_, err := conn.PgConn().CopyTo(ctx, &rows, fmt.Sprintf("copy (select * from %s t where %s) to stdout", table, held))
	if err != nil || rows.Len() == 0 {
		return err
	}
	reader, writer := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(writer, 1<<20)
		for i := 1; i < n; i++ {
			if _, err := s.renamed(i).WriteString(out, rows.String()); err != nil {
				writer.CloseWithError(err)
				return
			}
		}
		writer.CloseWithError(out.Flush())
	}()
	_, err = conn.PgConn().CopyFrom(ctx, reader, "copy "+table+" from stdin")
	return errors.Join(err, reader.Close())
}

// renamed replaces the sample's texts, as text and in hexadecimal, by those of a copy.
func (s sample) renamed(number int) *strings.Replacer {
	var pairs []string
	for _, text := range s.texts() {
		copied := fmt.Sprintf("%s%08x", text[:len(text)-8], number)
		pairs = append(pairs, text, copied, hex.EncodeToString([]byte(text)), hex.EncodeToString([]byte(copied)))
	}
	return strings.NewReplacer(pairs...)
}

// memoryNow returns the resident memory of a process in MiB, 0 if it has ended.
func memoryNow(pid int) float64 {
	now, _, _ := bed.Memory(pid)
	return now
}

// memoryPeak returns the highest resident memory of a process so far in MiB, 0 if it has ended.
func memoryPeak(pid int) float64 {
	_, most, _ := bed.Memory(pid)
	return most
}
