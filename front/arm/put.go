package arm

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// Requests of operations.
const (
	requestCreate     ops.Request = "Create"
	requestUpdate     ops.Request = "Update"
	requestDelete     ops.Request = "Delete"
	requestCredential ops.Request = "RequestCredential"
	requestRevoke     ops.Request = "RevokeCredentials"
)

// activeStateOf returns the provisioningState while an operation of a request runs.
func activeStateOf(request ops.Request) string {
	switch request {
	case requestCreate, requestCredential:
		return stateProvisioning
	case requestUpdate:
		return stateUpdating
	}
	return stateDeleting
}

// put serves PUT and PATCH of a cluster, node pool or external authentication.
func (f *front) put(kind store.Kind) func(*exchange) error {
	return func(x *exchange) error {
		if err := x.subscription.checkState(x.r.Method); err != nil {
			return err
		}
		named, err := parseTarget(x.path, kind)
		if err != nil {
			return err
		}
		body, err := x.readBody()
		if err != nil {
			return err
		}
		have := x.resource
		isPatch := x.r.Method == http.MethodPatch
		if have == nil && isPatch {
			return f.notFound(x, kind)
		}
		pre := preconditionsOf(x.r.Header)
		if err := pre.check(have); err != nil {
			return err
		}
		var parent *resource
		if kind != kindCluster {
			if parent, err = f.parentOf(x); err != nil {
				return err
			}
		}
		if kind == kindAuth {
			if err := f.refuseSecondAuth(x, named); err != nil {
				return err
			}
		}
		if isPatch {
			body = putFromPatch(x.version, *have, body)
		}
		next, err := f.nextResource(x, named, have, parent, body)
		if err != nil {
			return err
		}
		if err := f.authorize(x, have, parent, next); err != nil {
			return err
		}
		if have == nil {
			return f.create(x, next, parent)
		}
		return f.change(x, *have, next, parent, pre)
	}
}

// putFromPatch returns the body of a PUT that does the same as a PATCH: the resource in the form of the
// api-version, with the patch merged into it. Tags are replaced as a whole.
func putFromPatch(v version, have resource, patch map[string]any) map[string]any {
	shown := have.view(v)
	properties, _ := patch["properties"].(map[string]any)
	body := map[string]any{"location": have.spec.Location, "identity": have.spec.Identity,
		"properties": jsonvalue.Overlay(shown["properties"].(map[string]any), properties)}
	for _, name := range []string{"name", "id", "type", "location", "tags", "identity"} {
		if value, given := patch[name]; given {
			body[name] = value
		}
	}
	return body
}

// nextResource checks the body of a PUT and returns the resource as it is to be stored. The error has all
// problems of the body.
func (f *front) nextResource(x *exchange, named target, have, parent *resource, body map[string]any) (resource, error) {
	var p problems
	next := resource{kind: named.kind, scope: x.subscription.ID, name: named.document}
	if have != nil {
		next = *have
	} else {
		next.id = newID()
		next.spec = resourceSpec{Account: x.subscription.Account, Path: named.path, Name: named.name,
			Location: f.location}
		if parent != nil {
			next.spec.Parent = parent.id
		}
	}
	f.checkEnvelope(&p, next, body)
	a := bodyReader{version: x.version, isNew: have == nil}
	properties, isObject := body["properties"].(map[string]any)
	if !isObject && body["properties"] != nil {
		p.add("properties", "Invalid value: must be an object")
	}
	if state := properties["provisioningState"]; f.mode == Strict && have != nil && state != nil &&
		state != have.status.State {
		p.add("properties.provisioningState", "Forbidden: field is read-only; it is %q", have.status.State)
	}
	next.spec.Properties = a.readObject("properties.", fieldsOf(named.kind), properties, next.spec.Properties)
	p = append(p, a.problems...)
	if next.kind == kindAuth {
		if len(p) == 0 {
			completeExternalAuth(&p, next.spec.Properties)
		}
		return next, invalid(p)
	}
	if tags, given := body["tags"]; given && tags != nil {
		next.spec.Tags = readTags(&p, tags)
	}
	if identity := body["identity"]; identity != nil {
		next.spec.Identity = identity
	}
	releases, err := f.releases.Releases(x.ctx)
	if err != nil {
		return next, err
	}
	if len(p) == 0 {
		f.completeSpec(&p, releases, have, parent, &next)
	}
	if next.kind == kindPool && have == nil {
		checkDisk(&p, next.spec.Properties)
	}
	if len(p) == 0 {
		checkSpec(&p, releases, parent, have, next)
	}
	return next, invalid(p)
}

