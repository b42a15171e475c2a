package agent

import (
	"strconv"
	"time"
)

// sequence makes the ids that order an agent's statuses: snowflakes as OCM
// writes them (41 bits of milliseconds, 10 of node, 12 of step; the node is
// always 1, servers refuse to compare others). They grow even when the clock
// steps back: a server would drop what is not newer.
type sequence struct {
	last int64
	// ceiling is on disk: no id above it was ever given out, so that after a
	// restart with the clock stepped back ids go on growing.
	ceiling int64
}

const (
	snowflakeEpoch = 1288834974657
	snowflakeNode  = 1
	timeShift      = 22
	stepMask       = 1<<12 - 1
	// sequenceReserve is how far ahead of the clock ids are reserved at once.
	sequenceReserve = time.Minute
)

func snowflake(ms, step int64) int64 {
	return (ms-snowflakeEpoch)<<timeShift | snowflakeNode<<12 | step
}

// next returns the next id. reserved is true when the ceiling rose and must
// be written down.
func (s *sequence) next(now time.Time) (id int64, reserved bool) {
	id = snowflake(now.UnixMilli(), 0)
	if id <= s.last {
		id = s.last + 1
		if s.last&stepMask == stepMask { // the step is full: borrow from the next millisecond
			id = (s.last>>timeShift+1)<<timeShift | snowflakeNode<<12
		}
	}
	s.last = id
	if id < s.ceiling {
		return id, false
	}
	s.ceiling = id + int64(sequenceReserve/time.Millisecond)<<timeShift
	return id, true
}

// resume continues after a restart.
func (s *sequence) resume(ceiling int64) {
	s.last = max(s.last, ceiling)
	s.ceiling = max(s.ceiling, ceiling)
}

func formatSequence(id int64) string { return strconv.FormatInt(id, 10) }
