package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/node"
)

const (
	followEvery = 10 * time.Second
	// unroutedLimit is how long the router may not know the cluster before the machine stops. A router that has not
	// read its table and a deleted cluster give the same answer. The machine loses nothing by stopping: its home
	// stays.
	unroutedLimit = 5 * time.Minute
)

// ErrRemoved is the error of Follow when the cluster has removed the machine or was deleted.
var ErrRemoved = errors.New("this machine is not a node of its cluster any more")

// presence is one observation of the machine's Node.
type presence int

const (
	unknown  presence = iota // the cluster did not answer
	present                  // the Node exists
	removed                  // the cluster answered that the Node does not exist, or is another one
	unrouted                 // the router answered that it knows no such cluster
)

// observe reads the machine's Node. The error says why an answer is unknown or unrouted.
func (r *record) observe(ctx context.Context, home string) (presence, error) {
	client, err := r.certificateClient(home)
	if err != nil {
		return unknown, err
	}
	name := r.Invitation.Node()
	object, err := client.Resource(nodes()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && object.GetUID() == r.UID:
		return present, nil
	case err == nil, isNotFound(err, name):
		return removed, nil
	case strings.Contains(err.Error(), "unrecognized name"): // the alert of the router; crypto/tls exports no value of it
		return unrouted, err
	}
	return unknown, err
}

// isNotFound reports whether an API server answered that the object with this name does not exist. A 404 without the
// name, as of a proxy or an unknown path, does not count.
func isNotFound(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name
}

// followState is the state of Follow: its latest observations.
type followState struct {
	last        presence
	at          time.Time     // of the last observation
	unroutedFor time.Duration // between observations that both were unrouted, since the cluster was present
}

// decideStop records an observation and returns why the machine must stop, "" when it must not. Time in which nobody
// answered does not count: before and after a long outage of the region a router may have no table for seconds.
func (a *followState) decideStop(p presence, now time.Time) (reason string) {
	before := a.last
	passed := min(now.Sub(a.at), followEvery+callTimeout) // this process may have been halted
	a.last, a.at = p, now
	switch p {
	case removed:
		return "the cluster has removed this machine: its node, its node pool or the whole cluster was deleted"
	case present:
		a.unroutedFor = 0
	case unrouted:
		if before == unrouted {
			a.unroutedFor += passed
		}
		if a.unroutedFor >= unroutedLimit {
			return fmt.Sprintf("the router has known no such cluster for %s: the cluster was deleted", unroutedLimit)
		}
	}
	return ""
}

// Follow reads this machine's Node every 10 s until the machine must stop.
//
//   - The API server answers that the Node does not exist, or was made again with another UID: Follow returns an
//     ErrRemoved with the reason, and stores it in the home, so that Join refuses to continue.
//   - The router has known no such cluster for 5 minutes: Follow returns an ErrRemoved, and stores nothing; Join may be
//     repeated when the cluster is back.
//   - Nobody answers: Follow continues for as long as that lasts.
//   - ctx ends: Follow returns nil.
func Follow(ctx context.Context, home string, logf func(format string, args ...any)) error {
	r, err := readRecord(home)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%s has no record of a join", home)
	}
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	var seen followState
	wasAway := false
	for {
		p, err := r.observe(ctx, home)
		if ctx.Err() != nil {
			return nil
		}
		if away := p == unknown || p == unrouted; away != wasAway {
			wasAway = away
			if away {
				logf("the cluster does not answer; this machine continues without it: %v", err)
			} else {
				logf("the cluster answers again")
			}
		}
		if p == unrouted && seen.last != unrouted {
			logf("the router knows no such cluster: it was deleted, or the router has no table yet; unless that changes, "+
				"this machine stops in %s", unroutedLimit-seen.unroutedFor)
		}
		if reason := seen.decideStop(p, time.Now()); reason != "" {
			err := fmt.Errorf("%w: %s", ErrRemoved, reason)
			if p == removed { // not for unrouted: the router may know the cluster again later
				r.Removed = reason
				err = errors.Join(err, r.write(home))
			}
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Leave makes the cluster drain and delete this machine's Node, then stops the node's programs and deletes the home.
// When the cluster has removed the machine already, or the machine never joined, Leave asks the cluster nothing. When
// ctx ends while the Node is being drained, Leave returns an error, the node runs on, and Leave may be repeated.
func Leave(ctx context.Context, home string, logf func(format string, args ...any)) error {
	r, err := readRecord(home)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%s has no record of a join: there is nothing to leave", home)
	}
	if r.Removed == "" && hasCertificate(home) {
		if err := r.awaitRemoval(ctx, home, logf); err != nil {
			return err
		}
	}
	return StopAndDelete(ctx, home)
}

// awaitRemoval asks the cluster to remove the machine's Node, and returns when that is done.
func (r *record) awaitRemoval(ctx context.Context, home string, logf func(format string, args ...any)) error {
	client, err := r.certificateClient(home)
	if err != nil {
		return err
	}
	name := r.Invitation.Node()
	if r.UID == "" { // a join was killed before it had read its Node
		object, err := client.Resource(nodes()).Get(ctx, name, metav1.GetOptions{})
		if isNotFound(err, name) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading node %s from %s: %w", name, r.Invitation.Address, err)
		}
		r.UID = object.GetUID()
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.UID,
		"annotations": map[string]any{node.LeavingAnnotation: "true"}}})
	if err != nil {
		return err
	}
	if p, err := r.observe(ctx, home); p == unrouted {
		return fmt.Errorf("the router knows no such cluster; if it was deleted, leave with --force: %w", err)
	}
	_, err = client.Resource(nodes()).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !isNotFound(err, name) && !apierrors.IsConflict(err) {
		return fmt.Errorf("asking the cluster to drain node %s (with --force the machine leaves without it): %w", name, err)
	}
	logf("the cluster drains node %s", name)
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		p, err := r.observe(ctx, home)
		if p == removed {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("node %s is still being drained; repeat the command, or leave at once with --force: %w", name,
				errors.Join(context.Cause(ctx), err))
		}
	}
}

// StopAndDelete stops the node's programs and deletes the home without asking the cluster, which keeps the Node. It
// refuses a directory without the record of a join.
func StopAndDelete(ctx context.Context, home string) error {
	if r, err := readRecord(home); err != nil || r == nil {
		return errors.Join(err, fmt.Errorf("%s has no record of a join", home))
	}
	if err := node.Stop(ctx, home); err != nil {
		return err
	}
	if running, err := node.Running(home); err != nil || running {
		return errors.Join(err, fmt.Errorf("the node of %s still runs", home))
	}
	if err := os.RemoveAll(home); err != nil {
		return fmt.Errorf("deleting the home of the node: %w", err)
	}
	return nil
}

// memoryOfMachine returns the memory of this machine in bytes.
func memoryOfMachine() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, err
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}
