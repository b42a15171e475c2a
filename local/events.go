package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

// regionStage is the stage that ends when every process serves.
const regionStage = "region"

// Event is one step of starting the region, as the supervisor records it.
type Event struct {
	Time   time.Time     `json:"time"`
	Stage  string        `json:"stage"` // a process, or regionStage
	Detail string        `json:"detail,omitempty"`
	Took   time.Duration `json:"took_ns"`
	Error  string        `json:"error,omitempty"`
}

// eventLog appends to run/events.jsonl, which `up` shows as it grows. Each supervisor truncates the
// file.
type eventLog struct {
	mu sync.Mutex
	f  *os.File
}

func (h Home) eventsPath() string { return h.Path("run", "events.jsonl") }

func (h Home) newEventLog() (*eventLog, error) {
	f, err := os.OpenFile(h.eventsPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return &eventLog{f: f}, nil
}

func (l *eventLog) write(e Event) {
	e.Time = time.Now().UTC()
	data, _ := json.Marshal(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f.Write(append(data, '\n')) // a lost event only affects the display of `up`
}

func (l *eventLog) recordDone(stage, detail string, took time.Duration) {
	l.write(Event{Stage: stage, Detail: detail, Took: took})
}

func (l *eventLog) recordFailure(stage string, err error) {
	l.write(Event{Stage: stage, Error: err.Error()})
}

// followEvents calls handle with each event from offset on, until it returns
// false or ctx ends.
func (h Home) followEvents(ctx context.Context, offset int64, handle func(Event) bool) error {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		var err error
		if offset, err = h.readEvents(offset, handle); errors.Is(err, errStopFollowing) {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// errStopFollowing is returned by readEvents when handle wants no more events; followEvents then returns
// nil.
var errStopFollowing = errors.New("enough")

// readEvents calls handle with each complete event from offset on and returns the next offset. It
// returns errStopFollowing when handle returns false.
func (h Home) readEvents(offset int64, handle func(Event) bool) (int64, error) {
	f, err := os.Open(h.eventsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return offset, fmt.Errorf("events: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() < offset {
		offset = 0 // a new supervisor truncated the file
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return offset, fmt.Errorf("events: %w", err)
	}
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return offset, nil // an incomplete line is read at the next call
		}
		offset += int64(len(line))
		var e Event
		if json.Unmarshal(line, &e) == nil && !handle(e) {
			return offset, errStopFollowing
		}
	}
}

func (h Home) eventsSize() int64 {
	info, err := os.Stat(h.eventsPath())
	if err != nil {
		return 0
	}
	return info.Size()
}
