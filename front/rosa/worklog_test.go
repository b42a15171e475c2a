package rosa_test

import (
	"context"
	"regexp"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// workLog has, for each request, what a region did for it: decisions, and the statements in the databases of the
// Platform API and of the lifecycle manager, in their order. Two requests with the same work take the same time but for
// chance, so a test compares the work, and needs no clock. Many goroutines may use it.
type workLog struct {
	mu   sync.Mutex
	done map[string][]string // by request id
}

func newWorkLog() *workLog { return &workLog{done: map[string][]string{}} }

// byChance finds statements that a store sends with the one or the other request: of a new connection, and to learn how
// far the feed is.
var byChance = regexp.MustCompile(`pg_backend_pid|pg_logical_emit_message`)

// add adds a piece of work to the request of the context. Work without a request, or by chance, is not recorded.
func (l *workLog) add(ctx context.Context, work string) {
	if byChance.MatchString(work) {
		return
	}
	id := store.ActorFrom(ctx).RequestID
	if id == "" {
		id = rest.OperationID(ctx)
	}
	if id == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[id] = append(l.done[id], work)
}

// of returns the work for a request, and forgets it.
func (l *workLog) of(id string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	work := slices.Clone(l.done[id])
	delete(l.done, id)
	return work
}

// TraceQueryStart implements pgx.QueryTracer.
func (l *workLog) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	l.add(ctx, d.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (l *workLog) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (l *workLog) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		l.add(ctx, q.SQL)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (l *workLog) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (l *workLog) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
