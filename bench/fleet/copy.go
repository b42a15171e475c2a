package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bus"
)

// A million works cannot be made by a million API calls: each costs 5 ms of processor time. So one work is made by the
// API, delivered, and acknowledged by an agent. Its rows are then copied with other ids, names, contents and hashes.

// The sample's texts occur nowhere else, so that the copies can replace them also in binary columns.
const (
	sampleConsumer = "sample-consumer"
	sampleID       = "sample-work"
)

// rowTexts are the texts in which the rows of two works differ.
type rowTexts struct{ id, consumer, filler, hash string }

func (t rowTexts) list() []string { return []string{t.filler, t.hash, t.id, t.consumer} }

// sample is a work that was made by the API, delivered and acknowledged.
type sample struct {
	rowTexts
	life   string // of the database
	tables []sampleTable
}

// sampleTable has the sample's rows of one table, in the format of COPY.
type sampleTable struct {
	name, columns string
	rows          string
}

// makeSample makes the sample by the API, waits until it is acknowledged, reads its rows and deletes them.
func makeSample(ctx context.Context, b *bed.Bed, size int) (s sample, err error) {
	hash := appliedHash(sampleID, 1)
	s.rowTexts = rowTexts{sampleID, sampleConsumer, b.Filler(size), hex.EncodeToString(hash[:])}
	if err := b.RegisterNamed(sampleConsumer); err != nil {
		return s, err
	}
	if s.life, err = acknowledgeOne(ctx, b, s.rowTexts); err != nil {
		return s, err
	}
	conn, err := pgx.Connect(ctx, b.DSN)
	if err != nil {
		return s, err
	}
	defer conn.Close(ctx)
	if s.tables, err = readSample(ctx, conn, s.rowTexts); err != nil {
		return s, err
	}
	return s, deleteRows(ctx, conn, sampleID, sampleConsumer)
}

// acknowledgeOne makes a work by the API and acknowledges it as its agent does. It returns the life of the database,
// which the agent received with the work.
func acknowledgeOne(ctx context.Context, b *bed.Bed, t rowTexts) (life string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	lives := make(chan string, 1)
	var client *bus.Client
	client, err = b.Agent(t.consumer, func(e bus.Event) {
		if e.Type != work.SpecCreate || e.Extensions[work.ExtResourceID] != t.id {
			return
		}
		status := bed.Status(t.consumer, t.id, "1", t.hash, time.Now().UnixMilli()<<22)
		_ = client.PublishAsync(ctx, bed.AgentTopic(t.consumer), status, func(error) {})
		select {
		case lives <- e.Extensions[work.ExtLife]:
		default: // a repetition
		}
	}, nil)
	if err != nil {
		return "", err
	}
	running.Go(func() { _ = client.Run(ctx) })
	if err := bed.Await(ctx, 2*time.Millisecond, func() error { return client.Check(ctx) }); err != nil {
		return "", err
	}
	if err := b.Publish(ctx, bed.SpecOf(work.SpecCreate, t.consumer, t.id, t.filler)); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, b.DSN)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := bed.Await(ctx, 20*time.Millisecond, func() error {
		var complete bool
		err := conn.QueryRow(ctx, `select acknowledged = wanted and attempts = 1 from ledger where id = $1`, t.id).Scan(
			&complete)
		if err == nil && !complete {
			err = fmt.Errorf("work %s is not acknowledged, or its attempt is not recorded", t.id)
		}
		return err
	}); err != nil {
		return "", err
	}
	return <-lives, nil
}

// generatedTables are filled by triggers.
var generatedTables = []string{"feed", "tally"}

