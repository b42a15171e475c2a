package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
	"atoll.dev/internal/pause"
)

var (
	// ErrRewritten: the branch does not have a commit any more that the rollout follows.
	ErrRewritten = errors.New("the history of the branch was rewritten")
	// ErrHalted: a gate has stopped the rollout.
	ErrHalted = errors.New("the rollout has stopped")
	// ErrUndone: the rollout has ended, and not all of its targets have the change.
	ErrUndone = errors.New("the rollout has ended without all of its changes")
	// ErrNotBegun: the rollout has no record yet.
	ErrNotBegun = errors.New("the rollout has not begun; begin it with `atoll rollout run`")
)

// HealthReader reads the health of targets. A target that it cannot read is Unreadable; it returns no error.
type HealthReader interface {
	Read(ctx context.Context, r Rollout, fleet Fleet, targets []Target) Observation
}

// Driver carries out a rollout. The lock between drivers is the branch: each step is one commit, which the repository
// refuses when another was first.
type Driver struct {
	Repository Repository
	Health     HealthReader
	File       string // of the rollout, in the repository
	Config     string // directory of the configuration, in the repository
	Rendered   string // directory of the rendered files, in the repository
	// Interval is the time between two observations: 30 seconds by default.
	Interval time.Duration
	// Show is called with each step, and with errors of the network, which the next observation repeats.
	Show func(Event)

	last         string // the newest commit that this driver has seen
	lastText     []byte // of the record at that commit
	state        State  // after the last observation
	lastSnapshot snapshot
}

// snapshot is the content of one commit, as far as a driver reads it.
type snapshot struct {
	commit     string
	rollout    Rollout
	text       []byte // of the rollout's file
	record     Recorded
	begun      bool
	recordText []byte // of the record
	tree       Tree
	// declared is the fleet that the tree declares, and fleet is the part of it on which the plan depends.
	declared gitops.Fleet
	fleet    Fleet
}

// Run drives the rollout until it ends. It begins the rollout if nobody has. The error is ErrHalted when a gate stops
// it, and ErrUndone when it was reverted, also by itself, or aborted. Errors of the network are shown and tried again;
// a changed file of the rollout, a rewritten history, a configuration with mistakes and a remote that refuses the
// commit end Run, and nothing is half done.
func (d *Driver) Run(ctx context.Context) (Recorded, error) {
	if d.Interval <= 0 {
		d.Interval = 30 * time.Second
	}
	for ctx.Err() == nil {
		r, err := d.observeAndStep(ctx)
		switch unreachable := (unreachableError{}); {
		case errors.Is(err, gitrepo.ErrStale):
			continue // read again at once: another has written
		case errors.As(err, &unreachable):
			d.show(unreachable.Error())
		case err != nil:
			return r, err
		case r.State.Phase == Halted:
			return r, fmt.Errorf("%w: %s", ErrHalted, r.State.Reason)
		case r.State.Phase == Done:
			return r, nil
		case r.State.Phase.IsEnd():
			return r, fmt.Errorf("%w: %s: %s", ErrUndone, r.State.Phase, r.State.Reason)
		}
		pause.For(ctx, d.Interval)
	}
	return Recorded{}, ctx.Err()
}

// unreachableError is an error of the repository that another try may not have.
type unreachableError struct{ error }

func (d *Driver) show(what string) {
	if d.Show != nil {
		d.Show(Event{At: time.Now().UTC(), What: what})
	}
}

// observeAndStep reads the branch and the gates, and commits the effect of one step, if it has one. It begins a rollout
// that has no record.
func (d *Driver) observeAndStep(ctx context.Context) (Recorded, error) {
	r, err := d.readNewest(ctx)
	if err != nil {
		return Recorded{}, err
	}
	if !r.begun {
		return d.begin(ctx, r)
	}
	plan, s := r.record.Plan(r.rollout), d.stateWithObservations(r)
	if err := r.checkTargets(s); err != nil {
		return r.record, err
	}
	seen := d.Health.Read(ctx, r.rollout, r.fleet, sortedTargets(s.Targets))
	if err := ctx.Err(); err != nil {
		return r.record, err // the observation is incomplete
	}
	next, effects := plan.Step(s, seen, time.Now())
	if len(effects) == 0 {
		d.last, d.lastText, d.state = r.commit, r.recordText, next
		r.record.State = next
		return r.record, nil
	}
	return d.commit(ctx, r, next, effects[0])
}

