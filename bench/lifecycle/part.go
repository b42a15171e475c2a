package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	_ "net/http/pprof" // for -pprof
	"os"
	"os/exec"
	profile "runtime/pprof"

	"atoll.dev/clm"
	"atoll.dev/internal/freeport"
)

// serverProcess is a process of this program that is a lifecycle manager.
type serverProcess struct {
	cmd    *exec.Cmd
	input  io.Closer
	output *bufio.Reader
}

// serverVariable is the environment variable of such a process. Its value is the options as JSON.
const serverVariable = "ATOLL_BENCH_SERVER"

// serverOptions returns the options of a lifecycle manager that can start again: with a directory for its CA, which
// the caller removes, and with its own ports.
func serverOptions(dsn string) (o regionOptions, err error) {
	o = regionOptions{DSN: dsn, Entities: string(clm.DefaultEntities), Fleet: true}
	for _, into := range []*string{&o.HTTP, &o.Broker} {
		l, err := freeport.Listen()
		if err != nil {
			return o, err
		}
		defer l.Close() // after both have their ports
		*into = l.Addr().String()
	}
	o.Dir, err = os.MkdirTemp("", "atoll-bench-ca-")
	return o, err
}

// startServer starts this program again as a lifecycle manager, and waits until it is ready.
func startServer(ctx context.Context, o regionOptions) (*serverProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	options, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-pprof", *pprofAddress, "-start-profile", *startProfile)
	cmd.Env, cmd.Stderr = append(os.Environ(), serverVariable+"="+string(options)), os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &serverProcess{cmd, input, bufio.NewReader(output)}
	if _, err := p.output.ReadString('\n'); err != nil {
		p.stop()
		return nil, fmt.Errorf("waiting for the lifecycle manager: %w", err)
	}
	return p, nil
}

// waitComplete waits until the lifecycle manager has read all placements and pending resources, for which its
// readiness does not wait.
func (p *serverProcess) waitComplete(context.Context) error {
	if _, err := p.output.ReadString('\n'); err != nil {
		return fmt.Errorf("waiting until the lifecycle manager has read all: %w", err)
	}
	return nil
}

func (p *serverProcess) pid() int { return p.cmd.Process.Pid }

func (p *serverProcess) stop() {
	p.input.Close()
	_ = p.cmd.Wait()
}

// kill ends the process as kill -9 does.
func (p *serverProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// runServer is the main function of the process that startServer starts. It prints a line when it is ready, and a line
// when checkComplete returns no error. It returns when its standard input ends.
func runServer(ctx context.Context, options string) error {
	o := regionOptions{}
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	if *pprofAddress != "" {
		go func() { _ = http.ListenAndServe(*pprofAddress, nil) }()
	}
	if *startProfile != "" {
		file, err := os.Create(*startProfile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := profile.StartCPUProfile(file); err != nil {
			return err
		}
	}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	region, err := startRegion(ctx, o)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	err = await(ctx, func() error { return checkComplete(region) })
	profile.StopCPUProfile()
	if err == nil {
		fmt.Println("complete")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return errors.Join(err, region.Close())
}

// checkComplete returns an error until fleet has read the placements, and the figures of pending resources are there.
// Readiness waits for the sentinel, but not for these.
func checkComplete(r *region) error {
	families, err := r.Ops.Registry.Gather()
	if err != nil {
		return err
	}
	missing := map[string]bool{"atoll_fleet_reserved": true, "hyperfleet_api_resource_pending_reconciliation": true}
	for _, f := range families {
		if len(f.GetMetric()) > 0 {
			delete(missing, f.GetName())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("there are no figures of %v", missing)
	}
	return nil
}
