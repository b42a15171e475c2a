package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"atoll.dev/cluster"
)

// CLM orders an adapter's reports by the adapter's own clock, which may be set back: it discards a
// report whose observed_time is before that of the stored report (204), and the original keeps the
// stored report where the times are equal (201). So an execution counts a report as delivered only
// when the answer confirms that. Otherwise it reads the time of the stored report, and the task
// runs again: its observations are then newer than the stored report, so its report gets a time
// after the stored one, whatever the clock shows.

// errOvertaken is the error of a report that CLM discarded as older than the stored one. Engine.Run
// runs the task again.
var errOvertaken = errors.New(
	"the lifecycle manager has a report of a later time; the task looks again and reports after it")

// maxOvertaken is how often Engine.Run runs a task again because of errOvertaken.
const maxOvertaken = 2

// CLM accepts report times from maxBehind before to maxAhead after its own clock. dateError is the
// precision of the Date of its answers.
const (
	maxAhead  = 5 * time.Minute
	maxBehind = 30 * time.Minute
	dateError = 2 * time.Second
)

// reportKey identifies the report of an adapter on a resource, by the path of the resource's
// statuses.
type reportKey struct {
	path    string
	adapter cluster.Adapter
}

// storedTimes has the times of stored reports that this process's clock had not reached: each later
// report of the same key gets a later time. Only errOvertaken adds entries, which expire after an
// hour, so it is empty while clocks are right. Its methods may be called by several goroutines.
type storedTimes struct {
	mu sync.Mutex
	at map[reportKey]storedTime
}

type storedTime struct{ at, learned time.Time }

// rememberReportsFor is how long storedTimes keeps an entry.
const rememberReportsFor = time.Hour

// reportTime returns t, or the time one microsecond after the stored report when t is not after that.
func (s *storedTimes) reportTime(k reportKey, t time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stored, ok := s.at[k]; ok && !t.After(stored.at) {
		return stored.at.Add(time.Microsecond)
	}
	return t
}

// recordStored records the time of a stored report.
func (s *storedTimes) recordStored(k reportKey, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now() // its monotonic part is right also when the clock is set
	for other, t := range s.at {
		if now.Sub(t.learned) > rememberReportsFor {
			delete(s.at, other)
		}
	}
	if s.at == nil {
		s.at = map[reportKey]storedTime{}
	}
	s.at[k] = storedTime{at, now}
}

// recordAccepted records the time of a report that CLM has stored.
func (s *storedTimes) recordAccepted(k reportKey, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stored, ok := s.at[k]; ok && at.After(stored.at) {
		s.at[k] = storedTime{at, stored.learned}
	}
}

// statusBody is a status report with the members that decide its order.
type statusBody struct {
	lastReport
	members map[string]json.RawMessage
	at      time.Time // observed_time; zero if there is none
}

// parseStatus reads a status report. It returns false for other bodies.
func parseStatus(body []byte) (s statusBody, ok bool) {
	if json.Unmarshal(body, &s.members) != nil || json.Unmarshal(body, &s.lastReport) != nil || s.Adapter == "" {
		return s, false
	}
	if raw, there := s.members["observed_time"]; there && json.Unmarshal(raw, &s.at) != nil {
		return s, false // CLM's answer has the reason
	}
	return s, true
}

// withTime returns the body with another observed_time.
func (s *statusBody) withTime(t time.Time) ([]byte, error) {
	s.at = t.UTC().Truncate(time.Microsecond)
	raw, err := json.Marshal(s.at)
	if err != nil {
		return nil, err
	}
	s.members["observed_time"] = raw
	return json.Marshal(s.members)
}

