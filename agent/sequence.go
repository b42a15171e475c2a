package agent

import (
	"math"
	"strconv"
	"time"
)

// sequence generates the ids that order an agent's statuses: snowflakes as OCM
// writes them (41 bits of milliseconds, 10 of node, 12 of step; the node is
// always 1, servers refuse to compare others). The ids grow even when the clock
// steps back, since a server drops a status whose id is not newer.
type sequence struct {
	last int64
	// durable is the ceiling on disk: next returns no id above it, so that ids
	// grow after a restart with a clock that stepped back. requested is the
	// ceiling that is being written.
	durable, requested int64
}

const (
	snowflakeEpoch = 1288834974657
	snowflakeNode  = 1
	timeShift      = 22
	stepMask       = 1<<12 - 1
	// sequenceReserve is how far ahead of the clock ids are reserved.
	sequenceReserve = time.Minute
	// maxRaise is the first id that an agent does not take over from a server: ten years
	// before the last possible id, of 2080.
	maxRaise = math.MaxInt64 - int64(10*365*24*time.Hour/time.Millisecond)<<timeShift
	// sequenceSpare is the reserve while the ids are ahead of the clock, after a restart or after
	// the clock stepped back: 409,600 ids. A restart continues at the ceiling, so a large reserve
	// would move the ids further ahead with each restart. An agent that loses its store begins again at
	// the clock; a server that does not name its latest id (see raiseAbove) then refuses the agent's
	// statuses until the clock has passed that id.
	sequenceSpare = 100 * time.Millisecond
)

func snowflake(ms, step int64) int64 {
	return (ms-snowflakeEpoch)<<timeShift | snowflakeNode<<12 | step
}

// next returns the next id; false when a higher ceiling must be durable first.
func (s *sequence) next(now time.Time) (id int64, ok bool) {
	id = s.candidate(now)
	if id > s.durable {
		return 0, false
	}
	s.last = id
	return id, true
}

func (s *sequence) candidate(now time.Time) int64 {
	id := snowflake(now.UnixMilli(), 0)
	if id > s.last {
		return id
	}
	if s.last&stepMask == stepMask { // the step is full: use the next millisecond
		return (s.last>>timeShift+1)<<timeShift | snowflakeNode<<12
	}
	return s.last + 1
}

// reserve returns the next ceiling to write to disk; due reports whether few
// reserved ids are left.
func (s *sequence) reserve(now time.Time) (ceiling int64, due bool) {
	clock, id := snowflake(now.UnixMilli(), 0), s.candidate(now)
	if s.requested > max(clock+ids(sequenceReserve)/2, id+ids(sequenceSpare)/2) {
		return 0, false
	}
	s.requested = max(clock+ids(sequenceReserve), id+ids(sequenceSpare))
	return s.requested, true
}

// ids returns the distance between two ids that are so far apart in time.
func ids(d time.Duration) int64 { return d.Milliseconds() << timeShift }

// reserved records that a ceiling is on disk.
func (s *sequence) reserved(ceiling int64) { s.durable = max(s.durable, ceiling) }

// raiseAbove makes all later ids exceed id, the latest one that a server has stored. An
// agent does not know that id when it lost its store. If its clock is late, too, the
// server would refuse its statuses until the clock has caught up. raiseAbove ignores an
// id that leaves too little room for later ids.
func (s *sequence) raiseAbove(id int64) {
	if id > s.last && id < maxRaise {
		s.last = (id>>timeShift+1)<<timeShift | snowflakeNode<<12
	}
}

// resume continues with the ceiling from the store.
func (s *sequence) resume(ceiling int64) {
	ceiling = ceiling>>timeShift<<timeShift | snowflakeNode<<12 | stepMask
	s.last, s.durable, s.requested = max(s.last, ceiling), max(s.durable, ceiling), max(s.requested, ceiling)
}

// parseSequence reads a sequence id; 0 for any other text.
func parseSequence(text string) int64 {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return id
}

func formatSequence(id int64) string { return strconv.FormatInt(id, 10) }