// stateWithObservations returns the state to step from: that of the record, with the soak that this driver
// has observed since its last commit. The record has no observations that changed nothing else.
func (d *Driver) stateWithObservations(r snapshot) State {
	if d.lastText != nil && bytes.Equal(d.lastText, r.recordText) {
		return d.state
	}
	s := r.record.State
	s.savedSoak = s.Soaked
	// An operator has written, or another driver.
	if d.lastText != nil && d.state.Wave == s.Wave && d.state.Halts == s.Halts && s.Phase == Running {
		s.Soaked, s.passedAt = max(s.Soaked, d.state.Soaked), d.state.passedAt
	}
	return s
}

// readNewest reads the newest commit. If it is that of the last snapshot, readNewest returns that snapshot.
func (d *Driver) readNewest(ctx context.Context) (snapshot, error) {
	commit, err := d.Repository.Head(ctx)
	switch {
	case err != nil:
		return snapshot{}, unreachableError{fmt.Errorf("reading the branch: %w", err)}
	case commit == d.lastSnapshot.commit:
		return d.lastSnapshot, nil
	}
	if err := d.checkFollows(ctx, d.last, commit); err != nil {
		return snapshot{}, err
	}
	r, err := d.readCommit(ctx, commit)
	if err == nil {
		d.lastSnapshot = r
	}
	return r, err
}

// readRecord reads the record of the newest commit and nothing else, so that mistakes in other files do not matter.
func (d *Driver) readRecord(ctx context.Context) (r snapshot, err error) {
	if r.commit, err = d.Repository.Head(ctx); err != nil {
		return r, fmt.Errorf("reading the branch: %w", err)
	}
	err = d.readRecordOf(ctx, &r)
	if err == nil && !r.begun {
		err = ErrNotBegun
	}
	return r, err
}

