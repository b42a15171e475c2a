package fleet

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"atoll.dev/cluster"
)

// A lost management cluster sends no status of its clusters. Fleet requests work for these clusters, so that their
// adapters report the loss, and once more when the management cluster is connected again.

// reportsLost reports whether the agent of a management cluster is reported as lost.
func (r decodedMC) reportsLost() bool {
	for _, report := range r.presence.Reports {
		for _, c := range report.Conditions {
			if report.Adapter == presenceAdapter && c.Type == conditionAvailable {
				return c.Status == "False"
			}
		}
	}
	return false
}

// updateLost records whether a management cluster of the inventory is lost.
func (inv *inventory) updateLost(mc cluster.ManagementClusterID) {
	lost := inv.mcs[mc].reportsLost()
	if inv.lost[mc] == lost {
		return
	}
	inv.lostChanged = true
	if lost {
		inv.lost[mc] = true
	} else {
		delete(inv.lost, mc)
	}
}

// lostChanges returns the placements whose management cluster is lost and for which fleet has not requested work
// because of that yet, and those with such a request whose management cluster is connected again. It compares states,
// not changes, because one batch of the feed may contain a loss and its end in any order. Each call returns the
// placements that have changed since the call before.
func (inv *inventory) lostChanges() (lost, connected []entryWithID) {
	if !inv.lostChanged {
		return nil, nil
	}
	inv.lostChanged = false
	for id, e := range inv.entries {
		isLost := !e.removed && inv.lost[e.mc]
		switch {
		case isLost && !inv.reportedLost[id]:
			inv.reportedLost[id] = true
			lost = append(lost, entryWithID{id, e})
		case !isLost && inv.reportedLost[id] && !e.removed:
			connected = append(connected, entryWithID{id, e})
		}
	}
	for id := range inv.reportedLost {
		if e := inv.entries[id]; e.removed || !inv.lost[e.mc] {
			delete(inv.reportedLost, id)
		}
	}
	return lost, connected
}

// requestLost requests work for the clusters of management clusters that are newly lost or connected again. It does
// not repeat a failed request, because adapters check all clusters from time to time.
func (f *Fleet) requestLost(ctx context.Context) {
	var lost, connected []entryWithID
	f.shared.use(func(inv *inventory) { lost, connected = inv.lostChanges() })
	request := func(clusters []entryWithID, why string) {
		for part := range slices.Chunk(clusters, maxRequests) {
			if err := f.writeRequests(ctx, part, time.Now(), why); err != nil {
				f.log.LogAttrs(ctx, slog.LevelWarn, "fleet cannot request work for the clusters of a management cluster",
					slog.Int("clusters", len(clusters)), slog.Any("error", err))
				return
			}
		}
	}
	request(lost, "the management cluster was lost")
	request(connected, "the management cluster is connected again")
}
