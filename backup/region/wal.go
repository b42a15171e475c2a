package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/klauspost/compress/zstd"
)

// maxPiece is the size in bytes at which a piece is stored although storeEvery has not passed.
const maxPiece = 4 << 20

// stallLimit bounds the time between two messages of the server, which sends at least one every wal_sender_timeout/2
// (30 s by default).
const stallLimit = 2 * time.Minute

// newCompressor returns an encoder for pieces and base backups.
func newCompressor() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true))
}

// walStream receives the WAL and stores it in pieces.
type walStream struct {
	s        *session
	compress *zstd.Encoder
	buffer   []byte    // the received WAL that is not stored, up to position
	position LSN       // end of the received WAL
	due      *Sample   // the buffer is stored when position has reached it; nil: the next sample is not read yet
	dueRead  time.Time // when due was read, by this process's clock
	covered  time.Time // the time of the last piece or mark
}

// copyWAL stores the WAL from the archive's end on, until ctx ends or something fails.
func (s *session) copyWAL(ctx context.Context) error {
	err := pglogrepl.StartReplication(ctx, s.replication, s.c.archive.slot(), s.c.end,
		pglogrepl.StartReplicationOptions{Timeline: s.timeline, Mode: pglogrepl.PhysicalReplication})
	if err != nil {
		return fmt.Errorf("receiving from %s on: %w", s.c.end, err)
	}
	w := &walStream{s: s, position: s.c.end}
	if w.compress, err = newCompressor(); err != nil {
		return err
	}
	defer w.compress.Close()
	lastMessage, nextStore := time.Now(), time.Now()
	for {
		received, err := w.receive(ctx, nextStore)
		if err != nil {
			return err
		}
		if received {
			lastMessage = time.Now()
		} else if time.Since(lastMessage) > stallLimit {
			return fmt.Errorf("the server has sent nothing for %s", stallLimit)
		}
		if now := time.Now(); w.due == nil && !now.Before(nextStore) {
			nextStore = now.Add(storeEvery)
			sample, err := s.sample(ctx)
			if err != nil {
				return err
			}
			w.due, w.dueRead = &sample, now
		}
		if len(w.buffer) >= maxPiece || w.due != nil && w.position >= w.due.Position {
			begun := time.Now()
			if err := w.store(ctx); err != nil {
				return err
			}
			lastMessage = lastMessage.Add(time.Since(begun)) // meanwhile nothing was received
		}
	}
}

// receive handles one message of the server. It returns false when no message has come until a moment. While the WAL up
// to due is missing, it waits for storeEvery instead.
func (w *walStream) receive(ctx context.Context, until time.Time) (received bool, err error) {
	if w.due != nil {
		until = time.Now().Add(storeEvery)
	}
	bounded, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	message, err := w.s.replication.ReceiveMessage(bounded)
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil && pgconn.Timeout(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("receiving: %w", err)
	}
	switch m := message.(type) {
	case *pgproto3.ErrorResponse:
		return false, pgconn.ErrorResponseToPgError(m)
	case *pgproto3.CopyDone:
		return false, errors.New("the server ends the stream: its timeline has changed")
	case *pgproto3.CopyData:
		return true, w.take(ctx, m.Data)
	}
	return true, nil
}

// take handles a message of the stream: WAL, or a request for the position.
func (w *walStream) take(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errors.New("the server sent an empty message")
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return err
		}
		if k.ReplyRequested {
			return w.confirm(ctx)
		}
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return err
		}
		if x.WALStart != w.position {
			return fmt.Errorf("the server sent WAL from %s on, not from %s", x.WALStart, w.position)
		}
		w.buffer = append(w.buffer, x.WALData...)
		w.position += LSN(len(x.WALData))
	}
	return nil
}

// confirm reports the end of the stored WAL to the server; the slot keeps the WAL after it.
func (w *walStream) confirm(ctx context.Context) error {
	return pglogrepl.SendStandbyStatusUpdate(ctx, w.s.replication, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: w.position, WALFlushPosition: w.s.c.end, WALApplyPosition: w.s.c.end,
	})
}

// store stores the received WAL as a piece. When none was received, it stores a mark: nothing was written until due.
func (w *walStream) store(ctx context.Context) error {
	isCovered := w.due != nil && w.position >= w.due.Position
	if isCovered {
		w.covered, w.due = w.due.Time, nil
	}
	if len(w.buffer) == 0 {
		return w.storeMark(ctx)
	}
	p := Piece{Timeline: w.s.timeline, Start: w.s.c.end, End: w.position, Covered: w.covered}
	if p.Covered.IsZero() {
		p.Covered = time.UnixMilli(0)
	}
	if err := w.put(ctx, w.s.prefix()+p.name(), w.compress.EncodeAll(w.buffer, nil)); err != nil {
		return err
	}
	w.s.c.end, w.buffer = w.position, w.buffer[:0]
	if isCovered {
		w.s.c.noteCovered(w.covered, w.dueRead)
	}
	return w.confirm(ctx)
}

// mark means that the WAL up to Position has every transaction acknowledged before Time.
type mark = Sample

func (w *walStream) storeMark(ctx context.Context) error {
	text, err := json.Marshal(mark{w.covered, w.position})
	if err != nil {
		return err
	}
	if err := w.put(ctx, w.s.prefix()+markObject, text); err != nil {
		return err
	}
	w.s.c.noteCovered(w.covered, w.dueRead)
	return w.confirm(ctx)
}

// put stores an object of the stream, and retries until the store has it: an error of the store must not end the
// session, and with it a base backup in progress. Meanwhile put repeats the confirmation, so that the server keeps the
// connection.
func (w *walStream) put(ctx context.Context, name string, text []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	stored := make(chan error, 1)
	go func() { stored <- w.s.putWALUntilStored(ctx, name, text) }()
	defer cancel()
	for {
		select {
		case err := <-stored:
			return err
		case <-time.After(storeEvery):
			if err := w.confirm(ctx); err != nil {
				cancel()
				<-stored
				return err
			}
		}
	}
}
