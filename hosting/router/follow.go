package router

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"time"
)

// maxTable bounds a line of the table: about 100,000 routes.
const maxTable = 16 << 20

// controlURL has a host because a URL needs one; the client connects to the socket.
const controlURL = "http://hosting"

// retryStream runs one stream of the control socket, and opens it again after each end, until ctx ends.
func (r *Router) retryStream(ctx context.Context, stream string, run func(context.Context) error) {
	const firstPause, longestPause = 20 * time.Millisecond, 500 * time.Millisecond
	pause, logged := firstPause, ""
	for ctx.Err() == nil {
		begun := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > heartbeat {
			pause, logged = firstPause, ""
		}
		if text := fmt.Sprint(err); text != logged {
			logged = text
			r.log.Warn("no connection to hosting", slog.String("stream", stream), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// followRoutes reads the stream of tables from hosting, stores each table, and routes by it. It returns an error when
// the stream ends, or has no line for three heartbeats.
func (r *Router) followRoutes(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(3*heartbeat, func() { cancel(errors.New("hosting sends no heartbeat")) })
	defer timeout.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, controlURL+"/routes", nil)
	if err != nil {
		return err
	}
	res, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("routes: %s", res.Status)
	}
	r.metrics.following.Set(1)
	defer r.metrics.following.Set(0)
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxTable)
	for lines.Scan() {
		timeout.Reset(3 * heartbeat)
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var t table
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return fmt.Errorf("routes: %w", err)
		}
		t.Routes = normalizeRoutes(t.Routes)
		if err := writeTable(r.tablePath(), t); err != nil {
			r.log.Error("cannot store the routes for the next start", slog.Any("error", err))
		}
		r.useTable(t) // the next report confirms it to hosting
	}
	return errors.Join(lines.Err(), context.Cause(ctx), io.ErrUnexpectedEOF)
}

// reportActivity reports which names have connections: at once after a change, at most
// every reportPace, and at each heartbeat without a change.
func (r *Router) reportActivity(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	read, write := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, controlURL+"/activity", read)
	if err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() {
		res, err := r.client.Do(req)
		if err == nil {
			err = fmt.Errorf("activity: %s", res.Status)
			res.Body.Close()
		}
		read.CloseWithError(err)
		answered <- err
	}()
	for err == nil {
		if err = json.NewEncoder(write).Encode(r.activity(time.Now())); err != nil {
			break
		}
		if err = pause(ctx, answered, reportPace); err != nil {
			break
		}
		beat := time.NewTimer(heartbeat)
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case err = <-answered:
			answered <- err
		case <-r.reportDue:
		case <-beat.C:
		}
		beat.Stop()
	}
	write.CloseWithError(err)
	cancel(err)
	if cause := <-answered; errors.Is(err, io.ErrClosedPipe) && cause != nil {
		return cause // why the other end of the pipe was closed
	}
	return err
}

// pause waits. It returns early, with the reason, when ctx or the stream ends.
func pause(ctx context.Context, answered chan error, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-answered:
		answered <- err
		return err
	case <-timer.C:
		return nil
	}
}

func (r *Router) activity(now time.Time) activityLine {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := activityLine{Revision: r.revision, Names: make(map[string]nameLine, len(r.names))}
	for name, u := range r.names {
		reported := nameLine{Open: u.open}
		if u.open == 0 {
			reported.IdleMS = max(0, now.Sub(u.last).Milliseconds())
		}
		line.Names[name] = reported
	}
	return line
}

// Errors of wakes over a budget: see Limits.
var (
	errNameBudget   = errors.New("the plane was woken too often")
	errSourceBudget = errors.New("the source has woken too many planes")
)

// wake requests the backend of a route from hosting, and returns when the backend serves. Waiting
// connections of one name share one request. While hosting does not answer, wake retries up to the
// limit. A wake of a sleeping plane is taken from the budgets of its name, and of the source of the
// connection that causes it.
func (r *Router) wake(ctx context.Context, route Route, source netip.Prefix) (string, error) {
	for {
		isFirst := false // this connection makes the request
		waiting := r.wakes.DoChan(route.ServerName, func() (any, error) {
			isFirst = true
			return r.requestWake(ctx, route, source)
		})
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case done := <-waiting:
			if errors.Is(done.Err, errSourceBudget) && !isFirst {
				continue // the budget of another source
			}
			backend, _ := done.Val.(string)
			return backend, done.Err
		}
	}
}

// requestWake takes the wake from the budgets, requests it from hosting, and logs a failure. It returns at the latest
// after Options.WakeLimit, or when the router stops.
func (r *Router) requestWake(ctx context.Context, route Route, source netip.Prefix) (string, error) {
	if route.Asleep {
		if err := r.takeFromWakeBudgets(source, route.ServerName); err != nil {
			r.logFailedWake(route.ServerName, err)
			return "", err
		}
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.o.WakeLimit)
	defer cancel()
	backend, err := r.retryWakeRequest(ctx, route.ServerName)
	r.metrics.observeWake(time.Since(begun), err)
	if err != nil {
		r.logFailedWake(route.ServerName, err)
	}
	return backend, err
}

func (r *Router) logFailedWake(name string, err error) {
	if r.mayLogWake(name) {
		r.log.Warn("plane not woken; further failures of the next minute are not logged",
			slog.String("server_name", name), slog.Any("error", err))
	}
}

// errRefused is hosting's answer that a plane cannot be woken.
var errRefused = errors.New("hosting refuses")

// retryWakeRequest requests a wake until hosting answers, or ctx ends. An answer that the plane cannot be woken is
// errRefused.
func (r *Router) retryWakeRequest(ctx context.Context, name string) (string, error) {
	const again = 50 * time.Millisecond
	for {
		backend, err := r.sendWakeRequest(ctx, name)
		if err == nil || errors.Is(err, errRefused) {
			return backend, err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("waking %s: %w", name, err)
		case <-time.After(again):
		}
	}
}

// sendWakeRequest sends one POST /wake and returns the backend of the answer.
func (r *Router) sendWakeRequest(ctx context.Context, name string) (string, error) {
	body, err := json.Marshal(wakeRequest{ServerName: name})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, controlURL+"/wake", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	res, err := r.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var answer wakeAnswer
	if err := json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&answer); err != nil {
		return "", fmt.Errorf("wake: %s: %w", res.Status, err)
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%w: %s", errRefused, answer.Error)
	}
	return answer.Backend, nil
}
