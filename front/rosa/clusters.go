package rosa

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/internal/rest"
)

// A management cluster is a consumer of Maestro, shown as Maestro shows it.

var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

const maxClusterName = 63

func isClusterName(s string) bool { return len(s) <= maxClusterName && clusterName.MatchString(s) }

func (f *front) createCluster(w http.ResponseWriter, r *http.Request) error {
	body, err := rest.ReadBody(r, maxBody)
	if err != nil {
		return err
	}
	req, err := parseCluster(body)
	if err != nil {
		return err
	}
	doc, err := f.maestro.CreateConsumer(r.Context(), req.Name, req.Labels)
	if err != nil {
		return explain(err, http.StatusConflict, rest.Errorf(http.StatusConflict, "",
			"the management cluster %s already exists; GET %s/%s shows it", req.Name, "/api/v0/management_clusters", req.Name))
	}
	var made platform.ManagementCluster
	if err := json.Unmarshal(doc.JSON, &made); err != nil {
		return err
	}
	w.Header().Set("Location", r.URL.Path+"/"+made.ID)
	return write(w, http.StatusCreated, doc)
}

// parseCluster reads a registration.
func parseCluster(body []byte) (platform.ManagementClusterRequest, error) {
	var req platform.ManagementClusterRequest
	if err := rest.DecodeJSON(body, &req); err != nil {
		return req, err
	}
	if req.Name == "" {
		return req, rest.Errorf(http.StatusBadRequest, codeMissingName, "name is missing; it is the name of the management cluster")
	}
	if !isClusterName(req.Name) {
		return req, rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
			"the name %s is not possible; use at most %d of a-z, 0-9 and -, beginning and ending with a letter or digit", quote(req.Name), maxClusterName)
	}
	return req, nil
}

func (f *front) listClusters(w http.ResponseWriter, r *http.Request) error {
	page, err := rest.ParsePage(r, rest.Page{Number: 1, Size: 100}, 100)
	if err != nil {
		return err
	}
	doc, err := f.maestro.ListConsumers(r.Context(), client.ListOptions{Page: page.Number, Size: page.Size})
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, doc.JSON)
}

func (f *front) getCluster(w http.ResponseWriter, r *http.Request) error {
	doc, err := f.cluster(r)
	if err != nil {
		return err
	}
	return write(w, http.StatusOK, doc)
}

func (f *front) deleteCluster(w http.ResponseWriter, r *http.Request) error {
	doc, err := f.cluster(r)
	if err != nil {
		return err
	}
	var mc platform.ManagementCluster
	if err := json.Unmarshal(doc.JSON, &mc); err != nil {
		return err
	}
	err = f.maestro.DeleteConsumer(r.Context(), mc.ID, "")
	if e, ok := errors.AsType[*client.Error](err); ok && (e.Status == http.StatusForbidden && e.Code == "maestro-4" || e.Status == http.StatusConflict) {
		return rest.Errorf(http.StatusConflict, codeInUse,
			"the management cluster %s still has works; delete them, wait until they are gone, and try again", mc.Name).Because(err)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// cluster gets the management cluster that the path names by its id or its
// name. Ids are UUIDs, but a UUID may be a name too.
func (f *front) cluster(r *http.Request) (client.Document, error) {
	key := r.PathValue("id")
	missing := noCluster(key)
	if !isClusterName(key) { // ids look like names
		return client.Document{}, missing
	}
	if _, err := uuid.Parse(key); err == nil {
		doc, err := f.maestro.Consumer(r.Context(), key)
		if client.StatusOf(err) != http.StatusNotFound {
			return doc, err
		}
	}
	doc, err := f.maestro.ConsumerNamed(r.Context(), key)
	return doc, explain(err, http.StatusNotFound, missing)
}

func noCluster(key string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, codeNotFound,
		"there is no management cluster %s; GET /api/v0/management_clusters lists those there are, POST registers one", quote(key))
}

// write answers with a document of Maestro and its entity tag. There is no 304
// to If-None-Match: what is observed (when an agent was last heard of, how far
// a work has come) changes without a new version.
func write(w http.ResponseWriter, status int, doc client.Document) error {
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
