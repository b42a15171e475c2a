package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
)

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	// fillSize is the size of the ConfigMaps that fill a plane, in bytes. Kubernetes permits 1 MiB.
	fillSize = 512 << 10
)

// configMap returns a ConfigMap with so many bytes that cannot be compressed much.
func configMap(rng *rand.ChaCha8, name string, size int) []byte {
	data := make([]byte, size*3/4)
	_, _ = rng.Read(data) // it never fails
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
		"data": map[string]string{"value": base64.StdEncoding.EncodeToString(data)},
	})
	if err != nil {
		panic(err) // of strings only
	}
	return body
}

// send makes a request with a body, and expects the status.
func (h *hosted) send(ctx context.Context, method, path string, body []byte, status int) error {
	r, err := http.NewRequestWithContext(ctx, method, h.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := h.call.Do(r)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", h.name, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("cluster %s: %s %s: %d %.200s", h.name, method, path, resp.StatusCode, answer)
	}
	return err
}

func (b *bench) random() *rand.ChaCha8 {
	var seed [32]byte
	copy(seed[:], strconv.FormatUint(b.o.Seed, 10))
	return rand.NewChaCha8(seed)
}

// restore measures a restore in place of a plane that has -data MB: until the restore is complete, and until the API
// answers with the data of the moment. The region must have backups.
func (b *bench) restore(ctx context.Context) error {
	h, err := b.makeCluster(ctx, 0)
	if err != nil {
		return err
	}
	rng := b.random()
	count := b.o.Data << 20 / fillSize
	for i := range count {
		name := fmt.Sprintf("fill-%d", i)
		if err := h.send(ctx, http.MethodPost, configMaps, configMap(rng, name, fillSize), http.StatusCreated); err != nil {
			return err
		}
	}
	moment := time.Now().Add(time.Second).Truncate(time.Second)
	time.Sleep(time.Until(moment.Add(1500 * time.Millisecond))) // a restore has no write that begins a second later
	if err := h.send(ctx, http.MethodPost, configMaps, configMap(rng, "later", 10), http.StatusCreated); err != nil {
		return err
	}
	behind, err := b.awaitBackup(ctx, h, time.Now())
	if err != nil {
		return err
	}
	begun := time.Now()
	order, err := b.api.Restore(ctx, cluster.ID(h.id), platform.RestoreRequest{At: moment})
	if err != nil {
		return err
	}
	completed := make(chan error, 1)
	var complete time.Duration
	go func() {
		err := b.awaitRestore(ctx, h, order.ID)
		complete = time.Since(begun)
		completed <- err
	}()
	answered, err := h.awaitRestored(ctx, begun)
	if err = errors.Join(err, <-completed); err != nil {
		return err
	}
	if err := h.get(ctx, configMaps+fmt.Sprintf("/fill-%d", count-1)); err != nil {
		return err
	}
	if err := b.report("restore", map[string]any{"data_mib": b.o.Data}, map[string]any{
		"order_to_complete_ms": complete.Milliseconds(), "order_to_answer_ms": answered.Milliseconds(),
		"backup_behind_ms": behind.Milliseconds(),
	}); err != nil {
		return err
	}
	_, err = b.remove(ctx, h)
	return err
}

// awaitBackup waits until the backup of a cluster has every write before a moment, and returns how long that took.
func (b *bench) awaitBackup(ctx context.Context, h *hosted, moment time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		got, err := b.api.Backups(ctx, cluster.ID(h.id))
		if err == nil && got.To != nil && got.To.After(moment) {
			return time.Since(moment), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("cluster %s: its backup ends at %v, want %s (atoll up --backups): %w", h.name, got.To,
				moment, errors.Join(err, ctx.Err()))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// awaitRestore waits until a restore has ended.
func (b *bench) awaitRestore(ctx context.Context, h *hosted, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		got, err := b.api.Backups(ctx, cluster.ID(h.id))
		if err != nil {
			return err
		}
		if r := got.Restore; r != nil && r.ID == id {
			switch r.Phase {
			case platform.RestorePhaseCompleted:
				return nil
			case platform.RestorePhaseFailed:
				return fmt.Errorf("cluster %s: the restore failed: %s", h.name, r.Message)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cluster %s: the restore has not ended: %w", h.name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// awaitRestored returns when the API answers without the ConfigMap that was made after the moment of the restore.
func (h *hosted) awaitRestored(ctx context.Context, begun time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := h.send(ctx, http.MethodGet, configMaps+"/later", nil, http.StatusNotFound)
		if err == nil {
			return time.Since(begun), nil
		}
		select {
		case <-ctx.Done():
			return 0, errors.Join(err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
