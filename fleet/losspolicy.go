package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// The policy for lost management clusters (decision 178) is off unless Options.RecoverLostAfter is set. A management
// cluster is lost while Maestro reports that its agent is not connected. When it has been lost for that time, the
// policy gives it up: it recovers each of its clusters on another management cluster from the cluster's backup, as
// "atoll mc lost" does. Giving up is no state and is written nowhere: when the agent is connected again, the policy
// stops, the clusters that were not recovered stay, and the management cluster gets new ones.
//
// Each process of the lifecycle manager applies the policy. giveUp and the other methods of lossPolicy decide;
// recoverLost does what they decided.

const (
	// checkLossesEvery is how often a process applies the policy.
	checkLossesEvery = 5 * time.Second
	// maxRecoveries is how many recoveries may run in the region at once. The policy begins no further one while so
	// many run, whoever began them: this process, another one, or an operator. It limits the policy only: operators
	// may begin more, and two processes that begin some in the same moment may exceed it.
	maxRecoveries = 4
	// slowRecovery is how long a recovery, whoever began it, counts towards maxRecoveries, from when this process
	// first saw it. So four planes that never start, such as those with damaged backups, do not stop the policy for
	// all others.
	slowRecovery = 10 * time.Minute
	// retryRecovery is how long the policy leaves a cluster alone whose recovery could not begin, for a reason that
	// will not pass soon, such as that it has no backup.
	retryRecovery = 5 * time.Minute
	// warnSuspicionEvery is how often a process logs that the policy pauses, while it does.
	warnSuspicionEvery = 10 * time.Minute
	// maxLossesExamined is how many clusters one pass of the policy reads from the database.
	maxLossesExamined = 100
)

// agentView has what the policy reads of one management cluster.
type agentView struct {
	id           cluster.ManagementClusterID
	isReady      bool // it is declared Ready: neither cordoned nor drained, and usable
	isConnected  bool // by a report that is not too old
	isLost       bool // its last report says that the agent is lost
	isEmpty      bool // no placement has or reserves room there
	hasRecovered bool // clusters were recovered from it, and fleet does not know yet that it has none of their objects
}

// isEmptied reports whether all clusters of a lost management cluster were recovered, by the policy or by an operator.
// The placements' moves show that. So it is the same in each process, and also after a restart.
func (m agentView) isEmptied() bool { return !m.isConnected && m.isEmpty && m.hasRecovered }

// suspicion is the reason why the region itself may be cut off from its management clusters. Then the policy pauses.
// "": there is none.
type suspicion string

const (
	noneConnected suspicion = "no management cluster is connected"
	tooManySilent suspicion = "more than one and more than a quarter of the Ready management clusters are not connected"
)

// lossPolicy decides which management clusters are given up, and how many recoveries may begin. It has the memory of
// one process: all times are of this process's clock, and after a restart a management cluster must be lost for the
// whole time again. It does no I/O, and is not safe for concurrent use.
type lossPolicy struct {
	after        time.Duration                             // Options.RecoverLostAfter
	lostSince    map[cluster.ManagementClusterID]time.Time // when this process first saw the present loss
	runningSince map[cluster.ID]time.Time                  // when this process first saw the recovery, which still runs
	retryAt      map[cluster.ID]time.Time                  // when a recovery that could not begin is tried again
	warnedAt     time.Time                                 // when this process last logged a suspicion; zero: never
}

func newLossPolicy(after time.Duration) *lossPolicy {
	return &lossPolicy{after: after, lostSince: map[cluster.ManagementClusterID]time.Time{},
		runningSince: map[cluster.ID]time.Time{}, retryAt: map[cluster.ID]time.Time{}}
}

