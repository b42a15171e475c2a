package serve

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// newLog returns the process's log: one JSON object a line. At info it carries what the plane itself says and the
// warnings and errors of the components; at debug also what these say at their own default level.
func newLog(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// captureComponents sends the logs of the Kubernetes components, and of KWOK, to log.
func captureComponents(log *slog.Logger) {
	slog.SetDefault(slog.New(demote{log.With("component", "simulated-nodes").Handler()})) // KWOK takes no other
	log = log.With("component", "kubernetes")
	handler := demote{log.Handler()}
	klog.SetLoggerWithOptions(logr.FromSlogHandler(handler), klog.ContextualLogger(true), klog.WriteKlogBuffer(func(line []byte) {
		writeLine(log, line)
	}))
}

// demote makes debug records of the components' informational ones, which report each step of their
// work, and of those that are expected.
type demote struct{ slog.Handler }

func (d demote) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, demoted(level))
}

func (d demote) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demoted(r.Level)
	if isExpected(r.Message) || isGone(r) {
		r.Level = slog.LevelDebug
	}
	if !d.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

func (d demote) WithAttrs(attrs []slog.Attr) slog.Handler { return demote{d.Handler.WithAttrs(attrs)} }
func (d demote) WithGroup(name string) slog.Handler       { return demote{d.Handler.WithGroup(name)} }

func demoted(level slog.Level) slog.Level {
	if level <= slog.LevelInfo {
		return level - (slog.LevelInfo - slog.LevelDebug)
	}
	return level
}

// expected are the beginnings of warnings and errors that every start of a healthy plane brings.
var expected = []string{
	"Skipping API ",                         // versions that upstream no longer serves
	"The manifest file is empty, ignoring.", // no allow list of metric labels
	"[core] ",                               // gRPC's channels, when etcd's client replaces its first connection
	"failed to sync with latest state: context canceled",
	"Found stale data, removed previous endpoints on kubernetes service", // there are none, see package apiserver
	"Error while syncing ConfigMap",                                      // kube-system is not there yet; tried again
}

func isExpected(message string) bool {
	return slices.ContainsFunc(expected, func(prefix string) bool { return strings.HasPrefix(message, prefix) })
}

// isGone says whether KWOK reports that a pod or node was gone before it came to it, which is the end
// of most of them: the deletion that it makes is announced to it, too.
func isGone(r slog.Record) (gone bool) {
	if r.Message != "failed to apply stage" {
		return false
	}
	r.Attrs(func(a slog.Attr) bool {
		err, _ := a.Value.Any().(error)
		gone = apierrors.IsNotFound(err)
		return !gone
	})
	return gone
}

// writeLine logs a line in klog's text form, "W0131 15:04:05.000000 1 file.go:12] message", at its severity.
func writeLine(log *slog.Logger, line []byte) {
	if len(line) == 0 {
		return
	}
	level := slog.LevelDebug
	switch line[0] {
	case 'W':
		level = slog.LevelWarn
	case 'E', 'F':
		level = slog.LevelError
	}
	message := string(bytes.TrimSpace(line))
	if _, rest, found := strings.Cut(message, "] "); found {
		message = rest
	}
	if isExpected(message) {
		level = slog.LevelDebug
	}
	log.Log(context.Background(), level, message)
}

// etcdLog returns a function that logs what etcd says.
func etcdLog(log *slog.Logger) func(zapcore.Level, string, map[string]any) {
	log = log.With("component", "etcd")
	return func(level zapcore.Level, message string, fields map[string]any) {
		at := slog.LevelInfo
		switch {
		case level >= zapcore.ErrorLevel:
			at = slog.LevelError
		case level == zapcore.WarnLevel:
			at = slog.LevelWarn
		}
		attrs := make([]any, 0, 2*len(fields))
		for name, value := range fields {
			attrs = append(attrs, name, value)
		}
		log.Log(context.Background(), at, message, attrs...)
	}
}