// readRecordOf reads the record of a snapshot's commit into the snapshot, if the commit has one.
func (d *Driver) readRecordOf(ctx context.Context, r *snapshot) (err error) {
	r.recordText, err = d.Repository.ReadFile(ctx, r.commit, RecordPath(d.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r.begun = true
	r.record, err = decodeRecord(RecordPath(d.File), r.recordText)
	return err
}

// readConfigOf reads the configuration of a snapshot's commit into the snapshot, which has the rollout already.
func (d *Driver) readConfigOf(ctx context.Context, r *snapshot) error {
	files, err := d.Repository.Tree(ctx, r.commit, d.Config)
	if err != nil {
		return err
	}
	r.tree = Tree{Files: files, Dir: d.Config}
	environment, declared, err := r.tree.Environment(r.rollout)
	if err != nil {
		return err
	}
	r.declared, r.fleet = declared, fleetOf(environment)
	r.tree.Repository.Pinned = func(revision string, paths []string) (fs.FS, string, error) {
		return d.Repository.PinnedTree(ctx, revision, paths)
	}
	r.tree.Repository.Files, err = d.Repository.Tree(ctx, r.commit, ".", declared.ChartDirs()...)
	return err
}

func (d *Driver) readCommit(ctx context.Context, commit string) (r snapshot, err error) {
	r.commit = commit
	if r.text, err = d.Repository.ReadFile(ctx, r.commit, d.File); err != nil {
		return r, fmt.Errorf("reading the rollout: %w; commit and push it first", err)
	}
	if r.rollout, err = Parse(d.File, r.text); err != nil {
		return r, err
	}
	if err := d.readConfigOf(ctx, &r); err != nil {
		return r, err
	}
	if err := d.readRecordOf(ctx, &r); err != nil || !r.begun {
		return r, err
	}
	if r.record.Digest != digestOf(r.text) {
		return r, fmt.Errorf("%s has changed since the rollout began; undo the change, or abort the rollout and begin "+
			"another with a file of another name", d.File)
	}
	r.rollout = r.record.withRevision(r.rollout)
	return r, d.checkFollows(ctx, r.record.Base, r.commit)
}

// checkNoOtherRollout refuses to begin while another rollout beside this one changes the same environment.
func (d *Driver) checkNoOtherRollout(ctx context.Context, r snapshot) error {
	files, err := d.Repository.Tree(ctx, r.commit, path.Dir(d.File))
	if err != nil {
		return err
	}
	names, err := fs.Glob(files, "*.record.json")
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		name = path.Join(path.Dir(d.File), name)
		other, err := decodeRecord(name, data)
		if err != nil {
			return err
		}
		if other.Environment == r.rollout.Environment && !other.State.Phase.IsEnd() {
			return fmt.Errorf("the rollout of %s changes the environment %s and has not ended (%s); wait for its end, or "+
				"abort or revert it first", name, other.Environment, other.State.Phase)
		}
	}
	return nil
}

// begin commits the record of a new rollout.
func (d *Driver) begin(ctx context.Context, r snapshot) (Recorded, error) {
	if err := d.checkNoOtherRollout(ctx, r); err != nil {
		return Recorded{}, err
	}
	plan, err := newPlan(r.rollout, r.fleet)
	if err != nil {
		return Recorded{}, err
	}
	named := r.rollout.Change.Revision
	if r.rollout, err = r.rollout.Resolve(ctx, d.Repository); err != nil {
		return Recorded{}, err
	}
	// The whole change is checked before its first step.
	var all []Target
	for _, w := range plan.Waves {
		all = append(all, w.Targets...)
	}
	changed, _, _, err := r.tree.Change(r.rollout, all)
	if err != nil {
		return Recorded{}, err
	}
	_, unchecked, err := changed.loadWithChange(r.rollout, all)
	if err != nil {
		return Recorded{}, err
	}
	r.record = newRecord(r.rollout.Environment, r.text, plan, time.Now())
	r.record.Unchecked = d.showUnchecked(nil, unchecked)
	reason := fmt.Sprintf("begin: %d regions, %d waves", plan.Regions, len(plan.Waves))
	if r.record.Revision = r.rollout.Change.Revision; r.record.Revision != named {
		reason += fmt.Sprintf("; the revision %s is %s", named, r.record.Revision)
	}
	return d.commit(ctx, r, r.record.State, Effect{Kind: Record, Reason: reason})
}

// commit executes an effect: it adds one commit with the edited configuration, its rendered files, and the record.
func (d *Driver) commit(ctx context.Context, r snapshot, s State, e Effect) (Recorded, error) {
	now := time.Now()
	record := r.record.afterStep(s, e, r.commit, now)
	next := r
	var edited gitops.Files
	var err error
	switch e.Kind {
	case Apply:
		var undo Undo
		record.Radius = s.Radius(r.fleet)
		next.tree, edited, undo, err = r.tree.Change(r.rollout, e.Targets)
		for target, edits := range undo {
			if _, has := record.Undo[target]; !has {
				record.Undo[target] = edits
			}
		}
	case Restore:
		next.tree, edited, record.Kept, err = r.tree.Restore(r.rollout, e.Targets, record.Undo, e.HandEdits)
	}
	if err != nil {
		return r.record, err
	}
	files := map[string][]byte{}
	if len(edited) > 0 {
		change, err := d.renderEffect(ctx, r, next.tree, e)
		if err != nil {
			return r.record, err
		}
		files, next.declared = change.files, change.declared
		record.Unchecked = d.showUnchecked(record.Unchecked, change.unchecked)
	}
	for name, data := range edited {
		files[path.Join(d.Config, name)] = data
	}
	raw, err := record.encode()
	if err != nil {
		return r.record, err
	}
	files[RecordPath(d.File)] = raw
	commit, err := d.Repository.Add(ctx, r.commit, files, record.commitMessage(d.File, e))
	switch {
	case errors.Is(err, gitrepo.ErrStale), errors.Is(err, gitrepo.ErrRefused):
		return r.record, err
	case err != nil:
		return r.record, unreachableError{err} // perhaps the remote has the commit: the next snapshot shows it
	}
	d.last, d.lastText, d.state = commit, raw, s
	if r.text != nil { // nobody needs to read what this driver has written
		next.commit, next.record, next.begun, next.recordText = commit, record, true, raw
		d.lastSnapshot = next
	}
	d.show(e.Reason)
	return record, nil
}

// Status returns the record of the rollout in the newest commit, or ErrNotBegun.
func (d *Driver) Status(ctx context.Context) (Recorded, error) {
	r, err := d.readRecord(ctx)
	return r.record, err
}

// Command executes a command of an operator. It tries again when somebody else has committed at the same time. It reads
// only the record, which has a copy of the rollout's file: so an operator can pause and abort also when other files of
// the branch have mistakes. A revert renders the configuration too, and so needs one without mistakes.
func (d *Driver) Command(ctx context.Context, do func(Plan, State) (State, []Effect, error)) (Recorded, error) {
	for {
		r, err := d.readRecord(ctx)
		if err != nil {
			return r.record, err
		}
		s, effects, err := do(r.record.Plan(Rollout{}), r.record.State)
		if err != nil || len(effects) == 0 {
			return r.record, err
		}
		if effects[0].Kind == Restore {
			if r.rollout, err = Parse(d.File, []byte(r.record.File)); err != nil {
				return r.record, err
			}
			r.rollout = r.record.withRevision(r.rollout)
			if err := d.readConfigOf(ctx, &r); err != nil {
				return r.record, err
			}
		}
		record, err := d.commit(ctx, r, s, effects[0])
		if !errors.Is(err, gitrepo.ErrStale) || ctx.Err() != nil {
			return record, err
		}
	}
}
