package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

// config is the plane's configuration as recorded, with the rest from spec.
func (x *runner) config(spec controlplane.Spec) plane.Config {
	return plane.Config{
		Name: spec.Name, Dir: x.dir, Binary: x.runtime.o.Binaries[spec.Release], Address: x.record.backend(),
		ExternalHosts: spec.ServerNames, ServiceCIDR: x.record.ServiceCIDR, SimulatedNodes: true,
		EtcdQuota: x.runtime.o.EtcdQuota, EmulatedVersion: spec.EmulatedVersion,
	}
}

// adopt takes over a process that runs already.
func (x *runner) adopt(ctx context.Context) error {
	if x.process != nil {
		return nil
	}
	p, err := plane.Adopt(ctx, x.config(x.currentGoal().spec), plane.Options{LogFile: logPath(x.state)})
	if p != nil {
		x.log.Info("plane adopted", "pid", p.PID)
		x.joinGroup(p)
	}
	x.process = p
	if errors.Is(err, plane.ErrUnnamed) {
		err = errors.Join(err, x.killStrays())
	}
	return err
}

// killStrays ends the plane's processes when the plane's lock names none of them: a plane that was taken over may write
// anything there, and must not live on for that.
func (x *runner) killStrays() error {
	isOurs := func(int) bool { return false }
	if g, ok := x.runtime.group(x.slot); ok {
		isOurs = func(pid int) bool { return slices.Contains(g.processes(), pid) }
	}
	x.log.Warn("the lock of a plane names no process of the plane; all of its processes are ended")
	return plane.KillStrays(x.dir, processes(), isOurs)
}

// launch starts a new process. The record is written before, so that it
// describes every process that a later runtime may find.
func (x *runner) launch(ctx context.Context, spec controlplane.Spec) error {
	if err := checkRunnable(x.runtime.o.Binaries[spec.Release]); err != nil {
		return err
	}
	if err := x.endRest(); err != nil {
		return err
	}
	for _, dir := range []string{x.dir, x.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	next := x.record
	if next.Port != 0 && !x.portTaken && !isFree(next.Port) {
		return unix.EADDRINUSE // fail shows it, and the next launch chooses another port
	}
	if next.Port == 0 || x.portTaken {
		port, err := x.runtime.ports.choose(x.slot)
		if err != nil {
			return err
		}
		next.Port = port
	}
	if err := x.takeData(&next, spec.Data); err != nil {
		return err
	}
	if err := x.copyData(&next, spec); err != nil {
		return fmt.Errorf("copying the data before the upgrade: %w", err)
	}
	if err := rotateKeys(x.dir, next.Rotations, spec.Rotations); err != nil {
		return err
	}
	next.Rotations = spec.Rotations
	shut, err := x.runtime.walls.forBinary(ctx, x.runtime.o.Binaries[spec.Release])
	if err != nil {
		return err
	}
	if shut.HasUser {
		shut.User = x.runtime.users.choose(x.runtime.o.Dir, x.slot, next.User)
	}
	if shut.User, err = x.giveFiles(shut.User); err != nil {
		return fmt.Errorf("the owner of the plane's files: %w", err)
	}
	next.Release, next.Hosts, next.User = spec.Release, spec.ServerNames, shut.User
	next.Emulated = spec.EmulatedVersion
	if next.ServiceCIDR == "" {
		next.ServiceCIDR = spec.ServiceCIDR
	}
	if err := next.write(x.state); err != nil {
		return err
	}
	x.record, x.portTaken = next, false
	config := x.config(spec)
	if shut.Process { // a program that knows no walls knows no egress either
		config.Egress = plane.Tunnel
	}
	p, err := plane.Start(ctx, config, plane.Options{LogFile: logPath(x.state), Env: x.environment(),
		MaxFiles: maxOpenFiles, Walls: shut})
	if err != nil {
		return err
	}
	x.joinGroup(p)
	x.log.Info("plane started", "pid", p.PID, "release", spec.Release, "address", p.Config.Address)
	x.process = p
	return nil
}

// environment returns the variables that a plane gets besides the runtime's own
// environment. The mark of a region's processes (decision 001) gets the plane's slot,
// so that a supervisor does not take the plane for hosting itself.
func (x *runner) environment() []string {
	limits := x.record.Size.Limits()
	env := []string{fmt.Sprintf("GOMEMLIMIT=%d", x.softLimit()),
		fmt.Sprintf("ATOLL_MAX_REQUESTS=%d", limits.Requests),
		fmt.Sprintf("ATOLL_MAX_WATCH_EVENTS=%d", limits.WatchEvents)}
	if mark := os.Getenv("ATOLL_PROCESS"); mark != "" {
		env = append(env, "ATOLL_PROCESS="+mark+"/"+x.slot.String())
	}
	return env
}