// sendReport sends a status report. The error is errOvertaken when CLM kept a
// report of a later time instead.
func (x *execution) sendReport(ctx context.Context, r apiRequest) (*answer, error) {
	s, ok := parseStatus(r.body)
	if !ok || x.api.noRetries {
		return x.api.send(ctx, r)
	}
	key := reportKey{r.url.Path, s.Adapter}
	at := s.at
	// Task files write the time to the second, and one second may have several reports.
	if at.Equal(x.built.Truncate(time.Second)) {
		at = x.built
	}
	if next := x.stored.reportTime(key, at); !at.IsZero() && !next.Equal(s.at) {
		var err error
		if r.body, err = s.withTime(next); err != nil {
			return nil, err
		}
	}
	out, err := x.api.send(ctx, r)
	if date, wrong := s.clockOfRefusal(out); wrong {
		x.o.Log.WarnContext(ctx, "this machine's clock is wrong; the report has the lifecycle manager's time",
			slog.String("id", x.event.ID), slog.Time("observed", s.at), slog.Time("date", date))
		if r.body, err = s.withTime(x.stored.reportTime(key, date)); err != nil {
			return out, err
		}
		out, err = x.api.send(ctx, r)
	}
	if err != nil {
		return out, err
	}
	stored, err := x.timeOfKeptReport(ctx, r.url, s, out)
	switch {
	case err != nil:
		return out, err
	case stored.IsZero():
		x.stored.recordAccepted(key, s.at)
		return out, nil
	}
	x.stored.recordStored(key, stored)
	x.overtaken = true
	return out, errOvertaken
}

// clockOfRefusal reports whether CLM refused a report because its time is too far from CLM's clock, and
// returns the time of that clock.
func (s *statusBody) clockOfRefusal(out *answer) (date time.Time, wrong bool) {
	if out == nil || out.status != http.StatusBadRequest || out.date.IsZero() || s.at.IsZero() {
		return time.Time{}, false
	}
	ahead := s.at.Sub(out.date)
	return out.date, ahead > maxAhead-dateError || ahead < -(maxBehind-dateError)
}

// timeOfKeptReport returns the time of the report that CLM kept instead of s, according to its answer to
// s. It returns zero when CLM stored s or did not have to, and an error when CLM has neither
// report.
func (x *execution) timeOfKeptReport(ctx context.Context, statuses *url.URL, s statusBody, out *answer) (none time.Time,
	err error) {
	if out.status != http.StatusNoContent {
		var kept lastReport
		if json.Unmarshal(out.body, &kept) != nil || kept.Generation != s.Generation ||
			kept.sameConditions(s.lastReport) {
			return none, nil
		}
		return kept.ObservedAt, nil
	}
	last, found, err := x.readReport(ctx, *statuses, s.Adapter)
	switch {
	case err != nil:
		return none, fmt.Errorf("the report was discarded; reading the stored one: %w", err)
	case !found:
		return none, fmt.Errorf("the lifecycle manager discarded the report on generation %d, and has none",
			s.Generation)
	case last.Generation > s.Generation: // a report on an older generation has no use
		return none, nil
	case last.Generation == s.Generation && !s.at.After(last.ObservedAt):
		if last.ObservedAt.Equal(s.at) && last.sameConditions(s.lastReport) {
			return none, nil // CLM had stored s at the first attempt, whose answer was lost
		}
		return last.ObservedAt, nil
	case s.condition("Available") != nil && s.condition("Available").Status == "Unknown":
		return none, nil // by contract only an adapter's first report may have Unknown
	}
	return none,
		fmt.Errorf(
			"the lifecycle manager discarded the report on generation %d; the stored one is on generation %d and older",
			s.Generation, last.Generation)
}

// sameConditions reports whether two reports have the same statuses and reasons.
func (r *lastReport) sameConditions(other lastReport) bool {
	if len(r.Conditions) != len(other.Conditions) {
		return len(r.Conditions) == 0 || len(other.Conditions) == 0 // a report without conditions cannot be compared
	}
	for _, c := range other.Conditions {
		if was := r.condition(c.Type); was == nil || was.Status != c.Status || was.Reason != c.Reason {
			return false
		}
	}
	return true
}
