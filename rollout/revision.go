package rollout

import (
	"context"
	"errors"
	"fmt"

	"atoll.dev/internal/gitrepo"
)

// Resolver resolves revisions of a repository. Each Repository is one.
type Resolver interface {
	// Resolve returns the commit of a branch, a tag or a hash, or gitrepo.ErrNoRevision.
	Resolve(ctx context.Context, revision string) (string, error)
}

// Resolve returns the rollout with the commit of its revision. The error has file and line when the repository does
// not have the revision.
func (r Rollout) Resolve(ctx context.Context, by Resolver) (Rollout, error) {
	named := r.Change.Revision
	if named == "" {
		return r, nil
	}
	commit, err := by.Resolve(ctx, named)
	switch {
	case errors.Is(err, gitrepo.ErrNoRevision):
		return r, r.errorf("change.revision", "%s", err)
	case err != nil:
		return r, unreachableError{fmt.Errorf("resolving the revision %s: %w", named, err)}
	}
	r.Change.Revision = commit
	return r, nil
}

// moveRevisionFromSet moves git.revision of change.set to change.revision, so that a rollout resolves it in either
// place.
func (r *Rollout) moveRevisionFromSet() {
	const key = "git.revision"
	if revision, isText := r.Change.Set[key].(string); isText && revision != "" {
		r.Change.Revision = revision
		r.lines["change.revision"] = r.lines["change.set."+key]
		delete(r.Change.Set, key)
	}
}
