package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/api/rotation"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// maxExamined bounds the clusters that one plan reads from the database.
const maxExamined = 1000

// planRebalance answers with a plan from memory and the documents of the clusters that it moves.
func (h *handlers) planRebalance(w http.ResponseWriter, r *http.Request) error {
	if err := h.requireRegionCaller(r.Context()); err != nil {
		return err
	}
	limit, q := api.MaxPlannedMoves, r.URL.Query()
	if text := q.Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > api.MaxPlannedMoves {
			return rest.Errorf(http.StatusBadRequest, codeInvalid, "limit is not from 1 to %d", api.MaxPlannedMoves)
		}
	}
	except := q["except"]
	if len(except) > api.MaxPlannedMoves {
		return rest.Errorf(http.StatusBadRequest, codeInvalid, "except has more than %d clusters", api.MaxPlannedMoves)
	}
	plan, err := h.f.planRebalance(r.Context(), limit, except)
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, plan)
}

// planRebalance returns at most limit moves that make the use of management clusters more even. The clusters of except
// stay. It reads the document of each cluster that would move, and leaves the cluster where it is when an order of its
// owner is open. A transaction checks the room of each move when it is started.
func (f *Fleet) planRebalance(ctx context.Context, limit int, except []string) (plan api.RebalancePlan, err error) {
	plan = api.RebalancePlan{Moves: []api.PlannedMove{}, Staying: []api.StayingCluster{},
		ManagementClusters: []api.RebalanceUse{}}
	var r *rebalancing
	f.shared.use(func(inv *inventory) {
		planes, settles, moving := inv.movables()
		planes = slices.DeleteFunc(planes, func(p movable) bool { return slices.Contains(except, string(p.cluster)) })
		r, plan.Moving = newRebalancing(inv.hosts(time.Now()), settles, planes), moving
	})
	for _, h := range r.hosts {
		plan.ManagementClusters = append(plan.ManagementClusters, api.RebalanceUse{Name: string(h.Name),
			Used: h.use(nil, 1)})
	}
	for examined := 0; len(plan.Moves) < limit && examined < maxExamined; examined++ {
		m, found := r.next()
		if !found {
			break
		}
		demand, stays := m.demand, m.stays
		if stays == "" {
			if demand, stays, err = f.examine(ctx, m.movable); err != nil {
				return plan, err
			}
		}
		switch {
		case stays != "":
			r.drop(m)
			if len(plan.Staying) < api.MaxPlannedMoves {
				plan.Staying = append(plan.Staying, api.StayingCluster{ClusterID: string(m.cluster),
					ManagementCluster: string(m.from.Name), Reason: stays})
			}
		case keyOf(demand) != keyOf(m.demand):
			r.replaceDemand(m, demand)
		default:
			r.apply(m)
			plan.Moves = append(plan.Moves, api.PlannedMove{ClusterID: string(m.cluster), From: string(m.from.Name),
				To: string(m.to.Name)})
		}
	}
	for i, h := range r.hosts {
		plan.ManagementClusters[i].UsedAfter = h.use(nil, 1)
	}
	return plan, nil
}

// examine returns the present demand of a plane that would move, or why the plane stays.
func (f *Fleet) examine(ctx context.Context, p movable) (d Demand, stays string, err error) {
	owner, err := f.store.Get(ctx, kindCluster, string(p.cluster))
	if errors.Is(err, store.ErrNotFound) {
		return d, "it is deleted", nil
	}
	if err != nil {
		return d, "", err
	}
	if stays, err = reasonToStay(owner); err != nil || stays != "" {
		return d, stays, err
	}
	d, err = f.demand(owner)
	d.Amounts = p.demand.Amounts
	return d, "", err
}

