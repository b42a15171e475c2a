package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// The paths of fleet's routes, below CLM's own path.
const (
	clustersPath = "/api/hyperfleet/v1/clusters"
	fleetPath    = "/api/hyperfleet/v1/managementclusters"
)

// Routes registers fleet's routes with a server that authenticates callers. tenant returns
// the tenancy of a request's caller, nil for the region's own services.
func (f *Fleet) Routes(m *rest.Mux, tenant func(context.Context) map[string]string) {
	h := &handlers{f, tenant}
	m.Handle("GET "+clustersPath+"/{id}/placement", h.get)
	m.Handle("POST "+clustersPath+"/{id}/placement", h.place)
	m.Handle("DELETE "+clustersPath+"/{id}/placement", h.release)
	m.Handle("POST "+clustersPath+"/{id}/placement/move", h.move)
	m.Handle("GET "+fleetPath+"/orphans", h.listOrphans)
	m.Handle("DELETE "+fleetPath+"/orphans/{id}", h.endOrphan)
	m.Handle("GET "+fleetPath+"/placements", h.listPlacements)
	m.Handle("GET "+fleetPath+"/rebalance", h.planRebalance)
	m.Handle("GET "+fleetPath+"/usage", h.listUsage)
	m.Handle("GET "+fleetPath+"/{id}/usage", h.getUsage)
}

// OpenAPI returns the OpenAPI document of the routes.
func (f *Fleet) OpenAPI() []byte { return api.OpenAPI }

type handlers struct {
	f      *Fleet
	tenant func(context.Context) map[string]string
}

// checkTenant returns a not-found error if the caller belongs to another tenant than the cluster.
func (h *handlers) checkTenant(ctx context.Context, owner store.Document) error {
	tenant := h.tenant(ctx)
	if tenant == nil {
		return nil
	}
	var wire clm.Resource
	if err := json.Unmarshal(owner.Wire, &wire); err != nil {
		return fmt.Errorf("reading Cluster %s: %w", owner.ID, err)
	}
	if !maps.Equal(tenant, wire.Tenancy) {
		return noCluster(cluster.ID(owner.ID))
	}
	return nil
}

// requireRegionCaller returns an error unless the caller is a service of the region.
func (h *handlers) requireRegionCaller(ctx context.Context) error {
	if h.tenant(ctx) != nil {
		return rest.Errorf(http.StatusForbidden, codeForbidden,
			"only the region's own services place clusters and read the usage of management clusters")
	}
	return nil
}

func (h *handlers) get(w http.ResponseWriter, r *http.Request) error {
	ctx, id := r.Context(), cluster.ID(r.PathValue("id"))
	owner, err := h.f.store.Get(ctx, kindCluster, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return noCluster(id)
	}
	if err == nil {
		err = h.checkTenant(ctx, owner)
	}
	if err != nil {
		return err
	}
	d, err := h.f.store.Get(ctx, KindPlacement, placementID(id))
	if errors.Is(err, store.ErrNotFound) {
		return rest.Errorf(http.StatusNotFound, codeNotFound, "Cluster %s has no placement", id)
	}
	if err != nil {
		return err
	}
	if h.tenant(ctx) == nil {
		return rest.WriteVersioned(w, r, http.StatusOK, d.Version, d.Wire)
	}
	p, err := placementOf(d)
	if err != nil {
		return err
	}
	wire, err := json.Marshal(p.forTenant())
	if err != nil {
		return err
	}
	return rest.WriteVersioned(w, r, http.StatusOK, d.Version, wire)
}

func (h *handlers) place(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	if err := h.requireRegionCaller(ctx); err != nil {
		return err
	}
	var order api.PlacementOrder
	if err := readOrder(r, &order); err != nil {
		return err
	}
	if order.Size != "" && !cluster.Size(order.Size).IsKnown() {
		return rest.Errorf(http.StatusBadRequest, codeInvalid, "size %q is none of %v",
			rest.Shorten(string(order.Size), 40), cluster.Sizes)
	}
	d, err := h.f.place(ctx, cluster.ID(r.PathValue("id")))
	if err == nil && order.Size != "" {
		d, err = h.f.resize(ctx, cluster.ID(r.PathValue("id")), cluster.Size(order.Size))
	}
	if err != nil {
		return err
	}
	return rest.WriteVersioned(w, r, http.StatusOK, d.Version, d.Wire)
}

