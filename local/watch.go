package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"atoll.dev/gitops"
	"atoll.dev/internal/filelock"
	"atoll.dev/internal/gitrepo"
	"atoll.dev/internal/pause"
)

// Times between two looks at the branch.
const (
	directoryInterval = time.Second      // of a repository on this machine
	remoteInterval    = 30 * time.Second // of a repository with a URL
	applyRetry        = 30 * time.Second // until Apply is called again after an error
)

const (
	watchClone     = "watch.git" // in the home
	appliedMark    = "applied"   // the commit that was applied last, in the clone
	maxShownFiles  = 5           // of rendered files that differ
	maxShownPassed = 100         // of commits that are passed over at once
)

// WatchResult is the result of a watch for one commit.
type WatchResult string

// Results of a watch.
const (
	Applied     WatchResult = "applied"
	Refused     WatchResult = "refused"     // the commit has a mistake; only another commit, or a moved pin, helps
	PassedOver  WatchResult = "passed-over" // a newer commit arrived with it; it is neither checked nor applied
	Undeclared  WatchResult = "undeclared"  // the commit does not declare the region
	Failed      WatchResult = "failed"      // applying the commit failed; the watch tries again
	Unreachable WatchResult = "unreachable" // the repository; the watch tries again
	Reachable   WatchResult = "reachable"   // the repository, after Unreachable
)

// WatchEvent reports one step of a watch.
type WatchEvent struct {
	At      time.Time   `json:"at"`
	Region  string      `json:"region"`
	Result  WatchResult `json:"result"`
	Commit  string      `json:"commit,omitempty"`
	Subject string      `json:"subject,omitempty"` // of the commit's message
	Error   string      `json:"error,omitempty"`   // a line for each mistake, with file and line
	// Unchecked has a line for each git.revision of the region that was not checked, or not as the repository has it.
	Unchecked string `json:"unchecked,omitempty"`
}

// Watch follows a branch and applies its newest commit. Before that it checks the whole commit: the configuration has
// no mistake, the charts of the commit take its values, the rendered files are those of the configuration, and the
// commit is a descendant of the applied one. Of pins it checks those of its region. It shows a commit that fails a
// check, and applies nothing of it.
type Watch struct {
	Branch   gitrepo.Branch
	Region   string // REGION or ENVIRONMENT/REGION
	Config   string // directory of the configuration, in the repository
	Rendered string // directory of the rendered files, in the repository
	// Accept is a commit of a rewritten history, in hexadecimal digits: it and its descendants are applied although they
	// are no descendants of the applied commit.
	Accept   string
	Interval time.Duration // between two looks at the branch
	// Apply brings the region up as it is declared. It may be repeated.
	Apply func(context.Context, gitops.Declaration) error
	Show  func(WatchEvent)

	handled   string    // the newest commit that was applied, refused or tried
	retryAt   time.Time // when to try handled again; zero: never
	unchecked []string  // pins of the region that were not checked in handled
	outage    string    // the error with which the repository was unreachable; "": it was reachable
	shown     WatchEvent
}

// pinMistake is a mistake of a git.revision. A pinned branch may move to a commit without it.
type pinMistake struct{ error }

// OpenWatch returns the watch of a branch of a repository, a directory or a URL, for the region of the home. One watch
// at a time runs for a home; after unlock another one may.
func (h Home) OpenWatch(ctx context.Context, repository, branch string) (w *Watch, unlock func(), err error) {
	interval := remoteInterval
	switch info, err := os.Stat(repository); {
	case err == nil && info.IsDir():
		interval = directoryInterval
		if repository, err = filepath.Abs(repository); err != nil {
			return nil, nil, err
		}
	case !strings.Contains(repository, ":"):
		return nil, nil, fmt.Errorf("%q is no directory and no URL: name the repository with --repo", repository)
	}
	if err := os.MkdirAll(h.Path("run"), 0o700); err != nil {
		return nil, nil, fmt.Errorf("home: %w", err)
	}
	unlock, err = h.lock("watch.lock")
	if errors.Is(err, filelock.ErrLocked) {
		return nil, nil, fmt.Errorf("home %s: another `atoll region watch` runs for it", h.Dir)
	}
	if err != nil {
		return nil, nil, err
	}
	clone, err := gitrepo.Mirror(ctx, h.Path(watchClone), repository, branch)
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return &Watch{Branch: clone, Interval: interval}, unlock, nil
}

