package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"atoll.dev/internal/logfile"
)

const (
	// logLimit is the size at which a log is rotated, and logsKept how many
	// old ones stay.
	logLimit = 16 << 20
	logsKept = 3
	// readLimit bounds what Logs reads of a log, and lineLimit the part of a line that it keeps until the line is
	// complete: the process of a customer's plane can make its log as long as it likes.
	readLimit = 4 * logLimit
	lineLimit = 1 << 20
)

// rotateLogs bounds the logs of the region's own processes. Hosting bounds those
// of the planes that it starts.
func (h Home) rotateLogs() error {
	paths, _ := filepath.Glob(h.Path("logs", "*.log"))
	var errs []error
	for _, path := range paths {
		errs = append(errs, logfile.LimitSize(path, logLimit, logsKept))
	}
	return errors.Join(errs...)
}

// LogNames lists the processes that have a log. A customer's plane has the name of its
// HostedCluster.
func (h Home) LogNames() ([]string, error) {
	paths, err := filepath.Glob(h.Path("logs", "*.log"))
	for i, p := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(p), ".log")
	}
	paths = slices.AppendSeq(paths, maps.Keys(h.planeLogs()))
	slices.Sort(paths)
	return paths, err
}

// LogOptions select lines of logs.
type LogOptions struct {
	Processes []string
	Tail      int  // how many of the last lines of each process
	Follow    bool // and then all further lines, until the context ends
}

// Logs calls line with each selected line, oldest first within a process.
func (h Home) Logs(ctx context.Context, o LogOptions, line func(process, text string)) error {
	type tailed struct {
		name   string
		offset int64
		part   string
	}
	planes := h.planeLogs()
	path := func(name string) string { return cmp.Or(planes[name], h.logPath(name)) }
	logs := make([]*tailed, len(o.Processes))
	for i, name := range o.Processes {
		data, from, err := readEnd(path(name))
		if err != nil {
			return fmt.Errorf("no log of %q: %w; see `atoll status` for the processes", name, err)
		}
		whole := data[:strings.LastIndexByte(string(data), '\n')+1]
		lines := strings.SplitAfter(string(whole), "\n")
		lines = lines[:len(lines)-1]
		for _, l := range lines[max(0, len(lines)-o.Tail):] {
			line(name, replaceControls(strings.TrimSuffix(l, "\n")))
		}
		logs[i] = &tailed{name: name, offset: from + int64(len(whole))}
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for o.Follow {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
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
				line(l.name, replaceControls(strings.TrimSuffix(text, "\n")))
			}
			if l.part = lines[len(lines)-1]; len(l.part) > lineLimit {
				l.part = l.part[len(l.part)-lineLimit:]
			}
		}
	}
	return nil
}

// readEnd returns the last bytes of a log, at most readLimit, and where they begin.
func readEnd(path string) (data []byte, from int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	from = max(0, info.Size()-readLimit)
	data, err = io.ReadAll(io.NewSectionReader(f, from, readLimit))
	return data, from, err
}

// replaceControls replaces control characters: a customer's text in the log of a plane must not control the reader's
// terminal.
func replaceControls(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func (h Home) lastLogLine(name string) string {
	last := "see `atoll logs " + name + "`"
	h.Logs(context.Background(), LogOptions{Processes: []string{name}, Tail: 1}, func(_, text string) { last = text })
	return last
}
