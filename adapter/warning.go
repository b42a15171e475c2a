package adapter

import (
	"context"
	"errors"
	"log/slog"

	"atoll.dev/rules"
)

// frame returns the frame of all documents of this execution.
func (x *execution) frame(ctx context.Context) frame {
	return frame{vars: x.scope, warn: func(e *expr, err error) { x.warn(ctx, e, err) }}
}

// warn records an expression that failed and whose value is null or its default: in the result, and
// in the log, there once for each expression.
func (x *execution) warn(ctx context.Context, e *expr, err error) {
	x.result.Warnings = append(x.result.Warnings, err)
	level := slog.LevelDebug
	if _, logged := x.warned.LoadOrStore(e, true); !logged {
		level = slog.LevelWarn
	}
	x.o.Log.Log(ctx, level, "an expression failed; null or its default stands in its place",
		slog.String("id", x.event.ID), slog.Any("error", err))
}

// substitute returns the value of an expression that failed, as HyperFleet's files expect it:
//   - the default, if there is one, after any failure;
//   - null without a default, if the expression reads an absent member;
//   - otherwise the error: the task is wrong, and null would hide that.
func substitute(e *expr, fallback Value, err error, warn func(*expr, error)) (any, error) {
	absent := errors.Is(err, rules.ErrAbsent)
	switch {
	case errors.Is(err, rules.ErrInterrupted), !absent && !fallback.Set():
		return nil, err
	case !absent || !fallback.Set():
		warn(e, err)
	}
	return fallback.Value, nil
}

// bindReportNames binds the names that the engine adds to a task with a standard report: failed, and work
// when the report is about one.
func (x *execution) bindReportNames() *StepError {
	if !x.task.reports {
		return nil
	}
	x.scope["failed"] = runFailed(x.scope)
	if x.task.work == nil {
		return nil
	}
	facts, err := x.task.work.readFacts(x.scope)
	if err != nil {
		return &StepError{PostActions, reportPayload, "reading the work", err}
	}
	available := x.task.work.isReady(facts)
	if x.scope["failed"] == true {
		available = wasAvailable(x.scope)
	}
	work := facts.forExpressions()
	work["available"] = available
	x.scope["work"] = work
	return nil
}