// giveUp returns the management clusters that the policy gives up at now, in the order in which they were lost. Each
// was declared Ready, not empty, and reported as lost at every call for the time of the policy.
//
// A region that is cut off itself sees all its management clusters as lost. So giveUp returns none, says why, and
// begins all times again when no agent is connected, or when more than a quarter of the Ready management clusters,
// and more than one, are not connected. It does not count an emptied management cluster: its loss was dealt with, and
// nobody may ever repair its machine. It counts one that is empty and from which no cluster was recovered: the loss of
// spare ones shows, too, that the region may be cut off.
func (p *lossPolicy) giveUp(all []agentView, now time.Time) (lost []cluster.ManagementClusterID, why suspicion) {
	connected, ready, silent := 0, 0, 0
	since := map[cluster.ManagementClusterID]time.Time{}
	for _, m := range all {
		if m.isConnected {
			connected++
		}
		if !m.isReady || m.isEmptied() {
			continue
		}
		ready++
		if m.isConnected {
			continue
		}
		silent++
		if !m.isLost || m.isEmpty {
			continue
		}
		first, known := p.lostSince[m.id]
		if !known {
			first = now
		}
		since[m.id] = first
	}
	switch {
	case silent == 0:
	case connected == 0:
		why = noneConnected
	case silent > max(1, ready/4):
		why = tooManySilent
	}
	if why != "" {
		clear(p.lostSince)
		return nil, why
	}
	p.lostSince = since
	for id, first := range since {
		if now.Sub(first) >= p.after {
			lost = append(lost, id)
		}
	}
	slices.SortFunc(lost, func(a, b cluster.ManagementClusterID) int {
		return cmp.Or(since[a].Compare(since[b]), cmp.Compare(a, b))
	})
	return lost, ""
}

// mustWarn reports whether the process logs a suspicion at now, and records that it does. It is true for the first
// suspicion, and then not again for warnSuspicionEvery.
func (p *lossPolicy) mustWarn(why suspicion, now time.Time) bool {
	if why == "" || !p.warnedAt.IsZero() && now.Sub(p.warnedAt) < warnSuspicionEvery {
		return false
	}
	p.warnedAt = now
	return true
}

// countStartable returns how many more recoveries the policy may begin at now, beside those of the clusters in running,
// which are all that run in the region. It does not count recoveries that have run for slowRecovery, and forgets those
// that have ended. So each pass calls it, also when nothing is given up.
func (p *lossPolicy) countStartable(running []cluster.ID, now time.Time) int {
	since := map[cluster.ID]time.Time{}
	n := maxRecoveries
	for _, id := range running {
		first, known := p.runningSince[id]
		if !known {
			first = now
		}
		if since[id] = first; now.Sub(first) < slowRecovery {
			n--
		}
	}
	p.runningSince = since // without the recoveries that have ended
	return max(0, n)
}

// withoutBackoff returns the clusters whose recovery the policy may try at now: those without a retryAt, or with one
// that is over. It reuses the array of clusters.
func (p *lossPolicy) withoutBackoff(clusters []cluster.ID, now time.Time) (ids []cluster.ID) {
	maps.DeleteFunc(p.retryAt, func(_ cluster.ID, at time.Time) bool { return !now.Before(at) })
	return slices.DeleteFunc(clusters, func(id cluster.ID) bool {
		_, waits := p.retryAt[id]
		return waits
	})
}

// agents returns the agentView of each management cluster, in any order.
func (inv *inventory) agents(now time.Time) (all []agentView) {
	for id, m := range inv.mcs {
		if m.removed {
			continue
		}
		all = append(all, agentView{id: id, isReady: m.m.Unusable == "" && cmp.Or(m.declared, api.Ready) == api.Ready,
			isConnected: inv.isConnected(id, now), isLost: inv.lost[id], isEmpty: inv.sums[id].placements == 0,
			hasRecovered: inv.recoveredFrom[id] > 0})
	}
	return all
}

// recoverable returns, for each of mcs, the clusters that are placed there and do not move, in the order of their ids.
func (inv *inventory) recoverable(mcs []cluster.ManagementClusterID) map[cluster.ManagementClusterID][]cluster.ID {
	on := map[cluster.ManagementClusterID][]cluster.ID{}
	for _, e := range inv.entries {
		if !e.removed && e.orphanedAt.IsZero() && e.phase == "" && slices.Contains(mcs, e.mc) {
			on[e.mc] = append(on[e.mc], e.cluster)
		}
	}
	for _, ids := range on {
		slices.Sort(ids)
	}
	return on
}

// watchLosses applies the policy until ctx ends.
func (f *Fleet) watchLosses(ctx context.Context) {
	if f.opts.RecoverLostAfter <= 0 {
		return
	}
	p := newLossPolicy(f.opts.RecoverLostAfter)
	tick := time.NewTicker(checkLossesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.recoverLost(ctx, p, time.Now())
	}
}

