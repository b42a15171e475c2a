// Command azure measures how long the region's API for Azure Resource Manager (ARM) takes for GET and PUT of
// clusters at a steady pace: `-rate` requests a second, whether the earlier ones are answered or not.
//
// PostgreSQL, which has its default durability, is a process of its own. The API with the work on its operations, a
// lifecycle manager, and the load generator are in this process. Instead of adapters a follower of the feed reports
// each cluster as available. A PUT of a new cluster answers when the cluster and its operation are committed; the
// work on the operations goes on during the measurement.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"atoll.dev/bench/bed"
	"atoll.dev/bench/load"
	"atoll.dev/bench/report"
	"atoll.dev/internal/postgres"
)

var (
	rate     = flag.Float64("rate", 200, "requests per second")
	duration = flag.Duration("for", 20*time.Second, "of each kind of request")
	stored   = flag.Int("stored", 1000, "clusters that are there before anything is measured")
	profile  = flag.String("profile", "", "write a profile of the processor to this file during the measurement")
)

// subscriptions are how many subscriptions, and accounts of the region, the clusters belong to.
const subscriptions = 20

const apiVersion = "2026-09-01-preview"

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // then run stops its processes
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "atoll-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL's user may be another
		return err
	}
	cluster := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s")}
	if err := cluster.Init(ctx); err != nil {
		return err
	}
	server, err := cluster.Start(ctx, io.Discard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	r, err := startRegion(ctx, cluster, dir)
	if err != nil {
		return err
	}
	defer r.close()
	for i := range subscriptions {
		if err := r.register(ctx, i); err != nil {
			return err
		}
	}
	if err := r.storeClusters(ctx, *stored); err != nil {
		return fmt.Errorf("storing clusters: %w", err)
	}
	if *profile != "" {
		file, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return measure(ctx, r, server)
}

// processorTime returns the processor time that this process and PostgreSQL have used.
func processorTime(server *postgres.Process) (own, database time.Duration, err error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, 0, err
	}
	database, err = bed.ProcessorTime(server.PID())
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), database, err
}

// measure measures each kind of request, and prints the figures.
func measure(ctx context.Context, r *region, server *postgres.Process) error {
	n, begin := int(*rate*duration.Seconds()), time.Now()
	figures := map[string]any{"requests": n}
	var own, database time.Duration // at the beginning of the last kind: that of new clusters
	for _, m := range []struct {
		name string
		call func(i int) error
	}{
		{"get", func(i int) error {
			return r.send(ctx, http.MethodGet, clusterPath(i%*stored, "old"), "", http.StatusOK)
		}},
		{"put_same", func(i int) error {
			return r.send(ctx, http.MethodPut, clusterPath(i%*stored, "old"), clusterBody(i%*stored), http.StatusOK)
		}},
		{"put_new", func(i int) error {
			return r.send(ctx, http.MethodPut, clusterPath(i, "new"), clusterBody(i), http.StatusCreated)
		}},
	} {
		var err error
		if own, database, err = processorTime(server); err != nil {
			return err
		}
		took, err := load.AtRate(ctx, n, *rate, m.call)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		report.Percentiles(figures, m.name, took)
	}
	begun := time.Now()
	if err := r.awaitSucceeded(ctx, *stored+n); err != nil {
		return fmt.Errorf("waiting until all operations have ended: %w", err)
	}
	figures["new_succeeded_after_seconds"] = time.Since(begun).Seconds()
	report.Percentiles(figures, "available_to_succeeded", r.lags(begin))
	ownAfter, databaseAfter, err := processorTime(server)
	if err != nil {
		return err
	}
	figures["new_processor_ms"] = (ownAfter - own).Seconds() * 1000 / float64(n)
	figures["new_postgres_processor_ms"] = (databaseAfter - database).Seconds() * 1000 / float64(n)
	average, _ := os.ReadFile("/proc/loadavg")
	figures["load"], _, _ = strings.Cut(string(average), " ")
	return report.Line(os.Stdout, "azure", map[string]any{"per_second": *rate, "seconds": duration.Seconds(),
		"stored": *stored}, figures)
}

func subscriptionID(i int) string {
	return fmt.Sprintf("0a1b2c3d-0000-4000-8000-%012d", i%subscriptions)
}

func clusterPath(i int, name string) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/bench/providers/Microsoft.RedHatOpenShift/"+
		"hcpOpenShiftClusters/%s-%d", subscriptionID(i), name, i)
}

// clusterBody returns the body of the PUT of a cluster.
func clusterBody(i int) string {
	network := "/subscriptions/" + subscriptionID(i) + "/resourceGroups/bench/providers/Microsoft.Network"
	return fmt.Sprintf(`{"location":"bench","tags":{"team":"shop"},"properties":{"platform":{"subnetId":`+
		`"%[1]s/virtualNetworks/v/subnets/s","networkSecurityGroupId":"%[1]s/networkSecurityGroups/g"}}}`, network)
}
