package region

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// logLimit is the size at which a log is rotated, and logsKept how many
	// old ones stay.
	logLimit = 16 << 20
	logsKept = 3
)

// rotateLogs copies each log over its limit to NAME.log.1 and empties it. The
// processes go on writing through their descriptors, which append; a line
// written between the copy and the cut is lost, which logs can bear and data
// could not.
func (h Home) rotateLogs() error {
	paths, _ := filepath.Glob(h.Path("logs", "*.log"))
	var errs []error
	for _, path := range slices.Concat(paths, slices.Collect(maps.Values(h.planeLogs()))) {
		if info, err := os.Stat(path); err == nil && info.Size() > logLimit {
			errs = append(errs, rotate(path))
		}
	}
	return errors.Join(errs...)
}

func rotate(path string) error {
	for i := logsKept; i > 1; i-- {
		err := os.Rename(fmt.Sprintf("%s.%d", path, i-1), fmt.Sprintf("%s.%d", path, i))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if cerr := dst.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

// LogNames lists the processes that have a log; customers' planes are called as
// their HostedClusters.
func (h Home) LogNames() ([]string, error) {
	paths, err := filepath.Glob(h.Path("logs", "*.log"))
	for i, p := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(p), ".log")
	}
	paths = slices.AppendSeq(paths, maps.Keys(h.planeLogs()))
	slices.Sort(paths)
	return paths, err
}

// Logs calls line with each line of the named processes' logs, oldest first
// within a process, the last tail lines of each; with follow it goes on until
// ctx ends.
func (h Home) Logs(ctx context.Context, names []string, tail int, follow bool, line func(process, text string)) error {
	type tailed struct {
		name   string
		offset int64
		part   string
	}
	planes := h.planeLogs()
	path := func(name string) string { return cmp.Or(planes[name], h.LogPath(name)) }
	logs := make([]*tailed, len(names))
	for i, name := range names {
		data, err := os.ReadFile(path(name))
		if err != nil {
			return fmt.Errorf("no log of %q: %w; see `atoll status` for the processes", name, err)
		}
		whole := data[:strings.LastIndexByte(string(data), '\n')+1]
		lines := strings.SplitAfter(string(whole), "\n")
		lines = lines[:len(lines)-1]
		for _, l := range lines[max(0, len(lines)-tail):] {
			line(name, strings.TrimSuffix(l, "\n"))
		}
		logs[i] = &tailed{name: name, offset: int64(len(whole))}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for follow {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, l := range logs {
			f, err := os.Open(path(l.name))
			if err != nil {
				continue
			}
			if info, err := f.Stat(); err == nil && info.Size() < l.offset {
				l.offset, l.part = 0, "" // rotated
			}
			data, _ := io.ReadAll(io.NewSectionReader(f, l.offset, 1<<20))
			f.Close()
			l.offset += int64(len(data))
			lines := strings.SplitAfter(l.part+string(data), "\n")
			for _, text := range lines[:len(lines)-1] {
				line(l.name, strings.TrimSuffix(text, "\n"))
			}
			l.part = lines[len(lines)-1]
		}
	}
	return nil
}
