package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/test/testsite"
)

// One program that did not answer kept the starts of all planes for a minute, whatever their program and context.
func TestASearchForWallsDelaysNoOtherProgram(t *testing.T) {
	dir := t.TempDir()
	program := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	started := filepath.Join(dir, "started")
	hanging := program("hanging", fmt.Sprintf("echo > %s\nexec sleep 1000\n", started))
	old := program("old", "exit 1\n") // it knows no walls
	var w walls
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := w.forBinary(ctx, hanging); first <- err }()
	testsite.Eventually(t, "the first search begins", func() error {
		_, err := os.Stat(started)
		return err
	})
	answers := make(chan error, 2)
	go func() { _, err := w.forBinary(t.Context(), old); answers <- err }()
	impatient, cancelImpatient := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancelImpatient()
	go func() {
		_, err := w.forBinary(impatient, hanging)
		if errors.Is(err, context.DeadlineExceeded) {
			err = nil
		}
		answers <- err
	}()
	for range 2 {
		select {
		case err := <-answers:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(probeLimit / 2):
			t.Error("a caller waits for the search with another program, or longer than its context")
		}
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first search: %v", err)
	}
	if len(w.searches) > 0 {
		t.Errorf("searches %v are left", w.searches)
	}
}
