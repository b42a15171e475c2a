package arm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// propertyIssuer is the property of a Cluster with the URL of the issuer that ARM's external authentication has
// added, or after its deletion with removedAuth and the id of its document.
const (
	propertyIssuer = "azureExternalAuth"
	removedAuth    = "removed "
)

// authWork is the external authentication of an operation, and its Cluster.
type authWork struct {
	cluster clmclient.Resource // at the lifecycle manager
	auth    resource
}

// readAuth reads the Cluster of an external authentication, and then its document, in this order: then a write with the
// entity tag of the Cluster cannot overwrite the result of a newer document. found is false when the document, its
// cluster, or the Cluster does not exist.
func (f *front) readAuth(ctx context.Context, p parameters) (w authWork, found bool, err error) {
	known, err := f.loadDocument(ctx, kindAuth, p.Document)
	var parent resource
	if err == nil {
		parent, err = f.loadDocument(ctx, kindCluster, known.spec.Parent)
	}
	if err == nil {
		w.cluster, found, err = f.readAtCLM(ctx, kindCluster, parent.id, parent.status.Resource)
	}
	if err == nil && found {
		w.auth, err = f.loadDocument(ctx, kindAuth, p.Document)
	}
	if errors.Is(err, store.ErrNotFound) {
		return w, false, nil
	}
	return w, found, err
}

// addIssuerAtCLM adds the issuer of an external authentication to its Cluster, and waits until the control
// plane trusts it.
func (f *front) addIssuerAtCLM(ctx context.Context, p parameters) ops.Outcome {
	w, found, err := f.readAuth(ctx, p)
	if err != nil {
		return failureOutcome(err)
	}
	if !found || w.cluster.DeletedTime != nil {
		return ops.Outcome{Event: ops.Event{Kind: ops.Fail, Error: &ops.Error{Code: codeResourceNotFound,
			Message: "The cluster does not exist.", Target: p.Path}}}
	}
	if w.auth.status.State == stateDeleting {
		return progressOutcome("Superseded", 0) // the cancel of this operation is on its way
	}
	if err := f.storeResourceID(ctx, w.auth, w.cluster.ID); err != nil {
		return failureOutcome(err)
	}
	after, wrong, err := addIssuer(w.cluster.Spec, issuerOf(w.auth.spec.Properties))
	if err != nil {
		return failureOutcome(err)
	}
	if wrong != "" {
		return ops.Outcome{Event: ops.Event{Kind: ops.Fail, Error: &ops.Error{Code: codeInvalidContent, Message: wrong,
			Target: "properties.issuer"}}}
	}
	have, err := f.replaceSpec(ctx, w.cluster, after)
	if err != nil {
		return failureOutcome(err)
	}
	switch now := readStatus(have, resource{kind: kindCluster}); {
	case len(have.Statuses) > 0 && now.isDone:
		return ops.Outcome{Event: ops.Event{Kind: ops.Succeed}}
	case len(have.Statuses) > 0 && now.isFailed:
		return ops.Outcome{Event: ops.Event{Kind: ops.Fail, Error: &ops.Error{Code: now.reason, Message: now.message,
			Target: p.Path}}}
	}
	return progressOutcome("Ordered", 50)
}

// removeIssuerAtCLM removes the issuer of an external authentication from its Cluster, and waits until the
// control plane no longer trusts it. It changes the Cluster even if the issuer is absent: a concurrent
// write that would add the issuer then has an older entity tag, and the lifecycle manager refuses it.
func (f *front) removeIssuerAtCLM(ctx context.Context, p parameters) ops.Outcome {
	w, found, err := f.readAuth(ctx, p)
	if err != nil {
		return failureOutcome(err)
	}
	if !found || w.cluster.DeletedTime != nil {
		return ops.Outcome{Event: ops.Event{Kind: ops.Succeed}} // no cluster, no trust
	}
	after, err := removeIssuer(w.cluster.Spec, w.auth)
	if err != nil {
		return failureOutcome(err)
	}
	have, err := f.replaceSpec(ctx, w.cluster, after)
	if err != nil {
		return failureOutcome(err)
	}
	if len(have.Statuses) > 0 && readStatus(have, resource{kind: kindCluster}).isDone {
		return ops.Outcome{Event: ops.Event{Kind: ops.Succeed}}
	}
	return progressOutcome(stateDeleting, 50)
}