// readSample reads the rows about a work from all tables. It leaves out the columns in which each row has a value of
// its own: the transaction and numbers that the database generates.
func readSample(ctx context.Context, conn *pgx.Conn, t rowTexts) ([]sampleTable, error) {
	rows, err := conn.Query(ctx, `select relname, (select string_agg(quote_ident(attname), ', ' order by attnum)
			from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped and attidentity = ''
			and atttypid <> 'xid8'::regtype)
		from pg_class c where relnamespace = 'public'::regnamespace and relkind = 'r' and relname <> all($1) order by 1`,
		generatedTables)
	if err != nil {
		return nil, err
	}
	tables, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (table sampleTable, err error) {
		err = row.Scan(&table.name, &table.columns)
		return table, err
	})
	if err != nil {
		return nil, err
	}
	var found []sampleTable
	for _, table := range tables {
		var content bytes.Buffer
		_, err := conn.PgConn().CopyTo(ctx, &content, fmt.Sprintf(
			"copy (select %s from %s t where to_jsonb(t)::text like '%%%s%%') to stdout", table.columns, table.name, t.id))
		if err != nil {
			return nil, fmt.Errorf("reading the sample's rows of %s: %w", table.name, err)
		}
		if table.rows = content.String(); table.rows != "" {
			found = append(found, table)
		}
	}
	return found, nil
}

// deleteRows deletes all rows that have one of the texts.
func deleteRows(ctx context.Context, conn *pgx.Conn, texts ...string) error {
	rows, err := conn.Query(ctx, `select relname from pg_class where relnamespace = 'public'::regnamespace
		and relkind = 'r' and relname <> all($1)`, generatedTables)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, table := range tables {
		for _, text := range texts {
			if _, err := conn.Exec(ctx, fmt.Sprintf("delete from %s t where to_jsonb(t)::text like '%%%s%%'", table,
				text)); err != nil {
				return fmt.Errorf("deleting rows of %s: %w", table, err)
			}
		}
	}
	return nil
}

// copyBatch is the number of works of one transaction.
const copyBatch = 5000

// store stores n works as copies of the sample, several batches at the same time. textsOf returns the texts of the
// i-th work.
func (s sample) store(ctx context.Context, dsn string, n int, textsOf func(i int) rowTexts) error {
	group, batchCtx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for first := 0; first < n; first += copyBatch {
		group.Go(func() error {
			works := make([]rowTexts, min(copyBatch, n-first))
			for i := range works {
				works[i] = textsOf(first + i)
			}
			return s.storeBatch(batchCtx, dsn, works)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// Stores fold the tally while documents come one by one.
	if _, err := conn.Exec(ctx, `with every as (delete from tally returning kind, n)
		insert into tally select kind, sum(n) from every group by kind`); err != nil {
		return err
	}
	// The statistics are those that the database would have collected while the works came one by one. The checkpoint
	// and the writing of dirty pages belong to the preparation, too.
	if _, err := conn.Exec(ctx, "vacuum (analyze)"); err != nil {
		return err
	}
	super, err := pgx.Connect(ctx, strings.Replace(dsn, "//maestro@", "//postgres@", 1))
	if err != nil {
		return err
	}
	defer super.Close(ctx)
	_, err = super.Exec(ctx, "checkpoint")
	return err
}

func (s sample) storeBatch(ctx context.Context, dsn string, works []rowTexts) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, table := range s.tables {
			reader, writer := io.Pipe()
			go func() {
				out := bufio.NewWriterSize(writer, 1<<20)
				for _, w := range works {
					if _, err := s.replacer(w).WriteString(out, table.rows); err != nil {
						writer.CloseWithError(err)
						return
					}
				}
				writer.CloseWithError(out.Flush())
			}()
			_, err := tx.Conn().PgConn().CopyFrom(ctx, reader, fmt.Sprintf("copy %s (%s) from stdin", table.name,
				table.columns))
			if err := errors.Join(err, reader.Close()); err != nil {
				return fmt.Errorf("copying works into %s: %w", table.name, err)
			}
		}
		return nil
	})
}

// replacer replaces the sample's texts by those of another work, as text and in the hexadecimal form of binary columns.
func (s sample) replacer(w rowTexts) *strings.Replacer {
	var pairs []string
	copied := w.list()
	for i, text := range s.list() {
		pairs = append(pairs, text, copied[i], hex.EncodeToString([]byte(text)), hex.EncodeToString([]byte(copied[i])))
	}
	return strings.NewReplacer(pairs...)
}
