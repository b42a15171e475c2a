package clm

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
)

// queries is a pgx tracer that updates hyperfleet-api's metrics of the database. It also counts expected
// errors, such as a name that is taken; the label error_type distinguishes them.
type queries struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

// newQueries registers the metrics.
func newQueries(reg prometheus.Registerer, version string) *queries {
	q := &queries{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hyperfleet_db_query_duration_seconds", Help: "Duration of statements, and of batches of them.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"operation", "table"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hyperfleet_db_errors_total", Help: "Statements that failed.",
		}, []string{"operation", "error_type"}),
	}
	prometheus.WrapRegistererWith(prometheus.Labels{"component": "api", "version": version}, reg).MustRegister(
		q.duration, q.errors)
	return q
}

type queryKey struct{}

// query is a running statement.
type query struct {
	operation string
	begun     time.Time
}

// operationOf returns the first word of a statement in lower case, or "other" for an unknown word.
func operationOf(sql string) string {
	word, _, _ := strings.Cut(strings.TrimSpace(sql), " ")
	word, _, _ = strings.Cut(word, "\n")
	switch word = strings.ToLower(word); word {
	case "select", "insert", "update", "delete", "begin", "commit", "rollback", "with", "notify", "listen":
		return word
	}
	return "other"
}

// TraceQueryStart implements pgx.QueryTracer.
func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, queryKey{}, query{operationOf(data.SQL), time.Now()})
}

// TraceQueryEnd implements pgx.QueryTracer.
func (q *queries) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	q.end(ctx, data.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (q *queries) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, queryKey{}, query{"batch", time.Now()})
}

// TraceBatchQuery implements pgx.BatchTracer.
func (q *queries) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if data.Err != nil {
		q.errors.WithLabelValues("batch", errorType(data.Err)).Inc()
	}
}

// TraceBatchEnd implements pgx.BatchTracer.
func (q *queries) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	q.end(ctx, nil) // TraceBatchQuery has counted the errors of the statements
}

// end records the duration of the statement of ctx, and its error.
func (q *queries) end(ctx context.Context, err error) {
	s, ok := ctx.Value(queryKey{}).(query)
	if !ok {
		return
	}
	q.duration.WithLabelValues(s.operation, "resources").Observe(time.Since(s.begun).Seconds())
	if err != nil {
		q.errors.WithLabelValues(s.operation, errorType(err)).Inc()
	}
}

// errorType returns the class of an error, for the label error_type.
func errorType(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case strings.HasPrefix(e.Code, "23"):
			return "constraint"
		case strings.HasPrefix(e.Code, "40"):
			return "serialization"
		case e.Code == "57014" || e.Code == "55P03":
			return "timeout"
		case strings.HasPrefix(e.Code, "08"), strings.HasPrefix(e.Code, "57"):
			return "connection"
		case strings.HasPrefix(e.Code, "53"):
			return "resources"
		}
		return "statement"
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, pgx.ErrNoRows):
		return "no_rows"
	}
	return "connection"
}
