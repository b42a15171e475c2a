package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/beneath"
	"atoll.dev/internal/filelock"
)

const (
	// leftName is the file in a plane's directory of state that shows that the plane leaves this management cluster.
	leftName = "left.json"
	// moveEvery is the time between two reads of the store for the other side's objects. It grows to moveEveryLast: the
	// other side may be away for days.
	moveEvery, moveEveryLast = 200 * time.Millisecond, 5 * time.Second
	// moveSoon is the time for which one side reads every moveEvery.
	moveSoon = 2 * time.Minute
)

// left is the content of the file leftName. While it exists the plane never runs here.
type left struct {
	Move     string `json:"move"`
	Endpoint string `json:"endpoint"` // of the target's router
	// IsPacked: the data was packed once without an error, so the store may have the list of its parts, and the target
	// may have the plane. Hosting writes it before the list can be stored. Until then hosting can remove the file.
	IsPacked bool `json:"is_packed"`
	IsStored bool `json:"is_stored"` // the store has the whole data
}

// leaving is a plane's move to another management cluster.
type leaving struct {
	move   string
	cancel context.CancelFunc
	done   chan struct{}
	// stopped is closed when the plane's process has ended and hosting does not start it again.
	stopped chan struct{}
	shown   controlplane.Shown // goes with the plane; before stopped is closed

	// Guarded by Backups.mu:
	state   controlplane.Leaving
	isOff   bool // stopped is closed
	isNoted bool // the file leftName exists

	// isWithdrawal: the order was withdrawn after the file leftName was written, and the plane is taken back.
	isWithdrawal bool
}

// Leave begins to move a plane to another management cluster, and returns the state of the move. It returns at once;
// Backups calls the function changed of Run after each change of the state. A caller may repeat it, also after a
// restart.
//
// The plane runs until the target has stored its request. Then hosting stops the plane and calls Stopped, and Leave
// writes the file leftName, with which the plane never runs here again, and stores the plane's data.
func (b *Backups) Leave(id controlplane.ID, move string) controlplane.Leaving {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits := controlplane.Leaving{State: controlplane.LeavingWaits, Message: "hosting starts"}
	have, err := b.readLeft(id)
	switch {
	case err != nil: // it is unknown whether the plane has left, so it must not run
		return controlplane.Leaving{State: controlplane.LeavingStores, Message: err.Error()}
	case have.IsStored:
		return controlplane.Leaving{State: controlplane.LeavingDone, Endpoint: have.Endpoint}
	case have.Move == "":
		refused, err := b.readRefused(id)
		if err != nil {
			return controlplane.Leaving{State: controlplane.LeavingRefused, Message: err.Error()}
		}
		if refused.Move == move {
			return controlplane.Leaving{State: controlplane.LeavingRefused, Message: refused.Message}
		}
	default:
		move = have.Move // also after another order: the target of that move may have the data
		waits.State, waits.Endpoint = controlplane.LeavingStores, have.Endpoint
	}
	if b.ctx == nil {
		b.asked[id] = true
		return waits
	}
	if b.ctx.Err() != nil {
		return waits
	}
	before := b.leaving[id]
	if before != nil && before.move == move {
		return before.state
	}
	ctx, cancel := context.WithCancel(b.ctx)
	l := &leaving{move: move, cancel: cancel, done: make(chan struct{}), stopped: make(chan struct{}), state: waits,
		isNoted: have.Move != ""}
	l.state.Message = "the other management cluster is not ready for the plane yet"
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
		b.leave(ctx, id, l)
	})
	return l.state
}

// Stopped records in a move that the plane's process has ended and is not started again, and what the status shows of
// it. It may be repeated.
func (b *Backups) Stopped(id controlplane.ID, shown controlplane.Shown) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.leaving[id]; l != nil && !l.isOff {
		l.isOff, l.shown = true, shown
		close(l.stopped)
	}
}

// Stay ends a move whose order was withdrawn. When the file leftName exists already, Stay begins to take the plane back
// from the target: IsSuperseded reports true until the target cannot have the plane any more. It may be repeated, also
// after a restart.
func (b *Backups) Stay(id controlplane.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.leaving[id]
	if l == nil || l.isNoted {
		b.beginWithdrawal(id, l)
		return
	}
	l.cancel()
	delete(b.leaving, id)
}

// noteLeft writes the file leftName, unless the move has ended meanwhile.
func (b *Backups) noteLeft(ctx context.Context, id controlplane.ID, l *leaving, endpoint string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	have, err := b.readLeft(id)
	if err != nil {
		return err
	}
	if have.Move == "" {
		if err := b.writeLeft(id, left{Move: l.move, Endpoint: endpoint}); err != nil {
			return err
		}
	}
	l.isNoted = true
	return nil
}

// readLeft reads the file leftName; the zero value when the plane has not left.
func (b *Backups) readLeft(id controlplane.ID) (l left, err error) {
	if b.o.State == nil {
		return l, nil
	}
	content, err := os.ReadFile(filepath.Join(b.o.State(id), leftName))
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &l)
	}
	if err == nil && l.Move == "" {
		err = errors.New("it names no move")
	}
	if err != nil {
		return l, fmt.Errorf("reading the file %s of the plane: %w", leftName, err)
	}
	return l, nil
}

func (b *Backups) writeLeft(id controlplane.ID, l left) error {
	content, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.o.State(id), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(b.o.State(id), leftName), content, 0o600)
}