// checkEnvelope checks the members of a body beside its properties.
func (f *front) checkEnvelope(p *problems, next resource, body map[string]any) {
	if name, given := body["name"].(string); given && !strings.EqualFold(name, next.spec.Name) {
		p.add("name", "name must match resourceID path: %s", next.spec.Path)
	}
	if id, given := body["id"].(string); given && !strings.EqualFold(id, next.spec.Path) {
		p.add("id", "id must match resourceID path: %s", next.spec.Path)
	}
	if kind, given := body["type"].(string); given && !strings.EqualFold(kind, resourceTypeOf(next.kind)) {
		p.add("type", "type must be %s", resourceTypeOf(next.kind))
	}
	location, _ := body["location"].(string)
	switch {
	case next.kind == kindAuth: // it is where its cluster is
	case location == "":
		p.add("location", "Required value")
	case f.mode == Strict && !strings.EqualFold(strings.ReplaceAll(location, " ", ""), f.location):
		p.add("location", "Unsupported value: %q: supported values: %q", location, f.location)
	}
}

// Limits of Azure for tags.
const (
	maxTags     = 50
	maxTagName  = 512
	maxTagValue = 256
)

func readTags(p *problems, value any) map[string]any {
	tags, isObject := value.(map[string]any)
	if !isObject {
		p.add("tags", "Invalid value: must be an object of strings")
		return nil
	}
	if len(tags) > maxTags {
		p.add("tags", "Too many: %d: must have at most %d items", len(tags), maxTags)
	}
	for name, value := range tags {
		text, isText := value.(string)
		if !isText || len(text) > maxTagValue || len(name) > maxTagName || name == "" {
			p.add("tags["+name+"]", "Invalid value: a tag has a name of 1 to %d and a string of up to %d characters",
				maxTagName, maxTagValue)
		}
	}
	return tags
}

// authorize refuses a PUT that the policies of the account do not permit, with the tags before and after
// the change.
func (f *front) authorize(x *exchange, have, parent *resource, next resource) error {
	action := map[store.Kind]access.Action{kindCluster: "CreateCluster", kindPool: "CreateNodePool"}[next.kind]
	authority := access.AuthorityFrom(x.r.Context())
	if next.kind == kindAuth {
		return authority.Check(x.r.Context(), "UpdateCluster", resourceOf(*parent, nil))
	}
	of := policy.Resource{Kind: policy.Cluster, Account: x.subscription.Account,
		Tags: policyTags(next.spec.Tags)}
	if next.kind == kindPool {
		of.ID, of.Tags = parent.status.Resource, policyTags(parent.spec.Tags)
	}
	if have != nil {
		action = map[store.Kind]access.Action{kindCluster: "UpdateCluster", kindPool: "UpdateNodePool"}[next.kind]
		of = resourceOf(*have, parent)
	}
	if err := authority.Check(x.r.Context(), action, of); err != nil {
		return err
	}
	if have == nil || next.kind == kindPool || jsonvalue.Equal(have.spec.Tags, next.spec.Tags) {
		return nil
	}
	for _, tags := range []map[string]any{have.spec.Tags, next.spec.Tags} {
		of.Tags = policyTags(tags)
		if err := authority.Check(x.r.Context(), "TagCluster", of); err != nil {
			return err
		}
	}
	return nil
}

// resourceOf returns a resource as policies name it. An external authentication is a part of its cluster.
func resourceOf(r resource, parent *resource) policy.Resource {
	if r.kind == kindAuth && parent != nil {
		r = *parent
	}
	of := policy.Resource{Kind: policy.Cluster, ID: r.status.Resource, Account: r.spec.Account,
		Tags: policyTags(r.spec.Tags)}
	if r.kind == kindPool {
		of.Kind = policy.NodePool
		if parent != nil {
			of.Cluster, of.Tags = parent.status.Resource, policyTags(parent.spec.Tags)
		}
	}
	return of
}

