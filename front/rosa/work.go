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
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// createWork costs one Publish: the id follows from the names, Maestro says
// when it exists, and what version the new bundle has.
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
		return f.refused(r.Context(), err, b)
	}
	if etag == "" { // a Maestro that does not say it
		doc, err := f.maestro.Bundle(r.Context(), b.ID)
		if err != nil {
			return err
		}
		etag = doc.ETag
	}
	w.Header().Set("Location", r.URL.Path+"/"+b.ID)
	if etag != "" {
		w.Header().Set("Etag", etag)
	}
	return rest.WriteJSON(w, http.StatusCreated, created(b.ID, b.Consumer, b.Metadata.Name))
}

// refused explains why Maestro did not take a bundle. Maestro's code for a
// management cluster that does not exist is that for a manifest that is wrong,
// so it is asked once more.
func (f *front) refused(ctx context.Context, err error, b maestroclient.Bundle) error {
	switch remote.StatusOf(err) {
	case http.StatusBadRequest, http.StatusNotFound:
		if _, lookup := f.maestro.ConsumerNamed(ctx, b.Consumer); remote.StatusOf(lookup) == http.StatusNotFound {
			return noCluster(b.Consumer).Because(err)
		}
		return explain(err, http.StatusBadRequest, rest.Errorf(http.StatusBadRequest, codeInvalidWork, "data: %s",
			reasonOf(err)))
	case http.StatusConflict:
		return explain(err, http.StatusConflict, rest.Errorf(http.StatusConflict, "",
			"the work %s already exists on %s, with the id %s: PUT /api/v0/work/%s changes it; if it is being "+
				"deleted, wait until it is gone (%s)",
			b.Metadata.Name, b.Consumer, b.ID, b.ID, reasonOf(err)))
	}
	return err
}

// replaceWork finds out where the work is only when the request does not say
// it: the id proves the names.
func (f *front) replaceWork(w http.ResponseWriter, r *http.Request) error {
	id, err := bundleID(r)
	if err != nil {
		return err
	}
	etag, err := insisted(r)
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
	b.ID, b.IfMatch = id, etag
	if b.Consumer == "" || f.maestro.BundleID(b.Consumer, b.Metadata.Name) != id {
		doc, err := f.maestro.Bundle(r.Context(), id)
		if err != nil {
			return explain(err, http.StatusNotFound, noWork(id))
		}
		if err := sameWork(doc.JSON, &b); err != nil {
			return err
		}
	}
	if _, err := f.maestro.UpdateBundle(r.Context(), b); err != nil {
		err = explain(err, http.StatusNotFound, noWork(id))
		err = explain(err, http.StatusPreconditionFailed, changed("work"))
		err = explain(err, http.StatusConflict, rest.Errorf(http.StatusConflict, "",
			"the work %s cannot be changed: %s; when it is gone, POST it again", id, reasonOf(err)))
		return f.refused(r.Context(), err, b)
	}
	return f.showWork(w, r, id)
}

// sameWork says whether b is of the same name and management cluster as the
// bundle that is there, and sets the latter where the request did not.
func sameWork(bundle []byte, b *maestroclient.Bundle) error {
	var there maestro.ResourceBundle
	if err := json.Unmarshal(bundle, &there); err != nil {
		return fmt.Errorf("reading a bundle of Maestro: %w", err)
	}
	if b.Consumer == "" {
		b.Consumer = there.ConsumerName
	}
	if b.Consumer != there.ConsumerName {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
			"cluster_id is %s, but the work is on %s and cannot move; POST it there, and DELETE it here", b.Consumer,
			there.ConsumerName)
	}
	if name := nameOf(there); b.Metadata.Name != name {
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
	doc, err := f.maestro.Bundle(r.Context(), id)
	if err != nil {
		return explain(err, http.StatusNotFound, noWork(id))
	}
	view, err := workOf(doc.JSON)
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
	return f.remove(w, r, id, "work", noWork(id))
}

// remove deletes a bundle. Maestro does not say whether there was one.
func (f *front) remove(w http.ResponseWriter, r *http.Request, id, what string, missing *rest.Error) error {
	etag, err := insisted(r)
	if err != nil {
		return err
	}
	if _, err := f.maestro.Bundle(r.Context(), id); err != nil {
		return explain(err, http.StatusNotFound, missing)
	}
	if err := f.maestro.DeleteBundle(r.Context(), id, etag); err != nil {
		return explain(err, http.StatusPreconditionFailed, changed(what))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (f *front) listWork(w http.ResponseWriter, r *http.Request) error {
	page, err := rest.ParsePage(r, rest.Page{Number: 1, Size: 100}, maxPage)
	if err != nil {
		return err
	}
	search := remote.Equal("source", f.maestro.Source())
	if cluster := r.URL.Query().Get("cluster_id"); cluster != "" {
		if !isManagementClusterName(cluster) {
			return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
				"cluster_id %s is not the name of a management cluster", quote(cluster))
		}
		search += " and " + remote.Equal("consumer_name", cluster)
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
		view, err := viewOf(b)
		if err != nil {
			return err
		}
		answer.Items = append(answer.Items, view)
	}
	return rest.WriteJSON(w, http.StatusOK, answer)
}

// bundleID reads the id of the path. What cannot be one, does not exist.
func bundleID(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if len(validation.IsDNS1123Subdomain(id)) > 0 {
		return "", noWork(id)
	}
	return id, nil
}

// insisted is the entity tag that the request insists on; "" for none, and for
// *, as every write here needs the document to exist.
func insisted(r *http.Request) (etag string, err error) {
	version, any, present, err := rest.ParseIfMatch(r)
	if err != nil || !present || any {
		return "", err
	}
	if version == 0 { // which Maestro takes for none
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