// showLeaving publishes the state of a move.
func (b *Backups) showLeaving(id controlplane.ID, l *leaving, state controlplane.Leaving) {
	b.mu.Lock()
	l.state = state
	b.mu.Unlock()
	b.changed(id)
}

// leave moves a plane away. It retries after each error until ctx ends.
func (b *Backups) leave(ctx context.Context, id controlplane.ID, l *leaving) {
	log := b.o.Log.With("plane", id.String(), "move", l.move)
	have, err := b.readLeft(id)
	endpoint := have.Endpoint
	if err == nil && have.Move == "" {
		err = retryMove(ctx, func() error {
			r, err := backup.GetHandoverRequest(ctx, b.o.Store, b.o.KMS, backup.Plane(id), l.move)
			endpoint = r.Endpoint
			return err
		}, func(err error) {
			log.Warn("the request of a move's target could not be read; it is tried again", "error", err)
		})
	}
	if err != nil {
		return // ctx has ended, or the file leftName is damaged: Leave returns that error
	}
	if err := checkPack(b.o.Dir(id), nil); have.Move == "" && errors.Is(err, errBounds) {
		if err := b.refuse(id, l, err); err != nil { // the file leftName is damaged: Leave returns that error
			log.Warn("a plane cannot move, and that could not be written to disk", "error", err)
		}
		return
	}
	b.showLeaving(id, l, controlplane.Leaving{State: controlplane.LeavingStops, Endpoint: endpoint})
	select {
	case <-ctx.Done():
		return
	case <-l.stopped:
	}
	err = retryMove(ctx, func() error { return b.handOver(ctx, id, l, endpoint) },
		func(err error) {
			log.Warn("the data of a plane that moves could not be stored; it is tried again", "error", err)
		})
	if err != nil || b.isRefused(l) {
		return
	}
	log.Info("a plane has left; it never runs here again", "endpoint", endpoint)
	b.showLeaving(id, l, controlplane.Leaving{State: controlplane.LeavingDone, Endpoint: endpoint})
}

// retryMove calls f until it succeeds or ctx ends; then the error is that of ctx. It calls report with each error,
// except ErrNotFound and ErrClaimed: they mean that the other side has not answered yet.
func retryMove(ctx context.Context, f func() error, report func(error)) error {
	for begun, wait := time.Now(), moveEvery; ; {
		err := f()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if !errors.Is(err, backup.ErrNotFound) && !errors.Is(err, backup.ErrClaimed) {
			report(err)
			wait = min(2*wait, moveEveryLast)
		} else if time.Since(begun) > moveSoon {
			wait = moveEveryLast
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// handOver stores the data of a stopped plane. First it checks that the data can be packed, and writes the file
// leftName. When the data cannot be packed, handOver ends the move and the plane runs here again: that is safe because
// the list of the parts was never stored. An error of the store is returned, and the caller retries.
func (b *Backups) handOver(ctx context.Context, id controlplane.ID, l *leaving, endpoint string) error {
	end, err := lockData(b.o.Dir(id))
	if errors.Is(err, errRunning) {
		return err
	}
	if err != nil {
		return b.refuse(id, l, err)
	}
	defer end()
	files, err := b.handoverFiles(id, l.shown)
	if err == nil {
		err = checkPack(b.o.Dir(id), files)
	}
	if err == nil {
		err = b.noteLeft(ctx, id, l, endpoint)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return b.refuse(id, l, err)
	}
	b.showLeaving(id, l, controlplane.Leaving{State: controlplane.LeavingStores, Endpoint: endpoint})
	read, write := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(write, b.o.Dir(id), files)
		if err == nil { // before write is closed: PutHandover stores the list of the parts only after that
			err = b.writeLeft(id, left{Move: l.move, Endpoint: endpoint, IsPacked: true})
		}
		write.CloseWithError(err)
		packed <- err
	}()
	err = backup.PutHandover(ctx, b.o.Store, b.o.KMS, backup.Plane(id), l.move, read)
	read.CloseWithError(errNotStored)
	packErr := <-packed
	switch {
	case packErr != nil && !errors.Is(packErr, errNotStored):
		return b.refuse(id, l, packErr)
	case err != nil:
		return err
	}
	return b.writeLeft(id, left{Move: l.move, Endpoint: endpoint, IsPacked: true, IsStored: true})
}

// errNotStored is the error of packing when the store has not taken the data.
var errNotStored = errors.New("the data was not stored")

// handoverFiles returns the files that move with the data of a plane: the orders that the plane has executed, and its
// departure.
func (b *Backups) handoverFiles(id controlplane.ID, shown controlplane.Shown) (files map[string]any, err error) {
	var past []string
	if b.o.Restores != nil {
		if past, err = b.o.Restores(id); err != nil {
			return nil, err
		}
	}
	files = map[string]any{controlplane.StagedPast: past}
	if b.o.Record != nil {
		last, err := b.o.Record(id)
		if err != nil {
			return nil, err
		}
		files[controlplane.StagedRecord] = controlplane.Departure{LastStart: last, Shown: shown}
	}
	return files, nil
}

// errRunning is the error of data that a process has open.
var errRunning = errors.New("a process has the plane's database open")

// lockData locks the database of a plane's etcd as etcd itself does, until the caller calls end. So no process changes
// the data while it is packed.
func lockData(dir string) (end func(), err error) {
	db, err := beneath.OpenFile(dir, filepath.Join("etcd", "member", "snap", "db"), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("the plane's database: %w", err)
	}
	if end, err = filelock.TryFile(db); err != nil {
		return nil, fmt.Errorf("%w: %w", errRunning, err)
	}
	return end, nil
}
