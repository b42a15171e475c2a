package rosa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/util/validation"

	"atoll.dev/api/maestro"
	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// createWork creates a bundle with one Publish: the id follows from the names, and
// Maestro answers with the version of the bundle, or that it exists.
func (f *front) createWork(w http.ResponseWriter, r *http.Request) error {
	body, err := rest.ReadBody(r, maxBody)
	if err != nil {
		return err
	}
	b, err := parseWork(body)
	if b.Consumer == "" && (err == nil || codeOf(err) != rest.CodeInvalid) {
		err = rest.Errorf(http.StatusBadRequest, codeMissingCluster,
			"cluster_id is missing; it is the name of the management cluster")
	}
	if err != nil {
		return err
	}
	b.ID = f.maestro.BundleID(b.Consumer, b.Metadata.Name)
	etag, err := f.maestro.CreateBundle(r.Context(), b)
	if err != nil {
		return f.explainRefusal(r.Context(), err, b)
	}
	if etag == "" { // an older Maestro does not send the version
		doc, err := f.maestro.Bundle(r.Context(), b.ID)
		if err != nil {
			return err
		}
		etag = doc.ETag
	}
	w.Header().Set("Location", r.URL.Path+"/"+string(b.ID))
	if etag != "" {
		w.Header().Set("Etag", etag)
	}
	return rest.WriteJSON(w, http.StatusCreated, createdWork(string(b.ID), string(b.Consumer), b.Metadata.Name))
}

// explainRefusal explains why Maestro did not take a bundle. Maestro's code for a
// management cluster that does not exist is that for a manifest that is wrong, so
// explainRefusal looks for the management cluster.
func (f *front) explainRefusal(ctx context.Context, err error, b maestroclient.Bundle) error {
	switch remote.StatusOf(err) {
	case http.StatusBadRequest, http.StatusNotFound:
		if _, lookup := f.maestro.ConsumerNamed(ctx, b.Consumer); remote.StatusOf(lookup) == http.StatusNotFound {
			return noManagementCluster(string(b.Consumer)).Because(err)
		}
		return replaceStatus(err, http.StatusBadRequest, rest.Errorf(http.StatusBadRequest, codeInvalidWork, "data: %s",
			reasonOf(err)))
	case http.StatusConflict:
		return replaceStatus(err, http.StatusConflict, rest.Errorf(http.StatusConflict, "",
			"the work %s already exists on %s, with the id %s: PUT /api/v0/work/%s changes it; if it is being "+
				"deleted, wait until it is gone (%s)",
			b.Metadata.Name, b.Consumer, b.ID, b.ID, reasonOf(err)))
	}
	return err
}

// replaceWork reads the stored work only when the names of the request do not give
// its id.
func (f *front) replaceWork(w http.ResponseWriter, r *http.Request) error {
	id, err := bundleID(r)
	if err != nil {
		return err
	}
	etag, err := readIfMatch(r)
	if err != nil {
		return err
	}
	body, err := rest.ReadBody(r, maxBody)
	if err != nil {
		return err
	}
	b, err := parseWork(body)
	if err != nil {
		return err
	}
	b.ID, b.IfMatch = work.ID(id), etag
	if b.Consumer == "" || f.maestro.BundleID(b.Consumer, b.Metadata.Name) != work.ID(id) {
		doc, err := f.maestro.Bundle(r.Context(), work.ID(id))
		if err != nil {
			return replaceStatus(err, http.StatusNotFound, noWork(id))
		}
		if err := checkIdentity(doc.JSON, &b); err != nil {
			return err
		}
	}
	if _, err := f.maestro.UpdateBundle(r.Context(), b); err != nil {
		err = replaceStatus(err, http.StatusNotFound, noWork(id))
		err = replaceStatus(err, http.StatusPreconditionFailed, versionMismatch(nounWork))
		err = replaceStatus(err, http.StatusConflict, rest.Errorf(http.StatusConflict, "",
			"the work %s cannot be changed: %s; when it is gone, POST it again", id, reasonOf(err)))
		return f.explainRefusal(r.Context(), err, b)
	}
	return f.showWork(w, r, id)
}