// Run follows the branch until ctx ends. It first applies the newest commit, also when an earlier watch has applied it:
// the region may have stopped since. A commit that arrives while another is applied waits; of several, the newest is
// applied.
func (w *Watch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		w.applyNewest(ctx)
		pause.For(ctx, w.Interval)
	}
}

// applyNewest looks at the branch once, and applies its newest commit unless that is handled already.
func (w *Watch) applyNewest(ctx context.Context) {
	commit, err := w.Branch.Head(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		if w.outage != err.Error() {
			w.outage = err.Error()
			w.show(WatchEvent{Result: Unreachable, Error: w.outage})
		}
		return
	case w.outage != "":
		w.outage = ""
		w.show(WatchEvent{Result: Reachable, Commit: commit})
	}
	if commit == w.handled && (w.retryAt.IsZero() || time.Now().Before(w.retryAt)) {
		return
	}
	w.showPassedOver(ctx, commit)
	w.unchecked = nil
	result, err := w.applyCommit(ctx, commit)
	if ctx.Err() != nil {
		return // the next watch applies the commit again
	}
	w.handled, w.retryAt = commit, time.Time{}
	if _, isPin := errors.AsType[pinMistake](err); isPin || result == Failed {
		w.retryAt = time.Now().Add(applyRetry)
	}
	e := WatchEvent{Result: result, Commit: commit, Unchecked: strings.Join(w.unchecked, "\n")}
	if err != nil {
		e.Error = err.Error()
	}
	if e != w.shown { // an error that repeats is shown once
		w.shown = e
		// Without its subject the event is still worth showing.
		e.Subject, _ = w.Branch.Subject(ctx, commit)
		w.show(e)
	}
}

// showPassedOver shows the commits between the last handled one and a newer one; after the start of the watch, those
// after the applied one. After a force-push it shows none: checkHistory decides about that.
func (w *Watch) showPassedOver(ctx context.Context, commit string) {
	earlier := w.handled
	if earlier == "" {
		earlier, _ = w.Branch.Marked(ctx, appliedMark) // an error shows in applyCommit
	}
	if earlier == "" || earlier == commit {
		return
	}
	if follows, err := w.Branch.IsAncestor(ctx, earlier, commit); err != nil || !follows {
		return // applyCommit reports why
	}
	passed, err := w.Branch.Between(ctx, earlier, commit, maxShownPassed)
	if err != nil && ctx.Err() == nil {
		w.show(WatchEvent{Result: PassedOver, Error: err.Error()})
	}
	for _, older := range passed {
		e := WatchEvent{Result: PassedOver, Commit: older}
		e.Subject, _ = w.Branch.Subject(ctx, older) // without its subject the event is still worth showing
		w.show(e)
	}
}

func (w *Watch) show(e WatchEvent) {
	e.At, e.Region = time.Now().UTC(), w.Region
	w.Show(e)
}

