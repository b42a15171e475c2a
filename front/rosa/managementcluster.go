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
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// A management cluster is a consumer of Maestro, shown as Maestro shows it, and
// a ManagementCluster of the lifecycle manager, which is written first and
// removed last: it is what the consumers can be made of again (I8).

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
	if err := f.enrol(r.Context(), req); err != nil {
		return err
	}
	doc, err := f.maestro.CreateConsumer(r.Context(), req.Name, req.Labels)
	if err != nil {
		return explain(err, http.StatusConflict, rest.Errorf(http.StatusConflict, "",
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

// parseRegistration reads a registration.
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
			"the name %s is not possible; use at most %d of a-z, 0-9 and -, beginning and ending with a letter or digit", quote(req.Name), maxManagementClusterName)
	}
	return req, checkOffer(req.Capacity, req.Versions)
}

// checkOffer refuses what no management cluster can have.
func checkOffer(capacity platform.Capacity, versions platform.PlaneVersions) error {
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

// updateManagementCluster changes what the lifecycle manager goes by when it places
// clusters. One that was registered before there was a lifecycle manager
// becomes known to it.
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
	if err := checkOffer(req.Capacity, req.Versions); err != nil {
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
	if err := f.offer(r.Context(), mc, req); err != nil {
		return err
	}
	if doc.JSON, err = withUsage(doc.JSON, f.usage(r.Context())); err != nil {
		return err
	}
	return write(w, http.StatusOK, doc)
}

func (f *front) offer(ctx context.Context, mc platform.ManagementCluster, req platform.ManagementClusterUpdate) error {
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
	if err := f.enrol(ctx, platform.ManagementClusterRequest{Name: mc.Name, Labels: mc.Labels}); err != nil {
		return err
	}
	known, err := f.clm.Named(ctx, managementClusters, mc.Name)
	if err != nil {
		return lifecycle(err, http.StatusNotFound) // its registry has no such kind
	}
	// Spec is replaced in the members that are named, capacity as a whole: what
	// it no longer limits must go.
	if old := (struct {
		Capacity map[string]int64 `json:"capacity"`
	}{}); req.Capacity != nil && json.Unmarshal(known.Spec, &old) == nil {
		merged := map[string]any{}
		for name := range old.Capacity {
			merged[name] = nil
		}
		for name, n := range req.Capacity {
			merged[name] = n
		}
		spec["capacity"] = merged
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	_, err = f.clm.Merge(ctx, managementClusters, known.ID, patch, "")
	return lifecycle(err)
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
	if doc.JSON, err = withUsage(doc.JSON, f.usage(r.Context())); err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, doc.JSON)
}

func (f *front) getManagementCluster(w http.ResponseWriter, r *http.Request) error {
	doc, err := f.managementCluster(r)
	if err != nil {
		return err
	}
	if doc.JSON, err = withUsage(doc.JSON, f.usage(r.Context())); err != nil {
		return err
	}
	return write(w, http.StatusOK, doc)
}

func (f *front) deleteManagementCluster(w http.ResponseWriter, r *http.Request) error {
	doc, err := f.managementCluster(r)
	if e, ok := errors.AsType[*rest.Error](err); ok && e.Status == http.StatusNotFound {
		// What an earlier delete may have left to do.
		if struck, serr := f.strike(r.Context(), r.PathValue("id")); serr != nil || !struck {
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
	// It is asked first: what Maestro has removed must not stay with the
	// lifecycle manager. That refuses by itself what is placed after this.
	if n := f.usage(r.Context())[mc.Name].Placements; n > 0 {
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
	if _, err := f.strike(r.Context(), mc.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

const managementClusters clmclient.Collection = "managementclusters"

// enrol makes a management cluster known to the lifecycle manager. One that is
// known stays as it is: then an earlier registration did not get to its end, or
// Maestro will say that it exists.
func (f *front) enrol(ctx context.Context, req platform.ManagementClusterRequest) error {
	if f.clm == nil {
		return nil
	}
	spec, err := json.Marshal(platform.ManagementClusterUpdate{Capacity: req.Capacity, Versions: req.Versions})
	if err != nil {
		return err
	}
	_, err = f.clm.Create(ctx, managementClusters, clm.ResourceCreate{Kind: "ManagementCluster", Name: req.Name,
		Labels: req.Labels, Spec: spec}, "")
	return lifecycle(err, http.StatusConflict, http.StatusNotFound) // 404: its registry has no such kind
}

// strike takes a management cluster off the lifecycle manager's list, and says
// whether it was there.
func (f *front) strike(ctx context.Context, name string) (struck bool, err error) {
	if f.clm == nil {
		return false, nil
	}
	known, err := f.clm.Named(ctx, managementClusters, name)
	if err == nil {
		_, err = f.clm.Delete(ctx, managementClusters, known.ID, "")
	}
	return err == nil, lifecycle(err, http.StatusNotFound)
}

// lifecycle is the answer to an error of the lifecycle manager; a status that is fine
// has none.
func lifecycle(err error, fine ...int) error {
	e, ok := errors.AsType[*remote.Error](err)
	switch {
	case err == nil, ok && slices.Contains(fine, e.Status):
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

// managementCluster gets the management cluster that the path names by its id or its
// name. Ids are UUIDs, but a UUID may be a name too.
func (f *front) managementCluster(r *http.Request) (remote.Document, error) {
	key := r.PathValue("id")
	missing := noCluster(key)
	if !isManagementClusterName(key) { // ids look like names
		return remote.Document{}, missing
	}
	if _, err := uuid.Parse(key); err == nil {
		doc, err := f.maestro.Consumer(r.Context(), key)
		if remote.StatusOf(err) != http.StatusNotFound {
			return doc, err
		}
	}
	doc, err := f.maestro.ConsumerNamed(r.Context(), key)
	return doc, explain(err, http.StatusNotFound, missing)
}

func noCluster(key string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, codeNotFound,
		"there is no management cluster %s; GET /api/v0/management_clusters lists those there are, POST registers one",
		quote(key))
}

// write answers with a document of Maestro and its entity tag. There is no 304
// to If-None-Match: what is observed (when an agent was last heard of, how far
// a work has come) changes without a new version.
func write(w http.ResponseWriter, status int, doc remote.Document) error {
	if doc.ETag != "" {
		w.Header().Set("Etag", doc.ETag)
	}
	return rest.WriteJSON(w, status, doc.JSON)
}

// quote shows something of a request in a message.
func quote(s string) string {
	if len(s) > 100 {
		s = strings.ToValidUTF8(s[:100], "") + "..."
	}
	return strconv.Quote(s)
}
