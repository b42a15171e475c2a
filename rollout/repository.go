package rollout

import (
	"context"
	"fmt"
	"io/fs"
	"path"
)

// Repository is a branch of the repository that has the configuration. gitrepo.Branch is one. Its eight methods are
// one concern: to read a commit, and to add the next one.
type Repository interface {
	// Head returns the newest commit of the branch.
	Head(ctx context.Context) (string, error)
	// Resolve returns the commit of a branch, a tag or a hash, or gitrepo.ErrNoRevision.
	Resolve(ctx context.Context, revision string) (string, error)
	// IsAncestor reports whether a commit is in the history of another.
	IsAncestor(ctx context.Context, ancestor, commit string) (bool, error)
	// FirstChange returns the first difference, FILE:LINE, between two commits, A..B, below some paths; "" when there is
	// none, or none can be found.
	FirstChange(ctx context.Context, commits string, paths ...string) string
	// ReadFile returns a file of a commit, or fs.ErrNotExist.
	ReadFile(ctx context.Context, commit, name string) ([]byte, error)
	// Tree returns the files of a directory of a commit, or those below some paths in it.
	Tree(ctx context.Context, commit, dir string, below ...string) (fs.FS, error)
	// PinnedTree returns the files at and below some paths in the commit of a revision. note continues the sentence "the
	// revision is", and has the reason when files is nil, since nobody has the commit.
	PinnedTree(ctx context.Context, revision string, paths []string) (files fs.FS, note string, err error)
	// Add adds a commit to the branch if parent is its newest commit, and returns gitrepo.ErrStale otherwise. The error
	// is gitrepo.ErrRefused when another try has the same answer.
	Add(ctx context.Context, parent string, files map[string][]byte, message string) (string, error)
}

// checkFollows refuses a branch that has lost a commit.
func (d *Driver) checkFollows(ctx context.Context, earlier, commit string) error {
	if earlier == "" {
		return nil
	}
	follows, err := d.Repository.IsAncestor(ctx, earlier, commit)
	if err == nil && !follows {
		at := d.Repository.FirstChange(ctx, earlier+".."+commit, d.Config, path.Dir(d.File))
		if at != "" {
			at += ": "
		}
		return fmt.Errorf("%s%w: %.12s does not follow %.12s; look at both, and push what is right", at, ErrRewritten,
			commit, earlier)
	}
	return err
}

// checkTargets refuses a branch that has lost a changed target, or one that would be changed next.
func (r snapshot) checkTargets(s State) error {
	declared := map[Target]bool{}
	for _, region := range r.fleet.Regions {
		declared[Target(region.Name)] = true
		for _, c := range region.Clusters {
			declared[Target(region.Name+"/"+c)] = true
		}
	}
	for _, w := range r.record.Waves {
		for _, t := range w.Targets {
			if !declared[t] && !s.Phase.IsEnd() {
				return fmt.Errorf("%s is in the plan and is not declared any more; declare it, or abort the rollout", t)
			}
		}
	}
	return nil
}
