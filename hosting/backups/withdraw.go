package backups

import (
	"context"
	"errors"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

// withdrawnMessage is the message of a move whose order was withdrawn after the file leftName was written.
const withdrawnMessage = "the order was withdrawn; the plane runs here again"

// beginWithdrawal begins to take back a plane whose order to move was withdrawn after the file leftName was written.
// The caller holds Backups.mu. before is the present leaving of the plane; nil after a restart.
func (b *Backups) beginWithdrawal(id controlplane.ID, before *leaving) {
	if before != nil && before.isWithdrawal {
		return
	}
	have, err := b.readLeft(id)
	if err != nil || have.Move == "" { // when the file is damaged, IsSuperseded reports true and the plane stays stopped
		return
	}
	if b.ctx == nil {
		b.asked[id] = true
	}
	if b.ctx == nil || b.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(b.ctx)
	l := &leaving{move: have.Move, cancel: cancel, done: make(chan struct{}), stopped: make(chan struct{}),
		isNoted: true, isWithdrawal: true}
	l.state = controlplane.Leaving{State: controlplane.LeavingStores, Endpoint: have.Endpoint,
		Message: "the order was withdrawn; the other management cluster has not confirmed it yet"}
	b.leaving[id] = l
	if before != nil {
		before.cancel()
	}
	b.running.Go(func() {
		defer close(l.done)
		defer cancel()
		if before != nil {
			<-before.done
		}
		b.withdraw(ctx, id, l)
	})
}

// withdraw takes a plane back, unless another management cluster has it: then the plane stays superseded here. It
// retries after each error, until ctx ends.
func (b *Backups) withdraw(ctx context.Context, id controlplane.ID, l *leaving) {
	log := b.o.Log.With("plane", id.String(), "move", l.move)
	plane, isTaken := backup.Plane(id), false
	err := retryMove(ctx, func() error {
		identity, err := b.readIdentity(id)
		if err == nil {
			err = b.records.WithdrawHandover(ctx, plane, l.move, identity)
		}
		if isTaken = errors.Is(err, backup.ErrSuperseded); isTaken {
			return nil
		}
		return err
	}, func(err error) { log.Warn("a move could not be withdrawn; it is tried again", "error", err) })
	switch {
	case err != nil: // ctx has ended
	case isTaken:
		log.Info("a move was withdrawn too late: another management cluster has the plane")
	default:
		b.discardHandover(ctx, id, l.move) // before endMove, so that the next process repeats it after a kill
		err := retryMove(ctx, func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if err := ctx.Err(); err != nil {
				return err
			}
			return b.endMove(id, l, withdrawnMessage)
		}, func(err error) { log.Warn("a withdrawn move could not be ended; it is tried again", "error", err) })
		if err != nil {
			return
		}
		log.Info("a move was withdrawn; the plane runs here again")
		b.changed(id)
	}
}