// checkIdentity refuses a change of a work's name or management cluster. When the
// request names no management cluster, it sets that of the stored bundle.
func checkIdentity(bundle []byte, b *maestroclient.Bundle) error {
	var there maestro.ResourceBundle
	if err := json.Unmarshal(bundle, &there); err != nil {
		return fmt.Errorf("reading a bundle of Maestro: %w", err)
	}
	if b.Consumer == "" {
		b.Consumer = work.Consumer(there.ConsumerName)
	}
	if b.Consumer != work.Consumer(there.ConsumerName) {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
			"cluster_id is %s, but the work is on %s and cannot move; POST it there, and DELETE it here", b.Consumer,
			there.ConsumerName)
	}
	if name := workName(there); b.Metadata.Name != name {
		return invalidWork(
			"data.metadata.name is %s, but the work is called %s and cannot be renamed; POST it under the new name, "+
				"and DELETE this", b.Metadata.Name, name)
	}
	return nil
}

func (f *front) getWork(w http.ResponseWriter, r *http.Request) error {
	id, err := bundleID(r)
	if err != nil {
		return err
	}
	return f.showWork(w, r, id)
}

func (f *front) showWork(w http.ResponseWriter, r *http.Request, id string) error {
	doc, err := f.maestro.Bundle(r.Context(), work.ID(id))
	if err != nil {
		return replaceStatus(err, http.StatusNotFound, noWork(id))
	}
	view, err := decodeWork(doc.JSON)
	if err != nil {
		return err
	}
	if doc.ETag != "" {
		w.Header().Set("Etag", doc.ETag)
	}
	return rest.WriteJSON(w, http.StatusOK, view)
}

func (f *front) deleteWork(w http.ResponseWriter, r *http.Request) error {
	id, err := bundleID(r)
	if err != nil {
		return err
	}
	return f.remove(w, r, id, nounWork, noWork(id))
}

// remove deletes a bundle. It reads the bundle first, because Maestro answers the
// same whether there was one.
func (f *front) remove(w http.ResponseWriter, r *http.Request, id string, what noun, missing *rest.Error) error {
	etag, err := readIfMatch(r)
	if err != nil {
		return err
	}
	if _, err := f.maestro.Bundle(r.Context(), work.ID(id)); err != nil {
		return replaceStatus(err, http.StatusNotFound, missing)
	}
	if err := f.maestro.DeleteBundle(r.Context(), work.ID(id), etag); err != nil {
		return replaceStatus(err, http.StatusPreconditionFailed, versionMismatch(what))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (f *front) listWork(w http.ResponseWriter, r *http.Request) error {
	page, err := rest.ParsePage(r, rest.Page{Number: 1, Size: 100}, maxPage)
	if err != nil {
		return err
	}
	search := remote.SearchEqual("source", f.maestro.Source())
	if cluster := r.URL.Query().Get("cluster_id"); cluster != "" {
		if !isManagementClusterName(cluster) {
			return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
				"cluster_id %s is not the name of a management cluster", quote(cluster))
		}
		search += " and " + remote.SearchEqual("consumer_name", cluster)
	}
	doc, err := f.maestro.ListBundles(r.Context(), remote.ListOptions{Page: page.Number, Size: page.Size,
		Search: search})
	if err != nil {
		return err
	}
	var list maestro.ResourceBundleList
	if err := json.Unmarshal(doc.JSON, &list); err != nil {
		return fmt.Errorf("reading Maestro's list of bundles: %w", err)
	}
	answer := platform.WorkList{
		Kind: platform.WorkListKindManifestWorkList, Page: list.Page, Size: len(list.Items), Total: int(list.Total),
		Items: make([]platform.Work, 0, len(list.Items)),
	}
	for _, b := range list.Items {
		view, err := toWork(b)
		if err != nil {
			return err
		}
		answer.Items = append(answer.Items, view)
	}
	return rest.WriteJSON(w, http.StatusOK, answer)
}

// bundleID reads the id of the path. A text that cannot be an id names no work:
// 404.
func bundleID(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if len(validation.IsDNS1123Subdomain(id)) > 0 {
		return "", noWork(id)
	}
	return id, nil
}

// readIfMatch returns the entity tag of If-Match; "" when there is none, and for *,
// because every write here needs an existing document.
func readIfMatch(r *http.Request) (etag string, err error) {
	version, any, present, err := rest.ParseIfMatch(r)
	if err != nil || !present || any {
		return "", err
	}
	if version == 0 { // Maestro reads it as no version
		return "", rest.Errorf(http.StatusPreconditionFailed, codePrecondition,
			"no document has the version 0; use the ETag of a GET")
	}
	return rest.ETag(version), nil
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*rest.Error](err); ok {
		return e.Code
	}
	return ""
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*remote.Error](err); ok {
		return e.Reason
	}
	return ""
}
