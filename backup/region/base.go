package region

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"atoll.dev/internal/pgsession"
)

// partSize is the size of the parts of a base backup, compressed, in bytes.
const partSize = 4 << 20

// takeBases makes a base backup when the archive has none, and then one each day. It returns an error when one fails,
// and nil when ctx ends.
func (s *session) takeBases(ctx context.Context) error {
	for {
		wait := time.Duration(0)
		if last := s.c.lastBase(); !last.IsZero() {
			now, err := s.sample(ctx)
			if err != nil {
				return err
			}
			wait = last.Add(baseEvery).Sub(now.Time)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		began, err := s.takeBase(ctx)
		if err != nil {
			return err
		}
		s.c.noteBase(began)
		s.c.noteProblem("base backup", nil)
	}
}

// takeBase makes a base backup and returns when it began, by the server's clock.
func (s *session) takeBase(ctx context.Context) (began time.Time, err error) {
	start, err := s.sample(ctx)
	if err != nil {
		return began, err
	}
	prefix := s.prefix() + basePrefix + start.Time.Format(timeFormat) + "/"
	m := Manifest{Region: s.c.o.Region, Version: s.version, Timeline: s.timeline, SegmentSize: s.segmentSize}
	parts := &partWriter{put: func(n int, text []byte) error {
		return s.put(ctx, prefix+partName(n), text)
	}}
	if err := s.runBaseBackup(ctx, parts, &m); err != nil {
		return began, err
	}
	if err := parts.close(); err != nil {
		return began, err
	}
	m.Parts = parts.n
	if m.Complete, err = s.sample(ctx); err != nil {
		return began, err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return began, err
	}
	if err := s.put(ctx, prefix+manifestObject, text); err != nil {
		return began, err
	}
	s.c.o.Log.Info("made a base backup of the region's databases", "archive", string(s.c.archive), "bytes", m.Size)
	return start.Time, nil
}

func partName(n int) string { return fmt.Sprintf("%s%08d", partPrefix, n) }

// runBaseBackup runs pg_basebackup, writes its output compressed to w, and notes size and start in the manifest.
func (s *session) runBaseBackup(ctx context.Context, w io.Writer, m *Manifest) error {
	compress, err := newCompressor()
	if err != nil {
		return err
	}
	compress.Reset(w)
	defer compress.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	address, password, err := pgsession.SplitPassword(s.c.o.Server)
	if err != nil {
		return err
	}
	// copyWAL copies the WAL, so the base backup has none; with a fast checkpoint it begins at once.
	cmd := exec.CommandContext(ctx, s.c.o.BaseBackup, "-d", address, "-D", "-", "-F", "tar", "-X", "none",
		"-c", "fast", "--no-manifest", "--no-password")
	if password != "" {
		cmd.Env = append(os.Environ(), "PGPASSWORD="+password)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", s.c.o.BaseBackup, err)
	}
	copied := io.TeeReader(out, compress)
	m.Start, m.Size, err = readTar(copied)
	if err != nil {
		cancel()
		return errors.Join(err, cmd.Wait(), messageOf(&stderr))
	}
	if err := cmd.Wait(); err != nil {
		return errors.Join(fmt.Errorf("pg_basebackup: %w", err), messageOf(&stderr))
	}
	return compress.Close()
}

// messageOf returns the text that a program has written to its standard error as an error; nil when it has written
// none.
func messageOf(stderr *bytes.Buffer) error {
	if text := strings.TrimSpace(stderr.String()); text != "" {
		return errors.New(text)
	}
	return nil
}

// readTar reads a base backup to its end. It returns the position at which recovery from it begins, and its size.
func readTar(r io.Reader) (start LSN, size int64, err error) {
	count := &counter{r: r}
	for files := tar.NewReader(count); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, fmt.Errorf("the base backup: %w", err)
		}
		if file.Name == "backup_label" {
			if start, err = readLabel(files); err != nil {
				return 0, 0, err
			}
		}
	}
	if _, err := io.Copy(io.Discard, count); err != nil { // the padding after the last file
		return 0, 0, err
	}
	if start == 0 {
		return 0, 0, errors.New("the base backup has no backup_label")
	}
	return start, count.n, nil
}

// readLabel returns the position in a backup_label: "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)".
func readLabel(r io.Reader) (LSN, error) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		rest, isStart := strings.CutPrefix(lines.Text(), "START WAL LOCATION: ")
		if isStart {
			position, _, _ := strings.Cut(rest, " ")
			return pglogrepl.ParseLSN(position)
		}
	}
	return 0, errors.New("the backup_label of the base backup names no position")
}

// counter counts the bytes that are read from r.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// partWriter cuts a stream into parts.
type partWriter struct {
	put  func(n int, part []byte) error
	part []byte
	n    int // number of parts that put has stored
}

func (w *partWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(partSize-len(w.part), len(rest))
		w.part, rest = append(w.part, rest[:n]...), rest[n:]
		if len(w.part) == partSize {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func (w *partWriter) flush() error {
	if err := w.put(w.n, w.part); err != nil {
		return err
	}
	w.n, w.part = w.n+1, w.part[:0]
	return nil
}

// close puts the last part.
func (w *partWriter) close() error {
	if len(w.part) == 0 {
		return nil
	}
	return w.flush()
}
