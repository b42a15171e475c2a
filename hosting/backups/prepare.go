package backups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

const (
	// reachLimit bounds the wait until the backup reaches the moment of a restore.
	reachLimit = 2 * time.Minute
	reachEvery = 250 * time.Millisecond
	// prepareTries bounds the attempts to make the data of a restore. A recovery has no such bound.
	prepareTries = 5
	// retryPrepare is the first wait after an error. It doubles with each error, up to retryPrepareLast.
	retryPrepare, retryPrepareLast = 2 * time.Second, time.Minute
	// answerLimit bounds one attempt to read whether the store has a plane, retryStoreLast the wait between two
	// attempts.
	answerLimit    = 30 * time.Second
	retryStoreLast = 15 * time.Second
	// preparedName is the file in a staging directory that shows that the data beside it is complete.
	preparedName = "prepared.json"
)

// preparation makes the data of one order.
type preparation struct {
	order  controlplane.RestoreOrder
	cancel context.CancelFunc
	done   chan struct{}
	state  controlplane.Preparation // guarded by Backups.mu

	isAbandoned bool // guarded by Backups.mu
}

// prepared is the content of the file preparedName.
type prepared struct {
	Restores time.Time `json:"restores"`
	Revision int64     `json:"revision"`      // of the last change restored
	Next     int64     `json:"next_revision"` // the revision with which etcd starts
	// Release is the release with which the plane was ready last; "": unknown.
	Release controlplane.Version `json:"release,omitempty"`
}

// Prepare begins to make the data of a restore in the plane's staging directory, and returns the state of that. It
// returns at once; Backups calls the function changed of Run after each change of the state. A caller may repeat it,
// also after a restart: complete data is not made again. An order with another ID ends the one before it.
func (b *Backups) Prepare(id controlplane.ID, o controlplane.RestoreOrder) controlplane.Preparation {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits := controlplane.Preparation{State: controlplane.PreparationWaits, Message: "hosting starts"}
	if b.ctx == nil {
		b.asked[id] = true
		return waits
	}
	if b.ctx.Err() != nil {
		return waits
	}
	before := b.preparing[id]
	if before != nil && before.order.ID == o.ID {
		return before.state
	}
	ctx, cancel := context.WithCancel(b.ctx)
	p := &preparation{order: o, cancel: cancel, done: make(chan struct{}), state: waits}
	p.state.Message = ""
	b.preparing[id] = p
	if before != nil {
		before.cancel()
	}
	b.running.Go(func() {
		defer close(p.done)
		defer cancel()
		if before != nil {
			<-before.done
		}
		b.prepare(ctx, id, p)
	})
	return p.state
}

// Forget ends the preparation of an order that was executed, has failed or was withdrawn, and removes its staging
// directory and, after a move, the objects of the move. It may be repeated.
func (b *Backups) Forget(id controlplane.ID, order string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	remove := func() {
		if err := os.RemoveAll(b.o.Staging(id, order)); err != nil {
			b.o.Log.Warn("the directory of a restore could not be removed", "plane", id.String(), "error", err)
		}
	}
	if move := controlplane.MoveOf(order); move != "" && b.ctx != nil && b.ctx.Err() == nil {
		b.removeHandover(id, move)
	}
	p := b.preparing[id]
	if p == nil || p.order.ID != order {
		remove()
		return
	}
	delete(b.preparing, id)
	p.cancel()
	b.running.Go(func() {
		<-p.done
		remove()
	})
}

// HasRemains reports whether the staging directory of an order still exists. Forget removes it.
func (b *Backups) HasRemains(id controlplane.ID, order string) bool {
	_, err := os.Lstat(b.o.Staging(id, order))
	return err == nil
}

// Abandon ends the preparation and the move of a plane that is being deleted, and reports whether both have ended: then
// nothing writes data in the plane's directory any more. Otherwise Backups calls the function changed of Run once they
// have ended, and the caller repeats the call.
func (b *Backups) Abandon(id controlplane.ID) (done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.asked, id)
	if p := b.preparing[id]; p != nil {
		select {
		case <-p.done:
			delete(b.preparing, id)
		default:
			if !p.isAbandoned {
				p.isAbandoned = true
				p.cancel()
				b.running.Go(func() {
					<-p.done
					b.changed(id)
				})
			}
			return false
		}
	}
	if l := b.leaving[id]; l != nil {
		l.cancel()
		select {
		case <-l.done:
			delete(b.leaving, id)
		default:
			b.running.Go(func() {
				<-l.done
				b.changed(id)
			})
			return false
		}
	}
	delete(b.windows, id)
	delete(b.listed, id)
	delete(b.damaged, id)
	return true
}

// show publishes the state of a preparation.
func (b *Backups) show(id controlplane.ID, p *preparation, state controlplane.Preparation) {
	b.mu.Lock()
	p.state = state
	b.mu.Unlock()
	b.changed(id)
}

