package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" // of the server, where it is asked for
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"atoll.dev/bench/bed"
	"atoll.dev/bus"
	"atoll.dev/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/postgres"
	"atoll.dev/sentinel"
)

// target is the measured server.
type target struct {
	url              string
	server, postgres int // processes; 0: unknown

	// Of a server of ours.
	dsn string
	dir string // for files
	end func() error

	yardstick *yardstick
}

// measureYardstick measures the machine, where the server is ours.
func (t *target) measureYardstick(ctx context.Context) error {
	if t.yardstick == nil {
		return nil
	}
	if err := t.yardstick.measure(ctx, t); err != nil {
		return fmt.Errorf("the yardstick: %w", err)
	}
	return nil
}

// part has the parameters of the server's process.
type part struct {
	DSN, Pprof string
	Adapters   []string
	Verbose    bool

	// The sentinel is in the process, too, if it has a broker.
	Broker        string
	CA, Cert, Key []byte // PEM
}

// partVariable is the environment variable of a process that is the server. Its value is the part as JSON.
const partVariable = "ATOLL_BENCH_CLM"

// start starts PostgreSQL and the server.
func start(ctx context.Context) (at *target, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "atoll-bench-")
	if err != nil {
		return nil, nil, err
	}
	stops := []func() error{func() error { return os.RemoveAll(dir) }}
	stop = func() (err error) {
		for i := len(stops) - 1; i >= 0; i-- {
			err = errors.Join(err, stops[i]())
		}
		return err
	}
	defer func() {
		if at == nil {
			err = errors.Join(err, stop())
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL's user may be another
		return nil, nil, err
	}
	c := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s"),
		Settings: stockSettings}
	if err := c.Init(ctx); err != nil {
		return nil, nil, err
	}
	log := io.Discard
	if *verbose {
		log = os.Stderr
	}
	p, err := c.Start(ctx, log)
	if err != nil {
		return nil, nil, err
	}
	stops = append(stops, p.Stop)
	if err := c.EnsureDatabase(ctx, "clm", "clm"); err != nil {
		return nil, nil, err
	}
	measure, err := newYardstick(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	t := &target{yardstick: measure, dsn: c.DSN("clm", "clm") + "&jit=off", dir: dir, postgres: p.PID(),
		end: func() error { return nil }}
	if err := t.serve(part{}); err != nil {
		return nil, nil, err
	}
	stops = append(stops, func() error { return t.end() })
	return t, stop, nil
}

// serve starts this program again as the server, which takes the place of the one before. It ends when its input does.
func (t *target) serve(p part) error {
	if err := t.end(); err != nil {
		return err
	}
	p.DSN, p.Pprof, p.Adapters, p.Verbose = t.dsn, *pprof, strings.Split(*adapters, ","), *verbose
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), partVariable+"=yes")
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return fmt.Errorf("starting the server: %w", err)
	}
	t.end = func() error {
		t.end = func() error { return nil }
		return errors.Join(in.Close(), cmd.Wait())
	}
	if err := json.NewEncoder(in).Encode(p); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the server did not begin to serve: %w", err)
	}
	t.url, t.server = strings.TrimSpace(line), cmd.Process.Pid
	return nil
}

// runPart serves and does not return in a process that was started as the server.
func runPart() {
	if os.Getenv(partVariable) == "" {
		return
	}
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var p part
	if err = errors.Join(err, json.Unmarshal(line, &p)); err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = io.Copy(io.Discard, in); cancel() }()
		if p.Pprof != "" {
			go func() { _ = http.ListenAndServe(p.Pprof, nil) }()
		}
		err = p.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run serves the region's kinds on a plain listener until ctx ends, and prints its URL.
func (p part) run(ctx context.Context) error {
	var required []cluster.Adapter
	for _, name := range p.Adapters {
		required = append(required, cluster.Adapter(name))
	}
	registry, err := clm.NewRegistry([]clm.Entity{{Kind: "Cluster", Plural: "clusters", NameMinLen: 3, NameMaxLen: 54,
		RequiredAdapters: required}})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	logger := slog.New(slog.DiscardHandler)
	if p.Verbose {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	database, err := clm.Open(ctx, clm.DatabaseOptions{DSN: p.DSN, Registry: registry, Logger: logger})
	if err != nil {
		return err
	}
	defer database.Close()
	s, err := clm.New(clm.Options{Database: database, Plain: l, Identify: (&clm.Identity{Open: true}).Identify,
		Metrics: prometheus.NewRegistry(), Logger: logger})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if p.Broker != "" {
		events, err := p.sentinel(ctx, database, logger)
		if err != nil {
			return err
		}
		group.Go(func() error { return events.Run(ctx) })
		if err := bed.Await(ctx, 5*time.Millisecond, func() error { return events.Check(ctx) }); err != nil {
			return err
		}
	}
	group.Go(func() error { return s.Run(ctx) })
	fmt.Printf("http://%s\n", l.Addr()) // requests wait until it accepts them
	return group.Wait()
}

// sentinel makes the sentinel of a process that has the API, too, as atoll clm does.
func (p part) sentinel(ctx context.Context, database *clm.Database, logger *slog.Logger) (*sentinel.Sentinel, error) {
	config, err := bed.ClientTLS(p.CA, p.Cert, p.Key, "broker")
	if err != nil {
		return nil, err
	}
	return sentinel.New(ctx, sentinel.Options{
		Store: database.Store, Feed: database.Feed, Kinds: []sentinel.Kind{
			{Kind: "Cluster", Plural: "clusters"}}, Requests: clm.RequestKind,
		Bus: bus.ClientOptions{Addr: p.Broker, TLS: config,
			ClientID: "clm-bench"}, Trace: clm.TraceparentOf, Logger: logger, Metrics: prometheus.NewRegistry(),
	})
}

// cpu returns the processor time that the server, and PostgreSQL with all its children, have used; 0 for a process that
// is unknown.
func (t *target) cpu() (server, postgres time.Duration, err error) {
	if t.server != 0 {
		if server, err = bed.ProcessorTime(t.server); err != nil {
			return 0, 0, err
		}
	}
	if t.postgres != 0 {
		postgres, err = bed.ProcessorTime(t.postgres)
	}
	return server, postgres, err
}

// resident returns the server's memory in MiB, 0 if it is unknown.
func (t *target) resident() float64 {
	now, _, _ := bed.Memory(t.server)
	return now
}
