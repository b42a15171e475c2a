package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// invocationID returns a hash of the arguments and the variables of a process. It shows no value of a variable.
func (s Spec) invocationID() string {
	sum := sha256.Sum256([]byte(strings.Join(s.Args, "\x00") + "\x00\x00" + strings.Join(s.Env, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// runsAs reports whether two specs start the same process: the same arguments and variables.
func (s Spec) runsAs(other Spec) bool {
	return slices.Equal(s.Args, other.Args) && slices.Equal(s.Env, other.Env)
}

// runsAs reports whether the running processes of the home are those of the specs, with these arguments and variables.
// A process that is being restarted counts.
func (h Home) runsAs(specs []Spec) bool {
	known := map[string]Record{}
	for _, r := range h.records() {
		known[r.Name] = r
	}
	for _, s := range specs {
		if r, has := known[s.Name]; !has || !r.hasInvocation(s) {
			return false
		}
		delete(known, s.Name)
	}
	for name, r := range known {
		if name != supervisorName && r.isAlive() {
			return false
		}
	}
	return true
}

// replace supervises next in the place of previous, whose arguments or variables have changed. The old process runs on
// until the turn of next: until the process named before, which is replaced before it, serves or is not supervised any
// more. "" is none. So of several replicas one at a time is away, and a change with which the first process does not
// serve stops there. If a newer change replaces next before its turn, the old process runs on, and next never starts.
func (s *supervisor) replace(ctx context.Context, previous, next *supervisedProcess, before string) {
	if before != "" {
		s.awaitReady(ctx, []string{before})
	}
	if !s.isNewest(next) {
		<-ctx.Done() // the newer change ends next when its own turn comes
	}
	previous.cancel()
	<-previous.done
	if ctx.Err() == nil {
		s.keep(ctx, next, markedProcesses(s.homeID)[next.spec.Name]) // the process may have another pid than before the wait
	}
}

// isNewest reports whether no newer change has replaced or removed a process.
func (s *supervisor) isNewest(process *supervisedProcess) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[process.spec.Name] == process
}
