package localnodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/logfile"
	"atoll.dev/internal/pause"
	"atoll.dev/node"
	"atoll.dev/node/supervisor"
)

// goal is the state that a machine should be in.
type goal string

const (
	awake   goal = ""        // its supervisor runs
	asleep  goal = "Asleep"  // its supervisor does not run; the home stays
	removed goal = "Removed" // nothing of it is left
)

const (
	firstPause = 500 * time.Millisecond // before the second start of a supervisor that has ended
	longPause  = 30 * time.Second
	longRun    = time.Minute // a try that took longer resets the pause

	tokenLife = 10 * time.Minute // of a bootstrap token, as far as this package counts on it
	logLimit  = 1 << 20          // bytes of a supervisor's log
	logPause  = time.Minute      // between two looks at the size of that log
)

// markVariable marks the processes of a region. A supervisor with it would count as a plane.
const markVariable = "ATOLL_PROCESS="

// machine owns one supervisor and its home.
type machine struct {
	machines *Machines
	home     string
	record   record
	log      *slog.Logger
	poke     chan struct{} // holds one after a change of the goal

	mu         sync.Mutex
	goal       goal
	awakeSince time.Time // when goal became awake
	restart    bool      // the config has changed, and the supervisor does not know
	failure    error     // of the last start or stop
}

func (x *machine) pool() Pool {
	return Pool{Cluster: controlplane.ID{Namespace: x.record.Namespace, Name: x.record.Cluster}, Name: x.record.Pool}
}

func (x *machine) key() key { return key{x.pool().Cluster, x.record.UID} }

// observe reads the state of the machine.
func (x *machine) observe() Machine {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := Machine{UID: x.record.UID, Node: x.record.Node, Removing: x.goal == removed, AwakeSince: x.awakeSince}
	if status, err := node.ReadStatus(x.home); err == nil {
		o.State, o.Message = status.State, status.Message
	}
	if x.failure != nil {
		o.Message = x.failure.Error()
	}
	if info, err := os.Stat(configFile(x.home)); err == nil {
		o.Joined = node.HasJoined(x.home)
		o.NeedsToken = !o.Joined && time.Since(info.ModTime()) > tokenLife
	}
	return o
}

// set changes the goal. A machine that is being removed keeps that goal.
func (x *machine) set(g goal) {
	x.mu.Lock()
	changed := x.goal != g && x.goal != removed
	if changed {
		x.goal = g
		r := x.record
		r.Goal = g
		if err := r.write(x.home); err != nil {
			x.log.Warn("the goal of a real node was not saved; a restarted hosting begins with the old one", "error", err)
		}
		if g == awake {
			x.awakeSince = time.Now()
		}
	}
	x.mu.Unlock()
	if changed {
		x.nudge()
	}
}

func (x *machine) nudge() {
	select {
	case x.poke <- struct{}{}:
	default:
	}
}

// renew wakes the machine. It gives it other settings of the API server or a new token, and then restarts it. Another
// CA alone is no reason to restart a node that has joined: its certificates would still be of the earlier one. Package
// nodepool replaces the node.
func (x *machine) renew(o Order) error {
	if pool := x.pool(); o.Pool != pool {
		return fmt.Errorf("node %s of cluster %s: its machine belongs to pool %s, not to %s", x.record.Node, pool.Cluster,
			pool.Name, o.Pool.Name)
	}
	x.set(awake)
	config, err := node.ReadConfig(configFile(x.home))
	if err != nil {
		return fmt.Errorf("node %s: %w", x.record.Node, err)
	}
	if o.Config.BootstrapToken == "" {
		o.Config.APIServer.CA = config.APIServer.CA
	}
	moved := config.APIServer != o.Config.APIServer
	if !moved && o.Config.BootstrapToken == "" {
		return nil
	}
	config.APIServer = o.Config.APIServer
	if o.Config.BootstrapToken != "" {
		config.BootstrapToken = o.Config.BootstrapToken
	}
	if err := errors.Join(config.Validate(), writeConfig(x.home, config)); err != nil {
		return fmt.Errorf("node %s: %w", x.record.Node, err)
	}
	x.mu.Lock()
	x.restart = true
	x.mu.Unlock()
	x.nudge()
	return nil
}

