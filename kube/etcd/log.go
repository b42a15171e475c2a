package etcd

import (
	"fmt"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LogFunc receives what etcd logs at warning level and above, and the care of the store at info level.
type LogFunc func(level zapcore.Level, message string, fields map[string]any)

// newLogger returns a logger for etcd that hands records to log, and the fatal ones to failed. A goroutine that logs
// something fatal is parked there for good: it must not go on, and whether the process ends is its owner's decision.
func newLogger(log LogFunc, failed chan<- error) *zap.Logger {
	park := parker{failed}
	return zap.New(&core{log: log}, zap.WithFatalHook(park), zap.WithPanicHook(park))
}

type parker struct{ failed chan<- error }

func (p parker) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	select {
	case p.failed <- fmt.Errorf("%s%s", entry.Message, cause(fields)):
	default: // the first failure counts
	}
	select {}
}

// cause returns what the fields say about the reason.
func cause(fields []zapcore.Field) string {
	m := encode(nil, fields)
	if err, ok := m["error"]; ok {
		return fmt.Sprintf(": %v", err)
	}
	return ""
}

// expected are etcd's warnings about how we run it, without listeners and users, and about data that
// is just being made.
var expected = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
}

// core is a zapcore.Core in front of a LogFunc.
type core struct {
	log    LogFunc
	fields []zapcore.Field
}

func (c *core) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{log: c.log, fields: append(slices.Clip(c.fields), fields...)}
}

func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) && !expected[entry.Message] {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c *core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if c.log != nil {
		c.log(entry.Level, entry.Message, encode(c.fields, fields))
	}
	return nil
}

func (c *core) Sync() error { return nil }

func encode(with, fields []zapcore.Field) map[string]any {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range with {
		f.AddTo(m)
	}
	for _, f := range fields {
		f.AddTo(m)
	}
	return m.Fields
}