func (h *handlers) release(w http.ResponseWriter, r *http.Request) error {
	ctx, id := r.Context(), r.PathValue("id")
	if err := h.requireRegionCaller(ctx); err != nil {
		return err
	}
	reason := strings.TrimSpace(r.URL.Query().Get("reason"))
	if len(reason) > maxReason {
		return reasonTooLong()
	}
	_, err := h.f.release(ctx, cluster.ID(id), reason, func(cluster *store.Document, p placement) error {
		switch {
		case cluster != nil && cluster.DeletedAt == nil && p.State == api.Placed:
			return rest.Errorf(http.StatusConflict, codeState,
				"Cluster %s is on %s and is not being deleted; delete it first", id, p.ManagementCluster)
		case p.State == api.Orphaned && reason == "":
			return rest.Errorf(http.StatusConflict, codeState,
				"Cluster %s was removed by force, and %s has not confirmed that nothing of it is left; atoll mc orphans "+
					"lists the works there", id, p.ManagementCluster)
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxReason is the largest length in bytes of an operator's reason for an action that cannot
// be undone. The history keeps it.
const maxReason = 1024

func reasonTooLong() error {
	return rest.Errorf(http.StatusBadRequest, codeInvalid, "reason has more than %d bytes", maxReason)
}

func (h *handlers) listOrphans(w http.ResponseWriter, r *http.Request) error {
	if err := h.requireRegionCaller(r.Context()); err != nil {
		return err
	}
	items, err := h.f.orphans(r.Context(), cluster.ManagementCluster(r.URL.Query().Get("management_cluster")))
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, api.OrphanList{Items: items})
}

func (h *handlers) endOrphan(w http.ResponseWriter, r *http.Request) error {
	if err := h.requireRegionCaller(r.Context()); err != nil {
		return err
	}
	q := r.URL.Query()
	reason := strings.TrimSpace(q.Get("reason"))
	switch {
	case reason == "":
		return rest.Errorf(http.StatusBadRequest, codeInvalid,
			"reason is missing; the cluster's history records why its works are deleted")
	case len(reason) > maxReason:
		return reasonTooLong()
	}
	if err := h.f.endOrphan(r.Context(), cluster.ManagementCluster(q.Get("management_cluster")), r.PathValue("id"),
		reason); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// listPlacements answers from memory, which follows the database by some milliseconds.
func (h *handlers) listPlacements(w http.ResponseWriter, r *http.Request) error {
	if err := h.requireRegionCaller(r.Context()); err != nil {
		return err
	}
	name := cluster.ManagementCluster(r.URL.Query().Get("management_cluster"))
	list := api.PlacedClusters{Items: []string{}}
	found := false
	h.f.shared.use(func(inv *inventory) {
		var ids []cluster.ID
		if ids, found = inv.placedOn(name); found {
			for _, id := range ids {
				list.Items = append(list.Items, string(id))
			}
		}
	})
	if !found {
		return rest.Errorf(http.StatusNotFound, codeNotFound, "there is no management cluster %q",
			rest.Shorten(string(name), 100))
	}
	return rest.WriteJSON(w, http.StatusOK, list)
}

func (h *handlers) listUsage(w http.ResponseWriter, r *http.Request) error {
	if err := h.requireRegionCaller(r.Context()); err != nil {
		return err
	}
	fleet, err := h.f.usage(r.Context())
	if err != nil {
		return err
	}
	list := api.UsageList{Items: make([]api.Usage, len(fleet))}
	for i, m := range fleet {
		list.Items[i] = usageOf(m)
	}
	return rest.WriteJSON(w, http.StatusOK, list)
}

func (h *handlers) getUsage(w http.ResponseWriter, r *http.Request) error {
	if err := h.requireRegionCaller(r.Context()); err != nil {
		return err
	}
	id := r.PathValue("id")
	var m ManagementCluster
	err := h.f.store.Tx(r.Context(), func(tx *store.Tx) error {
		d, err := tx.Get(r.Context(), kindMC, id)
		if errors.Is(err, store.ErrNotFound) || err == nil && d.Scope != "" {
			return rest.Errorf(http.StatusNotFound, codeNotFound, "ManagementCluster with id='%s' not found",
				rest.Shorten(id, 100))
		}
		if err != nil {
			return err
		}
		s, err := readSum(r.Context(), tx, cluster.ManagementClusterID(id))
		m = h.f.host(d, time.Now())
		m.Reserved, m.Placements = s.reserved, s.placements
		return err
	})
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, usageOf(m))
}

// usage returns the management clusters with their present usage, sorted by name.
func (f *Fleet) usage(ctx context.Context) ([]ManagementCluster, error) {
	fleet, err := f.readHosts(ctx)
	slices.SortFunc(fleet, func(a, b ManagementCluster) int { return cmp.Compare(a.Name, b.Name) })
	return fleet, err
}

func usageOf(m ManagementCluster) api.Usage {
	u := api.Usage{
		ID: string(m.ID), Name: string(m.Name), State: m.State, Labels: m.Labels, Versions: m.Versions,
		Capacity: m.Capacity, Reserved: m.Reserved, Free: Amounts{}, Placements: m.Placements,
	}
	if !m.LastSeen.IsZero() {
		u.LastSeenTime = &m.LastSeen
	}
	if m.Hosting != nil {
		u.Hosting = &api.HostingFigures{WarmPlanes: m.Hosting.WarmPlanes, Capacity: m.Hosting.Capacity}
	}
	for name, n := range m.Capacity {
		u.Free[name] = max(0, n-m.Reserved[name])
	}
	if u.Labels == nil {
		u.Labels = map[string]string{}
	}
	if u.Capacity == nil {
		u.Capacity = Amounts{}
	}
	if u.Reserved == nil {
		u.Reserved = Amounts{}
	}
	return u
}

// RefuseDeletion returns an error with status 409 for a management cluster that has placements, and nil for any other
// resource. tx is the transaction of the deletion, which has locked the resource.
func (f *Fleet) RefuseDeletion(ctx context.Context, tx *store.Tx, d store.Document) error {
	if d.Kind != kindMC {
		return nil
	}
	s, err := readSum(ctx, tx, cluster.ManagementClusterID(d.ID))
	if err != nil {
		return err
	}
	if n := s.placements; n > 0 {
		return rest.Errorf(http.StatusConflict, codeState, "ManagementCluster %s hosts %d clusters; delete them first",
			d.Name, n)
	}
	return nil
}
