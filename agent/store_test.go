package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"atoll.dev/api/work"
)

func openTestStore(t *testing.T, dir string) *store {
	t.Helper()
	s, err := openStore(dir, "c1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// filledLog writes n works to the store in dir and returns the bytes of its log.
func filledLog(t *testing.T, dir string, n int) []byte {
	t.Helper()
	s := openTestStore(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.run(ctx) })
	var durable sync.WaitGroup
	durable.Add(n)
	for i := range n {
		id := work.ID(fmt.Sprint("w", i))
		s.append(record{ID: id, Spec: &spec{ID: id, Generation: int64(i + 1), Hash: "h"},
			Ceiling: int64(100 * (i + 1))}, durable.Done)
	}
	durable.Wait() // I6: the records below were reported as durable
	cancel()
	done.Wait()
	data, err := os.ReadFile(filepath.Join(dir, storeFile))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestI6TheStoreReadsDurableRecords(t *testing.T) {
	dir := t.TempDir()
	filledLog(t, dir, 5)
	s := openTestStore(t, dir)
	defer s.f.Close()
	if len(s.works) != 5 || s.works["w3"].Spec.Generation != 4 || s.ceiling != 500 {
		t.Errorf("%d works, ceiling %d", len(s.works), s.ceiling)
	}
	info, err := os.Stat(filepath.Join(dir, storeFile))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: specs hold Secrets", info.Mode())
	}
}

// A crash may leave any prefix of the file: every whole line of it counts.
func TestI12AnyTornTailIsCutOff(t *testing.T) {
	data := filledLog(t, t.TempDir(), 3)
	for cut := range len(data) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, storeFile), data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		s := openTestStore(t, dir)
		s.f.Close()
		if want := max(0, bytes.Count(data[:cut], []byte("\n"))-1); len(s.works) != want {
			t.Fatalf("cut at %d of %d: %d works, want %d", cut, len(data), len(s.works), want)
		}
		if aside, _ := filepath.Glob(filepath.Join(dir, "*.damaged-*")); len(aside) > 0 {
			t.Fatalf("cut at %d: a torn tail counts as damage", cut)
		}
	}
}

func TestADamagedStoreIsSetAsideAndIDsStillGrow(t *testing.T) {
	data := filledLog(t, t.TempDir(), 3)
	lines := bytes.SplitAfter(data, []byte("\n"))
	for name, harm := range map[string][]byte{
		"a flipped bit": bytes.Replace(data, []byte(`"w0"`), []byte(`"w9"`), 1),
		"a lost line": append(append([]byte{}, lines[0]...), append([]byte("garbage\n"),
			bytes.Join(lines[2:], nil)...)...),
		"another consumer": bytes.Replace(data, []byte("c1"), []byte("c2"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, storeFile), harm, 0o600); err != nil {
				t.Fatal(err)
			}
			s := openTestStore(t, dir)
			defer s.f.Close()
			if len(s.works) != 0 {
				t.Errorf("%d works are taken from a damaged file", len(s.works))
			}
			if s.ceiling != 300 {
				t.Errorf("the ceiling is %d, want that of the good lines, 300", s.ceiling)
			}
			if aside, _ := filepath.Glob(filepath.Join(dir, "*.damaged-*")); len(aside) != 1 {
				t.Errorf("set aside: %v", aside)
			}
		})
	}
}

func TestTheStoreIsCompacted(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	s.minSize = 4096
	ctx, cancel := context.WithCancel(t.Context())
	var done, durable sync.WaitGroup
	done.Go(func() { s.run(ctx) })
	for i := range 500 {
		durable.Add(1)
		s.append(record{ID: "w", Spec: &spec{ID: "w", Generation: int64(i + 1), Metadata: strings.Repeat("x", 20000)}},
			durable.Done)
		durable.Wait()
	}
	s.append(record{ID: "gone", Spec: &spec{ID: "gone"}}, nil)
	s.append(record{ID: "gone", Drop: true}, nil)
	cancel()
	done.Wait()
	info, err := os.Stat(filepath.Join(dir, storeFile))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > compactMinBytes+100_000 {
		t.Errorf("%d bytes for one work", info.Size())
	}
	again := openTestStore(t, dir)
	defer again.f.Close()
	if len(again.works) != 1 || again.works["w"].Spec.Generation != 500 {
		t.Errorf("%d works, generation %d", len(again.works), again.works["w"].Spec.Generation)
	}
}

// While the disk refuses writes, the store reports nothing as durable; later it reports everything,
// in order.
func TestI6NothingIsDurableWhileTheDiskRefuses(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	good := s.f
	closed, err := os.Open(filepath.Join(dir, storeFile)) // read only: writes fail
	if err != nil {
		t.Fatal(err)
	}
	s.f = closed
	batch := []*appendRequest{{record{ID: "a", Spec: &spec{ID: "a"}}, []func(){func() {}}}}
	if err := s.write(batch); err == nil {
		t.Fatal("a write to a file that cannot be written succeeds")
	}
	s.f = good
	if err := s.write(batch); err != nil {
		t.Fatal(err)
	}
	closed.Close()
	good.Close()
	again := openTestStore(t, dir)
	defer again.f.Close()
	if len(again.works) != 1 {
		t.Errorf("%d works", len(again.works))
	}
}