// replaceSpec replaces the spec of a Cluster if it differs. The answer to a replacement has no reports.
func (f *front) replaceSpec(ctx context.Context, have clmclient.Resource, spec map[string]any) (clmclient.Resource,
	error) {
	after, err := json.Marshal(spec)
	if err != nil {
		return have, err
	}
	if same, err := store.SameJSON(have.Spec, after); err != nil || same {
		return have, err
	}
	body, err := json.Marshal(map[string]json.RawMessage{"spec": after})
	if err != nil {
		return have, err
	}
	return f.clm.Replace(ctx, clusters, have.ID, body, have.ETag)
}

// addIssuer returns the spec of a Cluster that trusts an issuer, in the place of the one that the external
// authentication had before and of any other with the same URL. wrong says why the Cluster cannot have it.
func addIssuer(stored json.RawMessage, issuer cluster.Issuer) (spec map[string]any, wrong string, err error) {
	spec, issuers, err := readIssuers(stored)
	if err != nil {
		return nil, "", err
	}
	before := textAt(spec, "properties", propertyIssuer)
	at := slices.IndexFunc(issuers, func(i cluster.Issuer) bool { return i.URL == issuer.URL || i.URL == before })
	issuers = slices.DeleteFunc(issuers, func(i cluster.Issuer) bool { return i.URL == issuer.URL || i.URL == before })
	if at < 0 {
		at = len(issuers)
	}
	issuers = slices.Insert(issuers, at, issuer)
	if found := cluster.CheckIssuers("issuers", issuers); len(found) > 0 {
		return nil, found[0].Field + " " + found[0].Message, nil
	}
	document.Ensure(spec, "authentication")["issuers"] = issuers
	document.Ensure(spec, "properties")[propertyIssuer] = issuer.URL
	return spec, "", nil
}

// removeIssuer returns the spec of a Cluster that no longer trusts the issuer of an external authentication.
func removeIssuer(stored json.RawMessage, auth resource) (map[string]any, error) {
	spec, issuers, err := readIssuers(stored)
	if err != nil {
		return nil, err
	}
	removed := removedAuth + auth.id
	if before := textAt(spec, "properties", propertyIssuer); before != removed {
		asked := textAt(auth.spec.Properties, "issuer", "url")
		issuers = slices.DeleteFunc(issuers, func(i cluster.Issuer) bool { return i.URL == before || i.URL == asked })
	}
	if document.Ensure(spec, "authentication")["issuers"] = issuers; len(issuers) == 0 {
		delete(spec, "authentication")
	}
	document.Ensure(spec, "properties")[propertyIssuer] = removed
	return spec, nil
}

// readIssuers decodes the spec of a Cluster, and its issuers of tokens.
func readIssuers(stored json.RawMessage) (spec map[string]any, issuers []cluster.Issuer, err error) {
	if err = decodeNumbers(stored, &spec); err == nil {
		var of struct {
			Authentication struct{ Issuers []cluster.Issuer }
		}
		err = json.Unmarshal(stored, &of)
		issuers = of.Authentication.Issuers
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading a spec of the lifecycle manager: %w", err)
	}
	return spec, issuers, nil
}

// dropExternalAuth removes the external authentication of a cluster that another API has deleted, and ends its
// operation.
func (f *front) dropExternalAuth(ctx context.Context, tx *store.Tx, of resource) error {
	d, err := tx.GetByName(ctx, kindAuth, of.scope, of.name)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	var auth resource
	if err == nil {
		auth, err = toResource(d)
	}
	if err == nil {
		err = f.cancelActiveOperation(ctx, tx, auth, "")
	}
	if err != nil {
		return err
	}
	return tx.Remove(ctx, kindAuth, auth.id, 0)
}
