package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/pause"
)

const (
	scratchName = "drill"
	// orderID is the RestoreOrder of a scratch plane.
	orderID = "drill"
	// confirmAfter is the pause before a backup that seems bad is read again.
	confirmAfter = 2 * time.Second
	// startTries bounds the starts of a scratch plane that ends before it is ready.
	startTries = 2
	// busyLoad is the load of each processor from which a scratch plane that hangs proves nothing about the backup.
	busyLoad = 2
)

// errFailed is the error of a backup that cannot be restored: no plane can be made from it, or the plane lacks data of
// the backup. The message is for the cluster's owner: it names no path, object or key.
type errFailed struct {
	message     string
	isDifferent bool
}

func (e *errFailed) Error() string { return e.message }

// execute restores one backup for practice, and returns whether that succeeded. After an error the drill has no result:
// the error proves nothing about the backup. The scratch plane stays; the caller deletes it.
func (d *Drills) execute(ctx context.Context, p plan) (result, error) {
	log := d.o.Log.With("plane", p.Plane.String(), "second", p.Second)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, drillLimit)
	defer cancel()
	compared, err := d.checkBackup(ctx, p)
	took := time.Since(begun)
	failed, isFailure := errors.AsType[*errFailed](err)
	switch {
	case err == nil:
		d.results.WithLabelValues(resultSuccess).Inc()
		log.Info("a backup was restored for practice", "took", took, "objects", compared.Objects,
			"secrets", compared.Secrets, "compared", compared.IsCompared)
		return result{isCompared: compared.IsCompared}, nil
	case isFailure:
		d.results.WithLabelValues(resultFailure).Inc()
		log.Error("a backup cannot be restored", "took", took, "error", err)
		return result{failed: &failure{At: time.Now().UTC().Truncate(time.Second), Second: p.Second,
			Message: fmt.Sprintf("the backup was restored to %s for practice: %s", p.Second.UTC().Format(time.RFC3339),
				failed.message), IsDifferent: failed.isDifferent}}, nil
	}
	if !errors.Is(context.Cause(ctx), context.Canceled) { // Canceled: hosting ends
		d.results.WithLabelValues(resultUnfinished).Inc()
		log.Warn("a restore drill has no result; another one follows", "took", took, "error", err)
	}
	return result{}, err
}

// checkBackup makes a scratch plane from a backup, and checks that the plane has the data of the backup and serves its
// Secrets. The error is an errFailed when the backup is bad.
func (d *Drills) checkBackup(ctx context.Context, p plan) (c controlplane.ScratchComparison, err error) {
	source, err := d.o.Planes.Observe(p.Plane)
	if err != nil {
		return c, err
	}
	scratch := controlplane.ID{Namespace: controlplane.ScratchNamespace, Name: scratchName}
	last := source.LastStart
	order := controlplane.RestoreOrder{ID: orderID, Source: p.Plane, At: p.Second, Release: last.Served}
	data, err := d.o.Backups.PrepareScratch(ctx, scratch, order)
	if errors.Is(err, controlplane.ErrBadBackup) { // read it again: it may have expired, and be half deleted
		if !pause.For(ctx, confirmAfter) {
			return c, ctx.Err()
		}
		data, err = d.o.Backups.PrepareScratch(ctx, scratch, order)
	}
	if errors.Is(err, controlplane.ErrBadBackup) {
		return c, fmt.Errorf("%w (%w)", &errFailed{message: "the backup is damaged; the log of the management cluster's " +
			"hosting has the details"}, err)
	}
	if err != nil {
		return c, fmt.Errorf("making the data of the scratch plane: %w", err)
	}
	if err := d.o.Planes.Ensure(scratch, controlplane.Spec{
		Name: scratchName, Release: last.Served, ServerNames: []string{"scratch.invalid"}, ServiceCIDR: last.ServiceCIDR,
		Data: orderID, EmulatedVersion: last.EmulatedVersion, Size: source.Size.Size,
	}); err != nil {
		return c, fmt.Errorf("starting the scratch plane: %w", err)
	}
	if err := d.awaitReady(ctx, scratch); err != nil {
		return c, err
	}
	if c, err = d.o.Backups.CompareScratch(ctx, scratch, data); err != nil {
		return c, err
	}
	if c.Different > 0 {
		return c, &errFailed{message: fmt.Sprintf("the restored data differs from the cluster's in %d objects",
			c.Different), isDifferent: true}
	}
	admin, err := d.o.Planes.Client(scratch)
	if err != nil {
		return c, err
	}
	return c, checkSecrets(ctx, admin, data.Revision, c.Secrets)
}

// awaitReady waits until the scratch plane serves. It returns controlplane.ErrNoRoom when the machine's memory becomes
// scarce: customers' planes need it.
func (d *Drills) awaitReady(ctx context.Context, scratch controlplane.ID) error {
	for {
		o, err := d.o.Planes.Observe(scratch)
		if err != nil {
			return err
		}
		if o.State == controlplane.Ready {
			return nil
		}
		if f := o.Failure; f != nil && f.Count >= startTries {
			machine, err := d.o.Machine()
			if err != nil {
				return err
			}
			hangs := f.Reason == controlplane.PlaneHangs && machine.Load < busyLoad
			if f.Reason == controlplane.PlaneFailed || hangs {
				return fmt.Errorf("%w (%w)", &errFailed{message: "a control plane does not start with the restored data"}, f)
			}
			return fmt.Errorf("starting the scratch plane: %w", f)
		}
		if machine, err := d.o.Machine(); err != nil || machine.Memory < reserve {
			return errors.Join(err, fmt.Errorf("%w: the machine has %d MiB of memory available",
				controlplane.ErrNoRoom, machine.Memory>>20))
		}
		if !pause.For(ctx, pollEvery) {
			return fmt.Errorf("the scratch plane is %s: %w", o.State, ctx.Err())
		}
	}
}
