package region

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"atoll.dev/envelope"
)

// session holds the two connections over which a Copier copies a region: one for replication and one for SQL.
type session struct {
	c           *Copier
	box         *envelope.Box
	replication *pgconn.PgConn // only copyWAL uses it

	sqlMu sync.Mutex
	sql   *pgx.Conn // guarded by sqlMu

	timeline    int32
	version     int // major
	segmentSize int64
}

// prefix is that of the objects of the session's archive.
func (s *session) prefix() string { return regionPrefix(s.c.o.Region) + string(s.c.archive) + "/" }

// query runs a statement that returns one row.
func (s *session) query(ctx context.Context, sql string, args []any, targets ...any) error {
	s.sqlMu.Lock()
	defer s.sqlMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.sql.QueryRow(ctx, sql, args...).Scan(targets...)
}

// sample reads the server's clock, and then how far the server has written its WAL.
func (s *session) sample(ctx context.Context) (Sample, error) {
	var at time.Time
	var flushed string
	err := s.query(ctx, `with clock as materialized (select clock_timestamp() as at)
		select at, pg_current_wal_flush_lsn()::text from clock`, nil, &at, &flushed)
	if err != nil {
		return Sample{}, fmt.Errorf("reading the server's position: %w", err)
	}
	position, err := pglogrepl.ParseLSN(flushed)
	return Sample{at.UTC().Truncate(time.Millisecond), position}, err
}

// readServerFacts reads the timeline, the major version and the size of WAL segments of the server.
func (s *session) readServerFacts(ctx context.Context) error {
	system, err := pglogrepl.IdentifySystem(ctx, s.replication)
	if err != nil {
		return fmt.Errorf("identifying the server: %w", err)
	}
	s.timeline = system.Timeline
	err = s.query(ctx, `select current_setting('server_version_num')::int / 10000,
		(select setting::bigint from pg_settings where name = 'wal_segment_size')`, nil, &s.version, &s.segmentSize)
	if err != nil {
		return fmt.Errorf("reading the server's settings: %w", err)
	}
	return nil
}

// continueOrBeginArchive continues the archive that the server has a slot for, or begins one.
func (s *session) continueOrBeginArchive(ctx context.Context) error {
	if s.c.archive == "" {
		names, err := s.c.o.Store.List(ctx, regionPrefix(s.c.o.Region))
		if err != nil {
			return err
		}
		archives, _ := sortContents(s.c.o.Region, names)
		for _, a := range slices.Backward(archives) {
			if len(a.pieces) == 0 || a.pieces[0].Timeline != s.timeline {
				continue
			}
			var based time.Time
			if len(a.bases) > 0 {
				if based, err = timeOf(a.bases[len(a.bases)-1], basePrefix); err != nil {
					return err
				}
			}
			s.c.archive, s.c.end = a.name, endOf(a.pieces)
			s.c.noteBase(based)
			canContinue, err := s.canContinueArchive(ctx)
			if err != nil {
				s.c.archive = ""
				return err
			}
			if canContinue {
				return nil
			}
		}
	} else if canContinue, err := s.canContinueArchive(ctx); err != nil || canContinue {
		return err
	}
	return s.beginArchive(ctx)
}

// endOf returns how far pieces, which are sorted by their starts, reach from the first one on without a gap.
func endOf(pieces []Piece) LSN {
	end := pieces[0].End
	for _, p := range pieces {
		if p.Start <= end {
			end = max(end, p.End)
		}
	}
	return end
}

// canContinueArchive reports whether the server has the slot of the archive, all WAL after the archive's end, and has
// written at least up to that end. A server whose WAL ends before is not the one that wrote the archive: its disk was
// reset to an earlier state, and the WAL that it writes at these positions now differs.
func (s *session) canContinueArchive(ctx context.Context) (bool, error) {
	var restart pgtype.Text
	err := s.query(ctx, `select restart_lsn::text from pg_replication_slots
		where slot_name = $1 and wal_status <> 'lost' and pg_current_wal_flush_lsn() >= $2::text::pg_lsn`,
		[]any{s.c.archive.slot(), s.c.end.String()}, &restart)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the replication slot: %w", err)
	}
	if !restart.Valid {
		return false, nil
	}
	position, err := pglogrepl.ParseLSN(restart.String)
	return err == nil && position <= s.c.end, err
}

// beginArchive names a new archive, makes its slot, and drops the inactive slots of earlier archives.
func (s *session) beginArchive(ctx context.Context) error {
	now, err := s.sample(ctx)
	if err != nil {
		return err
	}
	random := make([]byte, 4)
	rand.Read(random)
	s.c.archive = archive(archivePrefix + now.Time.Format(timeFormat) + "-" + hex.EncodeToString(random))
	s.c.noteBase(time.Time{})
	var restart string
	err = s.query(ctx, `select (pg_create_physical_replication_slot($1, true)).lsn::text`,
		[]any{s.c.archive.slot()}, &restart)
	if err == nil {
		s.c.end, err = pglogrepl.ParseLSN(restart)
	}
	if err != nil {
		s.c.archive = ""
		return fmt.Errorf("creating a replication slot: %w", err)
	}
	s.c.end = segmentStart(s.c.end, s.segmentSize)
	var dropped int
	err = s.query(ctx, `select count(pg_drop_replication_slot(slot_name)) from pg_replication_slots
		where starts_with(slot_name, $1) and slot_name <> $2 and not active`,
		[]any{slotPrefix, s.c.archive.slot()}, &dropped)
	if err != nil {
		return fmt.Errorf("dropping the replication slots of earlier archives: %w", err)
	}
	s.c.o.Log.Info("a new archive of the region begins", "archive", string(s.c.archive), "dropped_slots", dropped)
	return nil
}

// put seals an object and stores it under its whole name.
func (s *session) put(ctx context.Context, name string, text []byte) error {
	object, err := s.box.Seal(name, text)
	if err != nil {
		return err
	}
	return s.c.o.Store.Put(ctx, name, object)
}

// putWALUntilStored calls put until that succeeds or ctx ends, and records each error.
func (s *session) putWALUntilStored(ctx context.Context, name string, text []byte) error {
	for pause := time.Second; ; pause = min(2*pause, maxPause) {
		err := s.put(ctx, name, text)
		if err == nil || ctx.Err() != nil {
			return err
		}
		s.c.noteError(fmt.Errorf("WAL: %w", err))
		s.c.o.Log.Warn("a part of the region's copy failed; it is tried again", slog.String("part", "WAL"),
			slog.Any("error", err))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// deleteExpiredHourly deletes expired objects every hour, until ctx ends or a deletion fails. It compares their times
// with the server's clock.
func (s *session) deleteExpiredHourly(ctx context.Context) error {
	for {
		now, err := s.sample(ctx)
		if err != nil {
			return err
		}
		n, err := deleteExpired(ctx, s.c.o, s.c.archive, now.Time)
		if err != nil {
			return err
		}
		s.c.noteProblem("retention", nil)
		if n > 0 {
			s.c.o.Log.Info("deleted expired parts of the region's copy", "objects", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(deleteExpiredEvery):
		}
	}
}
