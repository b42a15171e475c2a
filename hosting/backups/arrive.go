package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

// arrive makes the data of a plane that comes from another management cluster: it stores the request for the data, and
// reads the data once the store has it. It retries after each error until ctx ends, except after one of damaged data.
// It also retries while a decision of the move is damaged: to give up then would leave a plane that this side has
// claimed on no side.
func (b *Backups) arrive(ctx context.Context, id controlplane.ID, p *preparation) {
	log := b.o.Log.With("plane", id.String(), "move", controlplane.MoveOf(p.order.ID))
	b.show(id, p, controlplane.Preparation{State: controlplane.PreparationWaits,
		Message: "the other management cluster has not stored the plane's data yet"})
	var final error // an error that a retry cannot mend
	var departure *controlplane.Departure
	err := retryMove(ctx, func() error {
		err := b.arriveOnce(ctx, id, p)
		if err == nil {
			departure, err = readDeparture(b.o.Staging(id, p.order.ID))
		}
		if errors.Is(err, errDamaged) || errors.Is(err, backup.ErrSuperseded) || errors.Is(err, backup.ErrWithdrawn) {
			final, err = err, nil
		}
		return err
	}, func(err error) {
		log.Warn("the data of a plane that arrives could not be read; it is tried again", "error", err)
	})
	switch {
	case err != nil: // ctx has ended
	case final != nil:
		log.Warn("the data of a plane that arrives cannot be used", "error", final)
		b.show(id, p, controlplane.Preparation{State: controlplane.PreparationFailed, Message: failureMessage(final)})
	default:
		log.Info("the data of a plane that arrives is there")
		b.show(id, p, controlplane.Preparation{State: controlplane.PreparationDone, Departure: departure})
	}
}

// errRecord is the error of a record of how a plane ran before that cannot be read. Without the record the plane would
// start with a release that has failed, or execute an order twice.
var errRecord = errors.New("the record of how the plane ran before is damaged")

// readDeparture returns how a plane ran before, whose data is in a staging directory; the zero value when it has no
// record, as from an earlier version. The error is errDamaged and errRecord when the record is damaged.
func readDeparture(staging string) (*controlplane.Departure, error) {
	d := &controlplane.Departure{}
	content, err := os.ReadFile(filepath.Join(staging, controlplane.StagedRecord))
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(content, d); err != nil {
		return nil, fmt.Errorf("%w: %w: %w", errDamaged, errRecord, err)
	}
	return d, nil
}

// errDamaged is the error of a plane's data that is not what the source has stored.
var errDamaged = errors.New("the data of the move")

// arriveOnce reads the data once. Before the plane can start with the data, arriveOnce claims the move, because the
// source may have withdrawn it, and takes the backups of the plane: from then on the other management cluster cannot
// run the plane, not even with an older copy of its disk. It does neither when the plane's record is damaged: the
// source can take the plane back. When the disk has damaged the record since, arriveOnce reads the data again.
func (b *Backups) arriveOnce(ctx context.Context, id controlplane.ID, p *preparation) error {
	staging, move := b.o.Staging(id, p.order.ID), controlplane.MoveOf(p.order.ID)
	if _, err := readPrepared(staging); err == nil {
		if _, err := readDeparture(staging); !errors.Is(err, errDamaged) {
			return err
		}
	}
	_, err := backup.GetHandoverRequest(ctx, b.o.Store, b.o.KMS, backup.Plane(id), move)
	if errors.Is(err, backup.ErrNotFound) {
		err = backup.PutHandoverRequest(ctx, b.o.Store, b.o.KMS, backup.Plane(id), move,
			backup.HandoverRequest{Endpoint: b.o.Endpoint})
	}
	if err != nil {
		return err
	}
	err = b.download(ctx, id, move, staging)
	owner, ownerErr := b.readOwner(id)
	switch {
	case ownerErr != nil:
		return ownerErr
	case errors.Is(err, backup.ErrNotFound), errors.Is(err, backup.ErrCorrupt): // a withdrawn move needs no data
		if declined := b.records.DeclineWithdrawn(ctx, backup.Plane(id), move, owner); declined != nil {
			return declined
		}
		if errors.Is(err, backup.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", errDamaged, err)
		}
		return err
	case err != nil:
		return err
	}
	if _, err := readDeparture(staging); err != nil {
		return err
	}
	if err := b.records.ClaimHandover(ctx, backup.Plane(id), move, owner); err != nil {
		return err
	}
	if err := b.take(ctx, id); err != nil {
		return fmt.Errorf("taking the backups of a plane that arrives: %w", err)
	}
	content, err := json.Marshal(prepared{Restores: time.Now().UTC(), Next: 1})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(staging, preparedName), content, 0o600)
}

// arrivedName is the file in a staging directory that shows that the data of a move beside it is complete. Its content
// is the sum of backup.GetHandover.
const arrivedName = "arrived"

// download reads the data of a move into a staging directory, unless an earlier attempt has: the claim of the plane
// after it may have to be repeated, and the data may have gigabytes. The source can store the data again, which then
// has another sum.
func (b *Backups) download(ctx context.Context, id controlplane.ID, move, staging string) error {
	have, err := os.ReadFile(filepath.Join(staging, arrivedName))
	if err != nil { // also when it cannot be read
		have = nil
	}
	if _, err := readDeparture(staging); err != nil { // the disk may have damaged it since
		have = nil
	}
	sum, err := backup.GetHandover(ctx, b.o.Store, b.o.KMS, backup.Plane(id), move, string(have),
		func(data io.Reader) error {
			if err := os.RemoveAll(staging); err != nil {
				return err
			}
			if err := os.MkdirAll(staging, 0o700); err != nil {
				return err
			}
			return unpack(data, staging)
		})
	if err != nil || sum == string(have) {
		return err
	}
	return atomicfile.Write(filepath.Join(staging, arrivedName), []byte(sum), 0o600)
}

// removeHandover removes the objects of a move after the plane has arrived. Objects that it cannot remove stay in the
// store until the cluster's backups are removed.
func (b *Backups) removeHandover(id controlplane.ID, move string) {
	b.running.Go(func() { b.discardHandover(b.ctx, id, move) })
}

// discardHandover removes the objects of a move within answerLimit, and logs an error.
func (b *Backups) discardHandover(ctx context.Context, id controlplane.ID, move string) {
	attempt, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := backup.RemoveHandover(attempt, b.o.Store, backup.Plane(id), move); err != nil && ctx.Err() == nil {
		b.o.Log.Warn("the data of a finished move could not be removed from the store", "plane", id.String(),
			"move", move, "error", err)
	}
}