// prepare makes the data, or computes the changes of a dry run.
func (b *Backups) prepare(ctx context.Context, id controlplane.ID, p *preparation) {
	if controlplane.MoveOf(p.order.ID) != "" {
		b.arrive(ctx, id, p)
		return
	}
	log := b.o.Log.With("plane", id.String(), "restore", p.order.ID)
	if p.order.ID == controlplane.Recovery && !b.isLost(ctx, id, p) {
		return
	}
	err := b.awaitReach(ctx, id, p)
	for try, wait := 1, retryPrepare; err == nil; try, wait = try+1, min(2*wait, retryPrepareLast) {
		var state controlplane.Preparation
		state, err = b.prepareOnce(ctx, id, p)
		if err == nil {
			log.Info("the data of a restore is prepared", "restores", state.Restores)
			b.show(id, p, state)
			return
		}
		isFinal := errors.Is(err, backup.ErrOutside) || errors.Is(err, backup.ErrCorrupt) ||
			errors.Is(err, backup.ErrSuperseded)
		// Retry a recovery without a bound: no customer orders it again, and an outage of the store or the KMS must not
		// leave a plane without data.
		isLast := try == prepareTries && p.order.ID != controlplane.Recovery
		if isFinal || isLast || ctx.Err() != nil {
			break
		}
		log.Warn("the data of a restore could not be made; it is tried again", "error", err)
		if p.order.ID == controlplane.Recovery {
			b.show(id, p, controlplane.Preparation{State: controlplane.PreparationWaits,
				Message: "its data could not be read from the backup; it is tried again"})
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		err = ctx.Err()
	}
	if ctx.Err() != nil {
		return
	}
	log.Warn("the data of a restore could not be made", "error", err)
	b.show(id, p, controlplane.Preparation{State: controlplane.PreparationFailed, Message: failureMessage(err)})
}

// prepareOnce makes the data once, or computes the changes. It occupies room in b.preparations only during the attempt:
// an order that waits for its next attempt must not delay the others.
func (b *Backups) prepareOnce(ctx context.Context, id controlplane.ID, p *preparation) (controlplane.Preparation,
	error) {
	select {
	case b.preparations <- struct{}{}:
		b.stopDrill()
		defer func() { <-b.preparations }()
	case <-ctx.Done():
		return controlplane.Preparation{}, ctx.Err()
	}
	b.show(id, p, controlplane.Preparation{State: controlplane.PreparationRuns})
	if p.order.DryRun {
		return b.compare(ctx, id, p.order)
	}
	return b.makeData(ctx, id, p.order)
}

// isLost reports whether a plane that has no data on this machine has a backup, from which it must be recovered. It
// retries until the store answers. When there is no backup, it publishes PreparationNone and returns false; it also
// returns false when ctx has ended.
func (b *Backups) isLost(ctx context.Context, id controlplane.ID, p *preparation) bool {
	if _, err := readPrepared(b.o.Staging(id, p.order.ID)); err == nil {
		return true
	}
	for wait := retryPrepare; ; wait = min(2*wait, retryStoreLast) {
		attempt, cancel := context.WithTimeout(ctx, answerLimit)
		exists, err := b.records.Exists(attempt, backup.Plane(p.order.Source))
		if err == nil && !exists {
			if err = b.takeNew(attempt, id); errors.Is(err, backup.ErrSuperseded) {
				exists, err = true, nil // the recovery fails with this error
			}
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil && !exists:
			b.show(id, p, controlplane.Preparation{State: controlplane.PreparationNone})
			return false
		case err == nil:
			b.o.Log.Info("a plane without data has a backup, from which it is recovered", "plane", id.String())
			return true
		}
		b.o.Log.Warn("the store of the backups does not answer whether it has a plane; it is asked again",
			"plane", id.String(), "error", err)
		b.show(id, p, controlplane.Preparation{State: controlplane.PreparationWaits,
			Message: "the store of the backups does not answer whether it has data of this cluster"})
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// errReach is the error of a backup that does not reach the moment of a restore in time.
var errReach = errors.New("the backup does not reach it")

// failureMessage returns the reason why a restore failed, for the cluster's owner. It names no path, object or key of
// the region.
func failureMessage(err error) string {
	switch {
	case errors.Is(err, backup.ErrOutside), errors.Is(err, errReach), errors.Is(err, backup.ErrWithdrawn):
		return err.Error()
	case errors.Is(err, backup.ErrSuperseded):
		return "another management cluster has the plane"
	case errors.Is(err, errRecord):
		return errRecord.Error() + ": withdraw the move, and order it again"
	case errors.Is(err, backup.ErrCorrupt):
		return "the backup is damaged; the log of the management cluster's hosting has the details"
	}
	return "the data could not be made; the log of the management cluster's hosting has the reason"
}

// awaitReach waits until the backup of a running plane reaches the moment of an order, at most for reachLimit.
func (b *Backups) awaitReach(ctx context.Context, id controlplane.ID, p *preparation) error {
	if _, err := readPrepared(b.o.Staging(id, p.order.ID)); err == nil {
		return nil
	}
	tick := time.NewTicker(reachEvery)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < reachLimit; {
		s, isMade := b.State(p.order.Source)
		if !isMade || !s.Stored.Before(p.order.At) {
			return nil // it reaches the moment; for a plane of another machine, Fetch finds out
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	s, _ := b.State(p.order.Source)
	why := s.Failing
	if why == "" {
		why = "it reaches to " + s.Stored.Format(time.RFC3339)
	}
	return fmt.Errorf("restoring to %s: %w: %s", p.order.At.Format(time.RFC3339), errReach, why)
}
