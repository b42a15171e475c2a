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

// hasSameInvocation reports whether two specs start the same process: the same arguments and variables.
func (s Spec) hasSameInvocation(other Spec) bool {
	return slices.Equal(s.Args, other.Args) && slices.Equal(s.Env, other.Env)
}

// matchesSpecs reports whether each of the specs has a record with its arguments and variables, and no other process
// but the supervisor is alive. A process that is being restarted has a record.
func (h Home) matchesSpecs(specs []Spec) bool {
	known := map[string]Record{}
	for _, r := range h.readRecords() {
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

// replace supervises next in the place of previous, whose arguments or variables have changed. It first waits until the
// process named after serves or is not supervised any more; "" means no wait. So only one replica is stopped at a time,
// and if the first new process does not serve, the others keep their old processes. If a newer change replaces or
// removes next before its turn, next never starts, and the old process runs until ctx ends.
func (s *supervisor) replace(ctx context.Context, previous, next *supervisedProcess, after string) {
	if after != "" {
		s.awaitReady(ctx, []string{after})
	}
	if !s.isNewest(next) {
		<-ctx.Done() // the newer change ends next when its own turn comes
	}
	previous.cancel()
	<-previous.done
	if ctx.Err() == nil {
		s.keepRunning(ctx, next, markedProcesses(s.homeID)[next.spec.Name]) // its pid may have changed during the wait
	}
}

// isNewest reports whether no newer change has replaced or removed a process.
func (s *supervisor) isNewest(process *supervisedProcess) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[process.spec.Name] == process
}
