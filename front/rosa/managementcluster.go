package rosa

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// A management cluster is a consumer of Maestro and a ManagementCluster of the
// lifecycle manager. This API shows it as Maestro does. The lifecycle manager's
// resource is written first and deleted last, because the consumers of a lost
// Maestro are made from it again (I8).

var managementClusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

const maxManagementClusterName = 63

func isManagementClusterName(s string) bool {
	return len(s) <= maxManagementClusterName && managementClusterName.MatchString(s)
}

func (f *front) registerManagementCluster(w http.ResponseWriter, r *http.Request) error {
	body, err := rest.ReadBody(r, maxBody)
	if err != nil {
		return err
	}
	req, err := parseRegistration(body)
	if err != nil {
		return err
	}
	if err := f.registerAtCLM(r.Context(), req); err != nil {
		return err
	}
	doc, err := f.maestro.CreateConsumer(r.Context(), work.Consumer(req.Name), req.Labels)
	if err != nil {
		return replaceStatus(err, http.StatusConflict, rest.Errorf(http.StatusConflict, "",
			"the management cluster %s already exists; GET %s/%s shows it", req.Name, "/api/v0/management_clusters",
			req.Name))
	}
	var made platform.ManagementCluster
	if err := json.Unmarshal(doc.JSON, &made); err != nil {
		return err
	}
	w.Header().Set("Location", r.URL.Path+"/"+made.ID)
	return write(w, http.StatusCreated, doc)
}

// parseRegistration reads the body of a registration.
func parseRegistration(body []byte) (platform.ManagementClusterRequest, error) {
	var req platform.ManagementClusterRequest
	if err := rest.DecodeJSON(body, &req); err != nil {
		return req, err
	}
	if req.Name == "" {
		return req, rest.Errorf(http.StatusBadRequest, codeMissingName,
			"name is missing; it is the name of the management cluster")
	}
	if !isManagementClusterName(req.Name) {
		return req, rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
			"the name %s is not possible; use at most %d of a-z, 0-9 and -, beginning and ending with a letter or digit",
			quote(req.Name), maxManagementClusterName)
	}
	return req, checkCapacity(req.Capacity, req.Versions)
}

// checkCapacity refuses a capacity or a version that no management cluster can
// have.
func checkCapacity(capacity platform.Capacity, versions platform.PlaneVersions) error {
	for name, n := range capacity {
		if name == "" || n < 0 {
			return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
				"capacity: %s: %d is not possible; 0 is the least", quote(name), n)
		}
	}
	if slices.Contains(versions, "") {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "versions: one of them is empty")
	}
	return nil
}

// updateManagementCluster changes state, labels, capacity and versions, by which the
// lifecycle manager places clusters. Maestro's consumer has the labels, too. It registers a management cluster at the
// lifecycle manager that was registered before there was one.
func (f *front) updateManagementCluster(w http.ResponseWriter, r *http.Request) error {
	body, err := rest.ReadBody(r, maxBody)
	if err != nil {
		return err
	}
	var req platform.ManagementClusterUpdate
	if err := rest.DecodeJSON(body, &req); err != nil {
		return err
	}
	switch req.State {
	case "", platform.ManagementClusterUpdateStateReady, platform.ManagementClusterUpdateStateCordoned,
		platform.ManagementClusterUpdateStateDraining:
	default:
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "state: %s is neither Ready, Cordoned nor Draining",
			quote(string(req.State)))
	}
	if err := checkCapacity(req.Capacity, req.Versions); err != nil {
		return err
	}
	doc, err := f.managementCluster(r)
	if err != nil {
		return err
	}
	var mc platform.ManagementCluster
	if err := json.Unmarshal(doc.JSON, &mc); err != nil {
		return err
	}
	if err := f.updateAtCLM(r.Context(), mc, req); err != nil {
		return err
	}
	if req.Labels != nil {
		if doc, err = f.maestro.SetConsumerLabels(r.Context(), mc.ID, req.Labels, ""); err != nil {
			return err
		}
	}
	if doc.JSON, err = withUsage(doc.JSON, f.usageIfAvailable(r.Context())); err != nil {
		return err
	}
	return write(w, http.StatusOK, doc)
}

