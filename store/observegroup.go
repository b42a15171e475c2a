package store

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

// observations writes short forms. Those that arrive while a statement runs share the next one: one message, one
// transaction and one flush of PostgreSQL's log for all. The statement waits for no lock of a row, so that a locked
// document delays no other one, and no two of them can deadlock. The zero value is ready for use.
type observations struct {
	mu      sync.Mutex
	running int // statements
	waiting []*observation
}

const (
	// maxObservationGroups is how many statements run at once, and maxObservationGroup how many writes share one.
	maxObservationGroups = 1
	maxObservationGroup  = 64
)

// observeGroupSQL writes several short forms, and returns the tokens of those that it has written. It leaves out
// documents that have changed, and those whose rows are locked.
const observeGroupSQL = `update document d set observed = o.observed, token = o.token
	from (select d.ctid as place, u.token, u.observed
		from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[])
			as u (kind, id, version, before, token, observed)
		join document d on d.kind = u.kind and d.id = u.id and d.version = u.version and d.token = u.before
			and d.removed_at is null
		for no key update of d skip locked) o
	where d.ctid = o.place returning o.token`

// writeShort writes a short form, together with those of other callers. hit is false if the document has changed, or
// if its row is locked. It returns errNotWritten as autocommit does.
func (s *Store) writeShort(ctx context.Context, w write) (hit bool, err error) {
	o, g := w.observed, &s.observations
	g.mu.Lock()
	group := []*observation{o}
	if g.running == maxObservationGroups {
		o.turn = make(chan []*observation, 1)
		g.waiting = append(g.waiting, o)
		g.mu.Unlock()
		if group, err = s.awaitTurn(ctx, o); err != nil {
			return false, err
		}
	} else {
		g.running++
		g.mu.Unlock()
	}
	if group != nil {
		s.writeGroup(ctx, o, group)
	}
	switch {
	case o.isRefused:
		return s.autocommit(ctx, w, o.token)
	case o.err == nil:
		return o.hit, nil
	case !o.isBroken:
		return false, o.err
	}
	written, err := s.resolve(unansweredCommit{session: o.session, token: o.token, writes: []write{w}})
	switch {
	case err != nil:
		return false, fmt.Errorf("%w: %w", err, o.err)
	case written:
		return true, nil
	}
	return false, fmt.Errorf("%w: %w", errNotWritten, o.err)
}

// awaitTurn waits until another caller has sent the write, or until this caller must send a group, which it returns.
// While the write is in no group, the end of ctx and the limits of acquire end the wait: then nothing is written, and
// the other writes are not affected. A write in a group has a statement, which has a limit of time of its own.
func (s *Store) awaitTurn(ctx context.Context, o *observation) (group []*observation, err error) {
	waiting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	timer := s.limitWait(giveUp)
	defer timer.Stop()
	select {
	case group := <-o.turn:
		return group, nil
	case <-waiting.Done():
	}
	switch {
	case !s.observations.withdraw(o):
		return <-o.turn, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(waiting))
}

// withdraw removes a waiting write. It returns false if the write is in a group already.
func (g *observations) withdraw(o *observation) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, o)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// writeGroup sends a group, of which own is the caller's, and gives the others their outcomes. Before that it hands
// the writes that have arrived meanwhile to the first of their callers.
func (s *Store) writeGroup(ctx context.Context, own *observation, group []*observation) {
	defer func() {
		for _, o := range group {
			if o != own {
				close(o.turn)
			}
		}
	}()
	defer s.observations.passOn()
	if err := s.sendGroup(ctx, group); err != nil {
		for _, o := range group {
			o.err = err
		}
	}
}

// passOn makes the caller of a waiting write send the next group.
func (g *observations) passOn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.running--
		return
	}
	n := min(len(g.waiting), maxObservationGroup)
	group := g.waiting[:n:n]
	g.waiting = append([]*observation(nil), g.waiting[n:]...)
	group[0].turn <- group
}

// sendGroup sends one statement with all writes of a group, and sets the outcome of each. After an error of the
// statement each caller sends its write alone, because one write may be the cause. With an error sendGroup has set no
// outcome, and has written nothing.
func (s *Store) sendGroup(ctx context.Context, group []*observation) error {
	acquiring := ctx
	if len(group) > 1 {
		acquiring = context.WithoutCancel(ctx) // the end of one caller's context must not end the others
	}
	conn, err := s.acquire(acquiring, s.pool)
	if err != nil {
		return err
	}
	defer conn.release()
	kinds, ids := make([]string, len(group)), make([]string, len(group))
	versions, before, tokens := make([]int64, len(group)), make([]int64, len(group)), make([]int64, len(group))
	columns := make([][]byte, len(group))
	byToken := make(map[int64]*observation, len(group))
	for i, o := range group {
		kinds[i], ids[i], columns[i] = string(o.kind), o.id, o.column
		versions[i], before[i], tokens[i] = o.version, o.before, o.token
		byToken[o.token] = o
	}
	sendCtx, cancel := s.uncancelled(ctx)
	defer cancel()
	var hits []int64
	rows, err := conn.Conn().Query(sendCtx, observeGroupSQL, kinds, ids, versions, before, tokens, columns)
	if err == nil {
		hits, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	switch {
	case err == nil:
		for _, token := range hits {
			byToken[token].hit = true
		}
		return nil
	case !isBroken(conn.Conn(), err) && len(group) > 1:
		for _, o := range group {
			o.isRefused = true
		}
		return nil
	case !isBroken(conn.Conn(), err):
		return classify(context.WithoutCancel(ctx), err)
	}
	s.pool.Reset()
	for _, o := range group {
		o.err, o.isBroken, o.session = err, true, sessionOf(conn.Conn())
	}
	return nil
}