// movables returns the placed planes without a move under way; how the reservations of management clusters will change
// when the moves under way have ended; and how many of these there are.
func (inv *inventory) movables() (planes []movable, settles map[cluster.ManagementClusterID]Amounts, moving int) {
	settles = map[cluster.ManagementClusterID]Amounts{}
	for _, e := range inv.entries {
		if e.removed || e.mc == "" || !e.orphanedAt.IsZero() {
			continue
		}
		loses := cluster.ManagementClusterID("")
		switch e.phase {
		case api.Moving:
			loses = e.mc
		case api.Canceling, api.Removing, api.Recovering: // a canceled move may still take place; the next plan sees it
			loses = e.reservedOn
		default:
			m := movable{cluster: e.cluster, on: e.mc, demand: e.demand}
			if e.phase != "" {
				m.stays = fmt.Sprintf("its last move is %s; end that: atoll cluster move ID --finish", e.phase)
			}
			planes = append(planes, m)
			continue
		}
		settles[loses] = plus(settles[loses], e.demand.Amounts, -1)
		moving++
	}
	return planes, settles, moving
}

// orderedSpec has the orders in a cluster's spec that hosting executes step by step.
type orderedSpec struct {
	Hibernated    bool                  `json:"hibernated"`
	Restore       *cluster.RestoreOrder `json:"restore"`
	HostedCluster struct {
		Release struct {
			Image string `json:"image"`
		} `json:"release"`
	} `json:"hostedCluster"`
}

// reasonToStay returns why a cluster's control plane should not move now, in words for an operator; "" when it may. A
// control plane moves through the store of its backups. A move during an order of its owner would be possible in most
// states (decision 170), but a rebalancing can wait.
func reasonToStay(owner store.Document) (reason string, err error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("reading Cluster %s: %w", owner.ID, err) }
	var wire clm.Resource
	var spec orderedSpec
	if err := json.Unmarshal(owner.Wire, &wire); err != nil {
		return fail(err)
	}
	_ = json.Unmarshal(wire.Spec, &spec) // a member in an unknown form is no order
	reports, err := reportsOf(owner)
	if err != nil {
		return "", err
	}
	report, hasReport := reports.Find(cluster.AdapterHostedCluster)
	data := reports.HostedCluster()
	restore, upgrade := data.RestoreReport(), data.UpgradeReport()
	isAsleep := data.Power == "Asleep"
	switch version := versionOf(spec.HostedCluster.Release.Image); {
	case owner.DeletedAt != nil:
		return "it is being deleted", nil
	case !hasReport || report.ObservedGeneration < wire.Generation:
		return "its last change is not applied yet", nil
	case cluster.Condition(report, cluster.ConditionAvailable).Status != cluster.StatusTrue:
		return "its control plane is not available", nil
	case data.BackupReport().From == "":
		return "it has no backup, and a move needs one: atoll hosting --backups, atoll up --backups", nil
	case spec.Restore != nil && (restore.ID != spec.Restore.ID || !restore.IsFinal()):
		return "a restore is under way", nil
	case upgrade.To != "" && slices.Contains([]string{cluster.UpgradeRuns, cluster.UpgradeSoaks,
		cluster.UpgradeRollsBack}, upgrade.Phase):
		return "an upgrade is " + upgrade.Phase, nil
	case version != "" && data.Version != version && upgrade.To != version:
		return "an upgrade begins", nil
	case data.Power == "Waking" || spec.Hibernated && !isAsleep || isAsleep && !spec.Hibernated:
		return "it changes between hibernation and use", nil
	}
	for key, phase := range data.RotationReports() {
		if phase.ID != "" && !phase.Phase.IsFinal() && phase.Phase != rotation.Prepared {
			return fmt.Sprintf("a rotation of %s is %s", key, phase.Phase), nil
		}
	}
	return "", nil
}

// reportsOf returns the reports of adapters on a cluster.
func reportsOf(owner store.Document) (cluster.Reports, error) {
	var status struct {
		Reports cluster.Reports `json:"reports"`
	}
	if err := json.Unmarshal(owner.Status, &status); err != nil {
		return nil, fmt.Errorf("reading the reports on Cluster %s: %w", owner.ID, err)
	}
	return status.Reports, nil
}
