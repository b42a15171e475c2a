package clm

import (
	"context"
	"errors"
	"net/http"
	"time"

	"atoll.dev/clm/status"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// lateReports is how long after the removal of a resource reports on it are still answered. It is the greatest
// age of a report, above which every report is refused.
const lateReports = status.MaxBehind

// applyLateReport answers a report on a resource that was removed with its last child. In the original such a
// resource stays until its own next report, which is answered with 201; so is the report here. It changes
// nothing: the resource stays removed. The answer is 404 for a resource that a report of its own has removed,
// as in the original, for a resource that was removed longer ago than lateReports, and for an unknown id.
func (s *Server) applyLateReport(ctx context.Context, a address, r status.Report, tie status.Tie) (reported, error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	d, err := s.store.Tombstone(ctx, a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) {
		return reported{}, missing(a.entity, a.id)
	}
	if err != nil {
		return reported{}, err
	}
	if err := a.admits(ctx, d); err != nil {
		return reported{}, err
	}
	seen, err := observedOf(d)
	if err != nil {
		return reported{}, err
	}
	if !seen.EndedWithChild || now.Sub(d.UpdatedAt) > lateReports {
		return reported{}, missing(a.entity, a.id)
	}
	return a.entity.applyReport(&d, r, tie, status.NoChildren, now)
}

// isMissing reports whether an error is the answer of missing.
func isMissing(err error) bool {
	e, ok := errors.AsType[*rest.Error](err)
	return ok && e.Status == http.StatusNotFound && e.Code == codeNotFound
}