// updateAtCLM changes the ManagementCluster at the lifecycle manager, and creates
// it first when there is none.
func (f *front) updateAtCLM(ctx context.Context, mc platform.ManagementCluster,
	req platform.ManagementClusterUpdate) error {
	if f.clm == nil {
		return nil
	}
	spec := map[string]any{}
	if req.State != "" {
		spec["state"] = req.State
	}
	if req.Capacity != nil {
		spec["capacity"] = req.Capacity
	}
	if req.Versions != nil {
		spec["versions"] = req.Versions
	}
	if err := f.registerAtCLM(ctx, platform.ManagementClusterRequest{Name: mc.Name, Labels: mc.Labels}); err != nil {
		return err
	}
	known, err := f.clm.Named(ctx, managementClusters, mc.Name)
	if err != nil {
		return clmError(err, http.StatusNotFound) // the lifecycle manager has no such kind
	}
	if old := (struct {
		Capacity map[string]int64 `json:"capacity"`
	}{}); req.Capacity != nil && json.Unmarshal(known.Spec, &old) == nil {
		spec["capacity"] = replacingPatch(old.Capacity, req.Capacity)
	}
	change := map[string]any{"spec": spec}
	if req.Labels != nil {
		change["labels"] = replacingPatch(known.Labels, req.Labels)
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = f.clm.Merge(ctx, managementClusters, known.ID, patch, "")
	return clmError(err)
}

// replacingPatch returns the merge patch that replaces a whole map: the members of the new map, and null for each of
// the old map that the new one does not have.
func replacingPatch[V any](before, after map[string]V) map[string]any {
	patch := map[string]any{}
	for name := range before {
		patch[name] = nil
	}
	for name, value := range after {
		patch[name] = value
	}
	return patch
}

func (f *front) listManagementClusters(w http.ResponseWriter, r *http.Request) error {
	page, err := rest.ParsePage(r, rest.Page{Number: 1, Size: 100}, 100)
	if err != nil {
		return err
	}
	doc, err := f.maestro.ListConsumers(r.Context(), remote.ListOptions{Page: page.Number, Size: page.Size})
	if err != nil {
		return err
	}
	if doc.JSON, err = withUsage(doc.JSON, f.usageIfAvailable(r.Context())); err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, doc.JSON)
}

func (f *front) getManagementCluster(w http.ResponseWriter, r *http.Request) error {
	doc, err := f.managementCluster(r)
	if err != nil {
		return err
	}
	if doc.JSON, err = withUsage(doc.JSON, f.usageIfAvailable(r.Context())); err != nil {
		return err
	}
	return write(w, http.StatusOK, doc)
}