// recoverLost makes one pass of the policy at now. It begins recoveries of the clusters of the management clusters that
// are given up, in the order of their losses, while fewer than maxRecoveries run. Several processes may call it at
// once, each with its own policy, because recoverCluster gives a recovery the same id in each. While the region itself
// may be cut off, recoverLost recovers nothing, sets the gauge and warns.
func (f *Fleet) recoverLost(ctx context.Context, p *lossPolicy, now time.Time) {
	var agents []agentView
	var running []cluster.ID
	f.shared.use(func(inv *inventory) {
		agents, running = inv.agents(now), slices.Collect(maps.Values(inv.recovering))
	})
	lost, why := p.giveUp(agents, now)
	startable, examined := p.countStartable(running, now), 0
	paused := 0.0
	if why != "" {
		paused = 1
	}
	f.metrics.paused.Set(paused)
	if p.mustWarn(why, now) {
		f.log.LogAttrs(ctx, slog.LevelWarn, "the region itself may be cut off; fleet recovers no lost management cluster",
			slog.String("reason", string(why)))
	}
	if len(lost) == 0 {
		return
	}
	var on map[cluster.ManagementClusterID][]cluster.ID
	f.shared.use(func(inv *inventory) { on = inv.recoverable(lost) })
	ctx = store.WithActor(ctx, store.Actor{Principal: "system:fleet"})
	for _, mc := range lost {
		for _, id := range p.withoutBackoff(on[mc], now) {
			if startable == 0 || examined == maxLossesExamined || ctx.Err() != nil {
				return
			}
			examined++
			began, err := f.recoverCluster(ctx, id, mc)
			switch {
			case store.IsTransient(err) || ctx.Err() != nil:
				p.retryAt[id] = now.Add(checkLossesEvery + time.Second) // the next pass begins with another cluster
				return
			case err != nil:
				if !mayPassSoon(err) {
					p.retryAt[id] = now.Add(retryRecovery)
				}
				f.log.LogAttrs(ctx, slog.LevelWarn,
					"fleet cannot recover a cluster of a lost management cluster; it tries again",
					slog.String("cluster", string(id)), slog.String("management_cluster_id", string(mc)), slog.Any("error", err))
				continue
			}
			startable-- // also when another process began the recovery
			if !began {
				continue
			}
			f.metrics.recovered.Inc()
			f.log.LogAttrs(ctx, slog.LevelWarn, "fleet recovers a cluster of a lost management cluster",
				slog.String("cluster", string(id)), slog.String("management_cluster_id", string(mc)))
		}
	}
}

// mayPassSoon reports whether the next pass of the policy tries to recover a cluster again after an error of
// recoverCluster. That is so when other placements and moves took the room on each target before the recovery: the
// error then has a time for the next attempt. After other errors the cluster waits for retryRecovery: it has no backup,
// it is being deleted, another move of it is under way, no management cluster has room, or a document cannot be read.
func mayPassSoon(err error) bool {
	e, ok := errors.AsType[*rest.Error](err)
	return ok && e.RetryAfter > 0
}

// recoveryNamespace is the namespace of the version 5 UUIDs (hashes of a name) of the policy's orders. It never
// changes: processes of two versions must give a recovery the same id.
var recoveryNamespace = uuid.MustParse("b4e7a3f8-0d2c-5b7e-9c56-2d7f2b0a4e19")

// recoverCluster begins the recovery of a cluster that has a backup and is placed on mc. The id of the order is a
// hash of the cluster and of its placement's version. So when several processes call it, one of them begins the
// recovery, and the others find it begun. The error says why the recovery cannot begin. Without an error, began is
// false when another process has begun it, or when the cluster is not placed on mc any more.
func (f *Fleet) recoverCluster(ctx context.Context, id cluster.ID, mc cluster.ManagementClusterID) (began bool,
	err error) {
	owner, err := f.store.Get(ctx, kindCluster, string(id))
	if err != nil {
		return false, fmt.Errorf("reading Cluster %s: %w", id, err)
	}
	reports, err := reportsOf(owner)
	if err != nil {
		return false, err
	}
	if reports.HostedCluster().BackupReport().From == "" {
		return false, fmt.Errorf("Cluster %s has no backup", id)
	}
	d, p, err := f.readPlacement(ctx, id)
	if err != nil {
		return false, err
	}
	if p.ManagementClusterID != mc {
		return false, nil
	}
	order := uuid.NewSHA1(recoveryNamespace, fmt.Appendf(nil, "%s/%d", id, d.Version)).String()
	_, began, err = f.startMove(ctx, id, api.MoveOrder{ID: order, Step: api.Recover})
	return began, err
}
