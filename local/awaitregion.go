package local

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// progressTimeout is how long `up` waits for the next process to serve. The whole start has no
// time limit, because a slow machine may take minutes for it.
const progressTimeout = 3 * time.Minute

// errNoProgress ends awaitRegion.
var errNoProgress = errors.New("no further process began to serve")

// awaitRegion shows the events of the supervisor until the event that the region serves. It gives up
// when no further process begins to serve for progressTimeout.
func (h Home) awaitRegion(ctx context.Context, offset int64, supervisorExit <-chan error, show func(Event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	progressTimer := time.AfterFunc(progressTimeout, func() { cancel(errNoProgress) })
	defer progressTimer.Stop()
	ready := map[string]bool{} // stages that ended well; a process that restarts again and again counts once
	var lastFailure Event
	followErr := make(chan error, 1)
	go func() {
		followErr <- h.followEvents(ctx, offset, func(e Event) bool {
			switch {
			case e.Error != "":
				lastFailure = e
			case !ready[e.Stage]:
				ready[e.Stage] = true
				progressTimer.Reset(progressTimeout)
			}
			show(e)
			return e.Stage != regionStage
		})
	}()
	select {
	case err := <-followErr:
		if errors.Is(context.Cause(ctx), errNoProgress) {
			return fmt.Errorf("the region does not serve, and %w for %s (%s); see `atoll status` and `atoll logs`; "+
				"`atoll down` stops it", errNoProgress, progressTimeout, h.describeFailure(lastFailure))
		}
		return err
	case err := <-supervisorExit:
		cancel(nil)
		<-followErr
		return fmt.Errorf("the supervisor ended (%v): %s", err, h.lastLogLine(supervisorName))
	}
}

// describeFailure returns the last failure of a process or, when there was none, the processes that
// do not serve yet.
func (h Home) describeFailure(last Event) string {
	if last.Stage != "" {
		return last.Stage + ": " + last.Error
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	status, err := h.Status(ctx)
	if err != nil {
		return err.Error()
	}
	var problems []string
	for _, p := range status.Processes {
		if p.State == "ready" {
			continue
		}
		text := p.Name + " is " + p.State
		if p.Reason != "" {
			text += " (" + p.Reason + ")"
		}
		problems = append(problems, text)
	}
	if len(problems) == 0 {
		return "no process reports a failure"
	}
	return strings.Join(problems, ", ")
}
