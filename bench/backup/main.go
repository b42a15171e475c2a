// Command backup measures what the continuous backup costs a control plane: the processor time of plane and follower,
// and the follower's memory, while ConfigMaps are written at a steady pace. It takes turns: without a backup, with one,
// and again. The follower and the store are processes of their own, so that each figure is of one program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"k8s.io/client-go/dynamic"

	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/plane"
)

var (
	binary      = flag.String("kube", "bin/atoll-kube", "program of the control plane")
	pace        = flag.Int("writes", 20, "writes in a second; 0: the plane is idle")
	size        = flag.Int("size", 2000, "bytes of a written object")
	data        = flag.Int("data", 50, "MiB of objects that the plane has before")
	length      = flag.Duration("for", time.Minute, "of one turn")
	settlePause = flag.Duration("settle", 15*time.Second,
		"before each turn: a plane stays busy for 10 s after a snapshot")
	turns = flag.Int("turns", 3, "without a backup, and as many with one")
	many  = flag.Int("followers", 1, "that follow the plane at once, in one process; the figures are for each")
	seed  = flag.Uint64("seed", 1, "of the written values")
	cpu   = flag.String("cpuprofile", "", "write a profile of the last follower to this file")

	role = flag.String("role", "", "of a process that this program starts: store or follower")
	dir  = flag.String("dir", "", "directory of the run, for such a process")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := measure
	switch *role {
	case "store":
		run = serveStore
	case "follower":
		run = follow
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench/backup:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	dir       string
	plane     *plane.Process
	client    dynamic.ResourceInterface
	rand      *rand.Rand
	written   int
	latencies map[string][]time.Duration // of writes, by the kind of turn
}

// child is a process of this program.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer // it ends when this is closed
	out   io.Reader
}

// startChild starts a role of this program, and returns when it has printed a line.
func (b *bench) startChild(role string) (*child, error) {
	c := &child{cmd: exec.Command(os.Args[0], "-role", role, "-dir", b.dir, "-cpuprofile", *cpu,
		"-followers", strconv.Itoa(*many))}
	c.cmd.Stderr = os.Stderr
	var err error
	if c.out, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	return c, c.awaitLine()
}

// awaitLine returns when the process has printed a line, which is empty.
func (c *child) awaitLine() error {
	if _, err := io.ReadFull(c.out, make([]byte, 1)); err != nil {
		return fmt.Errorf("a process of the measurement has ended: %w", errors.Join(err, c.cmd.Wait()))
	}
	return nil
}

func (c *child) end() error {
	if err := c.stdin.Close(); err != nil {
		return err
	}
	return c.cmd.Wait()
}

// costs are the processor time of all turns, and the memory in MiB at the end of the last turn.
type costs struct {
	without, with, follower time.Duration // of the plane without and with a follower, and of the follower
	begun, now, most        float64       // of the follower
	planeWithout, planeWith float64
}

// measureWithout measures a turn of the plane without a backup.
func (b *bench) measureWithout(ctx context.Context, c *costs) error {
	if err := b.pauseBeforeTurn(ctx); err != nil {
		return err
	}
	used, err := b.turn(ctx, "without")
	if err != nil {
		return err
	}
	c.without += used
	c.planeWithout, _, err = bed.Memory(b.plane.PID)
	return err
}

// measureWith measures a turn of the plane with a follower, which it starts and ends.
func (b *bench) measureWith(ctx context.Context, c *costs) error {
	f, err := b.startChild("follower")
	if err != nil {
		return err
	}
	if c.begun, _, err = bed.Memory(f.cmd.Process.Pid); err != nil {
		return err
	}
	if err := f.awaitLine(); err != nil { // the first chain is complete: a snapshot is an hourly cost
		return err
	}
	if err := b.pauseBeforeTurn(ctx); err != nil {
		return err
	}
	before, err := bed.ProcessorTime(f.cmd.Process.Pid)
	if err != nil {
		return err
	}
	used, err := b.turn(ctx, "with")
	if err != nil {
		return err
	}
	c.with += used
	after, err := bed.ProcessorTime(f.cmd.Process.Pid)
	if err != nil {
		return err
	}
	c.follower += after - before
	if c.now, c.most, err = bed.Memory(f.cmd.Process.Pid); err != nil {
		return err
	}
	if c.planeWith, _, err = bed.Memory(b.plane.PID); err != nil {
		return err
	}
	return f.end()
}

func measure(ctx context.Context) error {
	temporary, err := os.MkdirTemp("", "bench-backup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	b := &bench{dir: temporary, rand: rand.New(rand.NewPCG(*seed, 0)), latencies: map[string][]time.Duration{}}
	store, err := b.startChild("store")
	if err != nil {
		return err
	}
	defer store.end()
	if err := b.startPlane(ctx); err != nil {
		return err
	}
	defer b.plane.Kill()
	for n := *data << 20 / fillSize; n > 0; n-- {
		if err := b.write(ctx, fillSize); err != nil {
			return err
		}
	}
	if _, err := b.turn(ctx, "warm-up"); err != nil {
		return err
	}
	var c costs
	for range *turns {
		if err := b.measureWithout(ctx, &c); err != nil {
			return err
		}
		if err := b.measureWith(ctx, &c); err != nil {
			return err
		}
	}
	each := func(d time.Duration) float64 { return d.Seconds() * 1000 / (length.Seconds() * float64(*turns)) }
	figures := map[string]any{
		"plane_without_ms_per_second": each(c.without), "plane_with_ms_per_second": each(c.with),
		"follower_ms_per_second": each(c.follower) / float64(*many),
		"follower_percent":       100 * c.follower.Seconds() / c.without.Seconds() / float64(*many),
		"cost_percent": 100 * (c.with + c.follower - c.without).Seconds() / c.without.Seconds() /
			float64(*many),
		"follower_begun_mib": c.begun, "follower_now_mib": c.now, "follower_most_mib": c.most,
		"plane_without_mib": c.planeWithout, "plane_with_mib": c.planeWith,
	}
	report.Percentiles(figures, "write_without", b.latencies["without"])
	report.Percentiles(figures, "write_with", b.latencies["with"])
	return report.Line(os.Stdout, "backup", map[string]any{"writes_per_second": *pace, "size": *size, "data_mib": *data,
		"turn_seconds": length.Seconds(), "settle_seconds": settlePause.Seconds(), "turns": *turns, "followers": *many,
		"seed": *seed}, figures)
}
