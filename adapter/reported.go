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
)

// CLM orders an adapter's reports by the adapter's own clock, which may be set
// back: it discards a report whose observed_time is before that of the stored
// one (204), and the original keeps the stored one where the times are equal
// (201). So an execution takes a report for delivered only when the answer says
// so. Otherwise it reads the time of the stored report, and the task runs again:
// what it finds then is newer than the stored report, whoever made that, so its
// report gets a time after it, whatever the clock says.

// errOvertaken is the error of a report that CLM takes for older than the stored
// one. Engine.Run runs the task again.
var errOvertaken = errors.New(
	"the lifecycle manager has a report of a later time; the task looks again and reports after it")

// maxOvertaken is how often Engine.Run runs a task again because of errOvertaken.
const maxOvertaken = 2

// How far CLM lets the time of a report be from its own clock, and how exact the
// Date of its answers is.
const (
	maxAhead  = 5 * time.Minute
	maxBehind = 30 * time.Minute
	dateError = 2 * time.Second
)

// reportKey says whose report of which resource: the path of its statuses, and
// the adapter.
type reportKey struct{ path, adapter string }

// storedTimes are the times of stored reports that this process's clock had not
// reached: each later report of the same key must have a later one. Entries are
// made by errOvertaken only and kept for an hour, so there are none while clocks
// are right. Its methods may be called by several goroutines.
type storedTimes struct {
	mu sync.Mutex
	at map[reportKey]storedTime
}

type storedTime struct{ at, learned time.Time }

// after returns the time of a report: the given one, or one microsecond after
// that of the stored report if that is later.
func (s *storedTimes) after(k reportKey, t time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stored, ok := s.at[k]; ok && !t.After(stored.at) {
		return stored.at.Add(time.Microsecond)
	}
	return t
}

// learn notes the time of a stored report.
func (s *storedTimes) learn(k reportKey, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now() // intervals of it are right whatever the clock says
	for other, t := range s.at {
		if now.Sub(t.learned) > rememberFor {
			delete(s.at, other)
		}
	}
	if s.at == nil {
		s.at = map[reportKey]storedTime{}
	}
	s.at[k] = storedTime{at, now}
}

// taken notes the time of a report that is stored now.
func (s *storedTimes) taken(k reportKey, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stored, ok := s.at[k]; ok && at.After(stored.at) {
		s.at[k] = storedTime{at, stored.learned}
	}
}

// statusBody is a status report in JSON, as far as its order depends on it.
type statusBody struct {
	lastReport
	members map[string]json.RawMessage
	at      time.Time // observed_time; zero if there is none
}

// parseStatus reads a report; false if it is none.
func parseStatus(body []byte) (s statusBody, ok bool) {
	if json.Unmarshal(body, &s.members) != nil || json.Unmarshal(body, &s.lastReport) != nil || s.Adapter == "" {
		return s, false
	}
	if raw, there := s.members["observed_time"]; there && json.Unmarshal(raw, &s.at) != nil {
		return s, false // CLM says what is wrong with it
	}
	return s, true
}

// observedAt is the body with another observed_time.
func (s *statusBody) observedAt(t time.Time) ([]byte, error) {
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
	if !ok || x.api.single {
		return x.api.send(ctx, r)
	}
	key := reportKey{r.url.Path, s.Adapter}
	at := s.at
	// tasks write it to the second; within one there may be several reports
	if at.Equal(x.built.Truncate(time.Second)) {
		at = x.built
	}
	if next := x.stored.after(key, at); !at.IsZero() && !next.Equal(s.at) {
		var err error
		if r.body, err = s.observedAt(next); err != nil {
			return nil, err
		}
	}
	out, err := x.api.send(ctx, r)
	if date, wrong := s.refusedFor(out); wrong {
		x.o.Log.WarnContext(ctx, "this machine's clock is wrong; the report has the lifecycle manager's time",
			slog.String("id", x.event.ID), slog.Time("observed", s.at), slog.Time("date", date))
		if r.body, err = s.observedAt(x.stored.after(key, date)); err != nil {
			return out, err
		}
		out, err = x.api.send(ctx, r)
	}
	if err != nil {
		return out, err
	}
	stored, err := x.keptInstead(ctx, r.url, s, out)
	switch {
	case err != nil:
		return out, err
	case stored.IsZero():
		x.stored.taken(key, s.at)
		return out, nil
	}
	x.stored.learn(key, stored)
	x.overtaken = true
	return out, errOvertaken
}

// refusedFor says whether CLM refused a report because its time is too far from
// CLM's clock, and what that said.
func (s *statusBody) refusedFor(out *answer) (date time.Time, wrong bool) {
	if out == nil || out.status != http.StatusBadRequest || out.date.IsZero() || s.at.IsZero() {
		return time.Time{}, false
	}
	ahead := s.at.Sub(out.date)
	return out.date, ahead > maxAhead-dateError || ahead < -(maxBehind-dateError)
}

// keptInstead returns the time of the report that CLM kept instead of s, by its
// answer to s; zero when it took s, or need not. It is an error when CLM has
// neither.
func (x *execution) keptInstead(ctx context.Context, statuses *url.URL, s statusBody, out *answer) (none time.Time,
	err error) {
	if out.status != http.StatusNoContent {
		var kept lastReport
		if json.Unmarshal(out.body, &kept) != nil || kept.Generation != s.Generation || kept.says(s.lastReport) {
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
	case last.Generation > s.Generation: // what this one says is of no use to anybody
		return none, nil
	case last.Generation == s.Generation && !s.at.After(last.ObservedAt):
		if last.ObservedAt.Equal(s.at) && last.says(s.lastReport) {
			return none, nil // a repetition whose first answer was lost
		}
		return last.ObservedAt, nil
	case s.condition("Available") != nil && s.condition("Available").Status == "Unknown":
		return none, nil // by contract only an adapter's first report may say so
	}
	return none,
		fmt.Errorf(
			"the lifecycle manager discarded the report on generation %d; the stored one is on generation %d and older",
			s.Generation, last.Generation)
}

// says compares values and reasons of conditions.
func (r *lastReport) says(other lastReport) bool {
	if len(r.Conditions) != len(other.Conditions) {
		return len(r.Conditions) == 0 || len(other.Conditions) == 0 // what has none shows nothing
	}
	for _, c := range other.Conditions {
		if was := r.condition(c.Type); was == nil || was.Status != c.Status || was.Reason != c.Reason {
			return false
		}
	}
	return true
}
