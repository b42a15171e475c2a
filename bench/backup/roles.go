package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"time"

	"google.golang.org/grpc"

	"atoll.dev/backup"
	"atoll.dev/local/objectstore"
	"atoll.dev/plane"
)

// storeDir is the directory of the store of a run.
func storeDir(dir string) string { return filepath.Join(dir, "store") }

// untilEOF returns a context that ends when the process that has started this one closes the standard input.
func untilEOF(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, cancel
}

// serveStore is the store of a region on one machine.
func serveStore(ctx context.Context) error {
	ctx, cancel := untilEOF(ctx)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	handler, err := objectstore.New(objectstore.Options{Dir: storeDir(*dir), Endpoint: "http://" + l.Addr().String(),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	fmt.Println()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// follow makes the backup of the plane, as hosting does. It prints a line before it begins, and one when the first
// chain is complete.
func follow(ctx context.Context) error {
	ctx, cancel := untilEOF(ctx)
	defer cancel()
	store, keys, err := backup.ReadConfig(filepath.Join(storeDir(*dir), objectstore.StoreFile))
	if err != nil {
		return err
	}
	config := plane.Config{Dir: planeDir(*dir)}
	snapshots := make(chan struct{}, 2)
	followers := make([]*backup.Follower, *many)
	for i := range followers {
		followers[i] = backup.New(backup.Options{
			Plane: backup.Plane{Namespace: "bench", Name: fmt.Sprintf("bench-%d", i)}, Store: store, KMS: keys, Spool: *dir,
			Dial:      func(w backup.Wrap) (*grpc.ClientConn, error) { return config.DialStore(w) },
			Keys:      func() (backup.Keys, error) { return backup.ReadKeys(config.Dir) },
			Snapshots: snapshots,
			Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
	}
	fmt.Println()
	var running sync.WaitGroup
	for i, f := range followers {
		time.Sleep(time.Duration(i) * 137 * time.Millisecond % time.Second) // planes start at different moments
		running.Go(func() { f.Run(ctx) })
	}
	for _, f := range followers {
		for f.State().Stored.IsZero() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if *cpu != "" {
		file, err := os.Create(*cpu)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	fmt.Println()
	running.Wait()
	return nil
}