// create commits a new resource together with its operation.
func (f *front) create(x *exchange, next resource, parent *resource) error {
	setSystemData(&next, x.r.Header)
	next.status = resourceStatus{State: stateAccepted}
	var op ops.State
	var created store.Document
	err := f.store.Tx(x.ctx, func(tx *store.Tx) (err error) {
		if err := f.lockParent(x.ctx, tx, parent, "create"); err != nil {
			return err
		}
		if parent == nil {
			if err := f.lockSubscription(x, tx); err != nil {
				return err
			}
		}
		order := f.newOrder(x, next, requestCreate, nil)
		next.status.Operation = order.ID
		d := store.Document{Kind: next.kind, ID: next.id, Scope: next.scope, Name: next.name}
		if err := next.store(&d); err != nil {
			return err
		}
		if created, err = tx.Create(x.ctx, d); err != nil {
			return err
		}
		op, err = f.engine.Begin(x.ctx, tx, order)
		return err
	})
	if err != nil {
		return err
	}
	next.version = created.Version
	return f.writeAccepted(x, http.StatusCreated, op, &next)
}

// change commits a change of a resource together with its operation. A PUT that changes nothing of a
// resource that is as it should be begins no operation, except of an external authentication: another API may have
// removed its issuer, which the operation adds again.
func (f *front) change(x *exchange, have, next resource, parent *resource, pre preconditions) error {
	if !isTerminal(have.status.State) {
		return conflict(have.spec.Path, "Cannot update resource while resource is %q", strings.ToLower(have.status.State))
	}
	if have.kind != kindAuth && have.status.State == stateSucceeded && sameSpec(have.spec, next.spec) {
		return f.writeResource(x, http.StatusOK, have)
	}
	setSystemData(&next, x.r.Header)
	var op ops.State
	var changed store.Document
	err := f.store.Tx(x.ctx, func(tx *store.Tx) (err error) {
		if err := f.lockParent(x.ctx, tx, parent, "update"); err != nil {
			return err
		}
		order := f.newOrder(x, next, requestUpdate, nil)
		next.status = have.status
		next.status.State, next.status.Error, next.status.Operation = stateAccepted, nil, order.ID
		if changed, _, err = tx.Update(x.ctx, have.kind, have.id, have.version, next.store); err != nil {
			return err
		}
		op, err = f.engine.Begin(x.ctx, tx, order)
		return err
	})
	if err != nil {
		return pre.translateStale(err)
	}
	next.version = changed.Version
	status := http.StatusOK
	if x.r.Method == http.MethodPatch {
		status = http.StatusAccepted
	}
	return f.writeAccepted(x, status, op, &next)
}

// sameSpec reports whether two specs request the same state. It ignores the system data.
func sameSpec(a, b resourceSpec) bool {
	a.SystemData, b.SystemData = nil, nil
	one, errOne := json.Marshal(a)
	other, errOther := json.Marshal(b)
	same, err := store.SameJSON(one, other)
	return errOne == nil && errOther == nil && err == nil && same
}

// lockParent locks the cluster of a node pool or external authentication until the transaction ends, and
// refuses the request while an operation works on the cluster.
func (f *front) lockParent(ctx context.Context, tx *store.Tx, parent *resource, verb string) error {
	if parent == nil {
		return nil
	}
	d, err := tx.GetForUpdate(ctx, kindCluster, parent.id)
	if err != nil {
		return err
	}
	now, err := toResource(d)
	if err != nil {
		return err
	}
	if state := now.status.State; !isTerminal(state) && (state != stateUpdating || verb != "delete") {
		return conflict(now.spec.Path, "Cannot %s resource while parent resource is %s", verb, strings.ToLower(state))
	}
	return nil
}

// setSystemData sets the system data from the headers of Azure's gateway. In a stored resource it changes
// the fields lastModified* only.
func setSystemData(r *resource, h http.Header) {
	sent := systemDataOf(h)
	after := map[string]any{}
	for name, value := range r.spec.SystemData {
		after[name] = value
	}
	for name, value := range sent {
		if r.version == 0 || strings.HasPrefix(name, "lastModified") {
			after[name] = value
		}
	}
	r.spec.SystemData = after
}

func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		panic("arm: making an id: " + err.Error()) // the system has no randomness
	}
	return id.String()
}
