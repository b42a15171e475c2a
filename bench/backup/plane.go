package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/bench/bed"
	"atoll.dev/internal/freeport"
	"atoll.dev/plane"
)

const (
	fillSize   = 64 << 10
	startLimit = 5 * time.Minute
)

// planeDir is the directory of the plane of a run.
func planeDir(dir string) string { return filepath.Join(dir, "plane") }

// startPlane starts the plane and waits until it is ready.
func (b *bench) startPlane(ctx context.Context) error {
	address, err := freeport.Address()
	if err != nil {
		return err
	}
	b.plane, err = plane.Start(ctx, plane.Config{Name: "bench", Dir: planeDir(b.dir), Binary: *binary, Address: address,
		SimulatedNodes: true}, plane.Options{})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := b.plane.Wait(waiting); err != nil {
		return err
	}
	config, err := b.plane.Config.RESTConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	b.client = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	return nil
}

// write creates an object with random bytes, which cannot be compressed much.
func (b *bench) write(ctx context.Context, size int) error {
	value := make([]byte, size*3/4)
	for i := range value {
		value[i] = byte(b.rand.Uint32())
	}
	b.written++
	_, err := b.client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": fmt.Sprintf("object-%d", b.written)},
		"data": map[string]any{"value": base64.StdEncoding.EncodeToString(value)},
	}}, metav1.CreateOptions{})
	return err
}

// pauseBeforeTurn waits until the work before the turn has no more effect on the plane.
func (b *bench) pauseBeforeTurn(ctx context.Context) error { return bed.Pause(ctx, *settlePause) }

// turn writes at the pace for the length of a turn, and returns the processor time that the plane has used meanwhile.
func (b *bench) turn(ctx context.Context, kind string) (time.Duration, error) {
	before, err := bed.ProcessorTime(b.plane.PID)
	if err != nil {
		return 0, err
	}
	end := time.NewTimer(*length)
	defer end.Stop()
	tick := &time.Ticker{}
	if *pace > 0 {
		tick = time.NewTicker(time.Second / time.Duration(*pace))
		defer tick.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-end.C:
			after, err := bed.ProcessorTime(b.plane.PID)
			return after - before, err
		case <-tick.C:
			begun := time.Now()
			if err := b.write(ctx, *size); err != nil {
				return 0, err
			}
			b.latencies[kind] = append(b.latencies[kind], time.Since(begun))
		}
	}
}