// applyCommit checks a commit and applies it.
func (w *Watch) applyCommit(ctx context.Context, commit string) (WatchResult, error) {
	applied, err := w.Branch.Marked(ctx, appliedMark)
	if err != nil {
		return Failed, err
	}
	if result, err := w.checkHistory(ctx, applied, commit); err != nil {
		return result, err
	}
	config, err := w.Branch.Tree(ctx, commit, w.Config)
	if err != nil {
		return Failed, err
	}
	fleet, err := gitops.Load(config, w.Config)
	if err != nil {
		return Refused, err
	}
	charts, err := w.Branch.Tree(ctx, commit, ".", fleet.ChartDirs()...)
	if err != nil {
		return Failed, err
	}
	if _, err := (gitops.Repository{Files: charts}).CheckCharts(fleet); err != nil {
		return Refused, err
	}
	region, err := fleet.Region(w.Region)
	if err == nil {
		if result, err := w.checkPins(ctx, region); err != nil {
			return result, err
		}
	}
	if result, err := w.checkRendered(ctx, commit, fleet); err != nil {
		return result, err
	}
	switch {
	case errors.Is(err, gitops.ErrNoRegion) && applied != "":
		return Undeclared, fmt.Errorf("%w any more; what runs of it goes on and nothing is purged (to remove it: `atoll "+
			"down --purge --home %s`)", err, filepath.Dir(w.Branch.Dir))
	case errors.Is(err, gitops.ErrNoRegion):
		return Undeclared, fmt.Errorf("%w yet; the watch waits for a commit that does", err)
	case err != nil:
		return Refused, err
	}
	if err := w.Apply(ctx, gitops.Declare(region)); err != nil {
		return Failed, err
	}
	if err := w.Branch.Mark(ctx, appliedMark, commit); err != nil {
		return Failed, err
	}
	w.Accept = ""
	return Applied, nil
}

// checkPins refuses a region with a git.revision whose charts or rendered values have a mistake. The result counts only
// with an error. It records the pins that it could not check in w.unchecked.
func (w *Watch) checkPins(ctx context.Context, region gitops.Region) (WatchResult, error) {
	repository := gitops.Repository{Pinned: func(revision string, paths []string) (fs.FS, string, error) {
		return w.Branch.PinnedTree(ctx, revision, paths)
	}}
	onlyRegion := gitops.Environment{Name: region.Environment, Regions: []gitops.Region{region}}
	unchecked, err := repository.CheckPins(gitops.Fleet{Environments: []gitops.Environment{onlyRegion}})
	w.unchecked = unchecked
	switch {
	case errors.Is(err, gitops.ErrPinUnreadable):
		return Failed, err
	case err != nil:
		return Refused, pinMistake{err}
	}
	return Applied, nil
}

// checkHistory refuses a commit that is no descendant of the applied one. The result counts only with an error.
func (w *Watch) checkHistory(ctx context.Context, applied, commit string) (WatchResult, error) {
	for _, ancestor := range []string{applied, w.Accept} {
		if ancestor == "" {
			continue
		}
		if follows, err := w.Branch.IsAncestor(ctx, ancestor, commit); err != nil || follows {
			return Failed, err
		}
	}
	if applied == "" {
		return "", nil
	}
	at := w.Branch.FirstChange(ctx, applied+".."+commit, w.Config)
	if at == "" {
		at = w.Branch.FirstChange(ctx, applied+".."+commit)
	}
	if at != "" {
		at += ": "
	}
	return Refused, fmt.Errorf("%sthe history of %s was rewritten: %.12s is no descendant of %.12s, which is applied; "+
		"push a descendant of that, or stop the watch and run it again with --accept %.12s", at, w.Branch.Name, commit,
		applied, commit)
}

// checkRendered refuses a commit whose rendered files are not those of its configuration. The result counts only with
// an error.
func (w *Watch) checkRendered(ctx context.Context, commit string, fleet gitops.Fleet) (WatchResult, error) {
	files, err := gitops.Render(fleet)
	if err != nil {
		return Refused, err
	}
	tree, err := w.Branch.Tree(ctx, commit, w.Rendered)
	if err != nil {
		return Failed, err
	}
	differences, err := gitops.CompareTree(tree, files)
	if err != nil {
		return Failed, err
	}
	var mistakes []error
	for i, d := range differences {
		if i == maxShownFiles {
			mistakes = append(mistakes, fmt.Errorf("and %d files more", len(differences)-i))
			break
		}
		d.Path = path.Join(w.Rendered, d.Path)
		mistakes = append(mistakes, errors.New(d.FirstLine()))
	}
	if len(mistakes) > 0 {
		mistakes = append(mistakes, errors.New("run `atoll config render`, commit, and push"))
	}
	return Refused, errors.Join(mistakes...)
}
