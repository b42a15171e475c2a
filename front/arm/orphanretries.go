package arm

import "time"

// orphanRetries has the candidates whose check failed, by the id of their resource, until they are checked again. A
// later event for the resource is not needed: the resource of a deleted document may never change again.
type orphanRetries map[string]orphanRetry

type orphanRetry struct {
	candidate orphanCandidate
	at        time.Time
}

// Bounds of the retries.
const (
	firstOrphanPause   = time.Second
	longestOrphanPause = 5 * time.Minute
	maxOrphanRetries   = 1024
)

// add notes candidates whose check failed now. The pause until the next check doubles with each failure of a candidate,
// from 1 s to 5 min. It returns how many candidates had no room: these wait for the next event of their resource.
func (r orphanRetries) add(failed []orphanCandidate, now time.Time) (dropped int) {
	for _, c := range failed {
		if _, waits := r[c.resource.ID]; !waits && len(r) >= maxOrphanRetries {
			dropped++
			continue
		}
		wait := min(firstOrphanPause<<min(c.failures, 10), longestOrphanPause)
		c.failures++
		r[c.resource.ID] = orphanRetry{candidate: c, at: now.Add(wait)}
	}
	return dropped
}

// takeDue removes the candidates whose time has come, up to limit, and returns them.
func (r orphanRetries) takeDue(now time.Time, limit int) (due []orphanCandidate) {
	for id, retry := range r {
		if len(due) == limit {
			break
		}
		if !now.Before(retry.at) {
			due = append(due, retry.candidate)
			delete(r, id)
		}
	}
	return due
}

// untilNext returns how long it is until the first candidate is due; longestOrphanPause when none waits.
func (r orphanRetries) untilNext(now time.Time) time.Duration {
	next := longestOrphanPause
	for _, retry := range r {
		next = min(next, max(0, retry.at.Sub(now)))
	}
	return next
}