func (f *front) deleteManagementCluster(w http.ResponseWriter, r *http.Request) error {
	doc, err := f.managementCluster(r)
	if e, ok := errors.AsType[*rest.Error](err); ok && e.Status == http.StatusNotFound {
		// An earlier deletion may have stopped between Maestro and the lifecycle
		// manager.
		if unregistered, serr := f.unregisterAtCLM(r.Context(), r.PathValue("id")); serr != nil || !unregistered {
			return cmp.Or(serr, err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if err != nil {
		return err
	}
	var mc platform.ManagementCluster
	if err := json.Unmarshal(doc.JSON, &mc); err != nil {
		return err
	}
	// The check comes before Maestro's deletion, so that the lifecycle manager
	// does not keep a management cluster that Maestro has deleted. It refuses by
	// itself a deletion that overlaps with a placement.
	usage, err := f.usageByName(r.Context())
	if err != nil {
		return err
	}
	if n := usage[mc.Name].Placements; n > 0 {
		return rest.Errorf(http.StatusConflict, codeInUse,
			"the management cluster %s hosts %d clusters; delete them first", mc.Name, n)
	}
	err = f.maestro.DeleteConsumer(r.Context(), mc.ID, "")
	if e, ok := errors.AsType[*remote.Error](err); ok && (e.Status == http.StatusForbidden && e.Code == "maestro-4" ||
		e.Status == http.StatusConflict) {
		return rest.Errorf(http.StatusConflict, codeInUse,
			"the management cluster %s still has works; delete them, wait until they are gone, and try again",
			mc.Name).Because(err)
	}
	if err != nil {
		return err
	}
	if _, err := f.unregisterAtCLM(r.Context(), mc.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

const managementClusters clmclient.Collection = "managementclusters"

// registerAtCLM creates the ManagementCluster at the lifecycle manager. If it
// exists, it stays as it is: either an earlier registration stopped halfway, or
// Maestro answers next that the name exists.
func (f *front) registerAtCLM(ctx context.Context, req platform.ManagementClusterRequest) error {
	if f.clm == nil {
		return nil
	}
	spec, err := json.Marshal(platform.ManagementClusterUpdate{Capacity: req.Capacity, Versions: req.Versions})
	if err != nil {
		return err
	}
	_, err = f.clm.Create(ctx, managementClusters, clm.ResourceCreate{Kind: "ManagementCluster", Name: req.Name,
		Labels: req.Labels, Spec: spec}, "")
	return clmError(err, http.StatusConflict, http.StatusNotFound) // 404: the lifecycle manager has no such kind
}

// unregisterAtCLM deletes the ManagementCluster at the lifecycle manager, and
// reports whether there was one.
func (f *front) unregisterAtCLM(ctx context.Context, name string) (unregistered bool, err error) {
	if f.clm == nil {
		return false, nil
	}
	known, err := f.clm.Named(ctx, managementClusters, name)
	if err == nil {
		_, err = f.clm.Delete(ctx, managementClusters, known.ID, "")
	}
	return err == nil, clmError(err, http.StatusNotFound)
}

// clmError gives an error of the lifecycle manager the answer of this API, and
// returns nil for the statuses in ignored.
func clmError(err error, ignored ...int) error {
	e, ok := errors.AsType[*remote.Error](err)
	switch {
	case err == nil, ok && slices.Contains(ignored, e.Status):
		return nil
	case !ok:
		return err
	case e.Status == http.StatusBadRequest || e.Status == http.StatusConflict:
		return rest.Errorf(e.Status, rest.CodeInvalid, "%s", e.Reason).Because(err)
	}
	again := rest.Errorf(http.StatusServiceUnavailable, codeUnavailable,
		"the region's lifecycle manager does not answer; try again").Because(err)
	again.RetryAfter = time.Second
	return again
}

// managementCluster reads the management cluster that the path names by its id or
// its name. Ids are UUIDs, and a name can have the form of a UUID, too.
func (f *front) managementCluster(r *http.Request) (remote.Document, error) {
	key := r.PathValue("id")
	missing := noManagementCluster(key)
	if !isManagementClusterName(key) { // an id has the form of a name
		return remote.Document{}, missing
	}
	if _, err := uuid.Parse(key); err == nil {
		doc, err := f.maestro.Consumer(r.Context(), key)
		if remote.StatusOf(err) != http.StatusNotFound {
			return doc, err
		}
	}
	doc, err := f.maestro.ConsumerNamed(r.Context(), work.Consumer(key))
	return doc, replaceStatus(err, http.StatusNotFound, missing)
}

func noManagementCluster(key string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, codeNotFound,
		"there is no management cluster %s; GET /api/v0/management_clusters lists those there are, POST registers one",
		quote(key))
}

// write answers with a document of Maestro and its entity tag. It does not answer
// 304 to If-None-Match, because observations (when an agent was last seen, how far
// a work has come) change without a new version.
func write(w http.ResponseWriter, status int, doc remote.Document) error {
	if doc.ETag != "" {
		w.Header().Set("Etag", doc.ETag)
	}
	return rest.WriteJSON(w, status, doc.JSON)
}

// quote quotes a text of a request for a message, at most 100 bytes of it.
func quote(s string) string {
	if len(s) > 100 {
		s = strings.ToValidUTF8(s[:100], "") + "..."
	}
	return strconv.Quote(s)
}