// run pursues the goal until ctx ends or the machine is removed.
func (x *machine) run(ctx context.Context) {
	backoff := firstPause
	for ctx.Err() == nil {
		x.mu.Lock()
		g, restart := x.goal, x.restart
		x.mu.Unlock()
		from := time.Now()
		var err error
		switch {
		case g == removed:
			if err = x.remove(ctx); err == nil {
				x.machines.forget(x)
				return
			}
		case g == asleep:
			if err = node.Stop(ctx, x.home); err == nil {
				x.setFailure(nil)
				pause.ForWake(ctx, x.poke, 0)
				continue
			}
		case restart:
			if err = node.Stop(ctx, x.home); err == nil { // the next start reads the changed config
				x.mu.Lock()
				x.restart = false
				x.mu.Unlock()
				continue
			}
		default:
			var ended bool
			if ended, err = x.supervise(ctx); err == nil && !ended {
				continue // the goal has changed
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			x.log.Warn("a real node cannot be started or stopped; hosting tries again", "error", err, "after", backoff)
		}
		x.setFailure(err)
		if time.Since(from) > longRun {
			backoff = firstPause
		}
		pause.ForWake(ctx, x.poke, backoff)
		backoff = min(2*backoff, longPause)
	}
}

// setFailure records the error of the last try, nil for a success. It notifies the pool when tries begin or cease to
// fail.
func (x *machine) setFailure(err error) {
	x.mu.Lock()
	same := (err == nil) == (x.failure == nil)
	x.failure = err
	x.mu.Unlock()
	if !same {
		x.machines.changed(x.pool())
	}
}

// supervise adopts or starts the supervisor, and returns when it has ended, the goal changes or ctx ends.
func (x *machine) supervise(ctx context.Context) (ended bool, err error) {
	p, err := node.FindProcess(x.home)
	switch {
	case errors.Is(err, node.ErrNotRunning):
		if p, err = x.start(ctx); err != nil {
			return false, err
		}
	case err != nil:
		return false, err
	default:
		x.log.Info("a real node is adopted", "supervisor", p.PID)
	}
	x.setFailure(nil)
	waiting, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- p.Wait(waiting) }()
	defer func() {
		cancel()
		<-result
		p.Close()
	}()
	bound := time.NewTicker(logPause)
	defer bound.Stop()
	for {
		select {
		case <-bound.C:
			if err := logfile.LimitSize(logPath(x.home), logLimit, 1); err != nil {
				x.log.Warn("the log of a supervisor cannot be bounded", "error", err)
			}
			continue
		case err := <-result:
			result <- err
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			x.log.Warn("the supervisor of a real node has ended", "supervisor", p.PID, "log", logPath(x.home))
			return true, err
		case <-x.poke:
		case <-ctx.Done():
		}
		return false, ctx.Err()
	}
}

func logPath(home string) string { return filepath.Join(home, "supervisor.log") }

// start starts the supervisor, in a session of its own, and returns when it has written its first status. It waits for
// that also when ctx ends meanwhile: without its status nobody finds a supervisor, and `atoll down` would leave it.
func (x *machine) start(ctx context.Context) (*node.Process, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := logfile.LimitSize(logPath(x.home), logLimit, 1); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(logPath(x.home), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(x.machines.o.Atoll, "node", "run", "--config", configFile(x.home))
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, markVariable) {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the supervisor: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the process continues when this one ends
		close(ended)
	}()
	ticker := time.NewTicker(startPoll)
	defer ticker.Stop()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	for {
		select {
		case <-ended:
			return nil, fmt.Errorf("the supervisor ended at its start (%s): see %s", cmd.ProcessState, logPath(x.home))
		case <-limit.C:
			_ = cmd.Process.Kill()
			<-ended
			return nil, fmt.Errorf("the supervisor wrote no status within %s and was killed: see %s", startLimit,
				logPath(x.home))
		case <-ticker.C:
		}
		if status, err := node.ReadStatus(x.home); err != nil || status.Supervisor != cmd.Process.Pid {
			continue
		}
		if p, err := node.FindProcess(x.home); err == nil {
			x.log.Info("a real node is started", "supervisor", p.PID)
			return p, nil
		}
	}
}

const (
	startPoll  = 10 * time.Millisecond // between two looks for the first status of a supervisor
	startLimit = 20 * time.Second      // for that status; a supervisor writes it first of all
)

// remove stops the supervisor and deletes the home.
func (x *machine) remove(ctx context.Context) error {
	if err := node.Stop(ctx, x.home); err != nil {
		return err
	}
	if status, err := node.ReadStatus(x.home); err == nil && status.State != node.Stopped {
		// The supervisor was killed before it had removed everything.
		if err := supervisor.SweepNode(x.home, x.machines.BridgeOf(x.pool().Cluster)); err != nil {
			return err
		}
	}
	if err := deleteHome(x.home); err != nil {
		return err
	}
	x.log.Info("a real node is removed")
	return nil
}
