// Command hosted measures hosted clusters in a running region, as a customer
// meets them: signed requests to the Platform API, and requests to the
// clusters' own API through the management cluster's router. Their memory and processor time are
// read from /proc, so the region must be on this machine.
//
//	atoll up --detach && eval "$(atoll env)" && go run ./bench/hosted
//	go run ./bench/hosted -only density -density 40 -keep 10m
//	go run ./bench/hosted -only restore                   # in a region of atoll up --backups
//	go run ./bench/hosted -only warm                      # in a region of atoll up --warm-planes 2
//
// It prints JSON lines, deletes the clusters that it made, and fails when a
// cluster does not become ready, does not answer, or leaves something behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"atoll.dev/client"
)

// options are the program's flags.
type options struct {
	Only     string
	Clusters int
	Burst    int
	Samples  int
	Wakes    int
	Settle   time.Duration
	Density  int
	Abreast  int
	Keep     time.Duration
	Data     int
	Home     string
	Atoll    string
	Seed     uint64
}

// parts are the names of the measurements, in their order. The last three are only run when -only names them:
// density takes a quarter of an hour and most of the memory, restore needs a region with backups, and warm one with
// warm planes. In a region with warm planes, only create, credentials, burst and warm can be measured: the others look
// for the processes of clusters by the clusters' names.
var parts = []string{"create", "credentials", "idle", "hibernate", "burst", "density", "restore", "warm"}

func main() {
	var o options
	flag.StringVar(&o.Only, "only", "create,credentials,idle,hibernate,burst", "what is measured, of "+strings.Join(
		parts, ","))
	flag.IntVar(&o.Clusters, "clusters", 20, "create: clusters, one after another; warm: pairs")
	flag.IntVar(&o.Burst, "burst", 10, "burst: clusters at once; then they are deleted at once")
	flag.IntVar(&o.Samples, "samples", 30, "credentials: how many")
	flag.IntVar(&o.Wakes, "wakes", 5, "hibernate: how often it is woken")
	flag.DurationVar(&o.Settle, "settle", time.Minute, "idle: how long a plane is left alone before it is looked at")
	flag.IntVar(&o.Density, "density", 40, "density: clusters with two nodes each")
	flag.IntVar(&o.Abreast, "abreast", 4, "density: clusters that are made at once")
	flag.DurationVar(&o.Keep, "keep", 10*time.Minute, "density: how long they are kept")
	flag.IntVar(&o.Data, "data", 100, "restore: MiB that the cluster stores")
	flag.StringVar(&o.Home, "home", os.Getenv("ATOLL_HOME"),
		"the region's home, for its management clusters' namespaces and data")
	flag.StringVar(&o.Atoll, "atoll", "bin/atoll", "the program")
	flag.Uint64Var(&o.Seed, "seed", 1, "of the names")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "hosted:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	api, err := client.New(client.Options{
		Endpoint: os.Getenv("ATOLL_ENDPOINT"), CAFile: os.Getenv("ATOLL_CA"),
		Credentials: client.Credentials{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv(
			"AWS_SECRET_ACCESS_KEY"), Region: os.Getenv("AWS_REGION")},
	})
	if err != nil {
		return fmt.Errorf("%w; first: eval \"$(atoll env)\"", err)
	}
	defer api.Close()
	b := newBench(api, o)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		defer cancel()
		err = errors.Join(err, b.cleanUp(ctx))
	}()
	for _, part := range strings.Split(o.Only, ",") {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("-only %s: use some of %s", part, strings.Join(parts, ","))
		}
	}
	measure := map[string]func(context.Context) error{
		"create": b.create, "credentials": b.credentials, "idle": b.idle, "hibernate": b.hibernate, "burst": b.burst,
		"density": b.density, "restore": b.restore, "warm": b.warm,
	}
	for _, part := range parts {
		if slices.Contains(strings.Split(o.Only, ","), part) {
			if err := measure[part](ctx); err != nil {
				return fmt.Errorf("%s: %w", part, err)
			}
		}
	}
	return nil
}
