package arm

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"atoll.dev/access"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// writeResource answers with a resource and its entity tag.
func (f *front) writeResource(x *exchange, status int, r resource) error {
	x.w.Header().Set("ETag", r.etag())
	return x.writeJSON(status, f.view(x, r))
}

// view returns a resource in the form of the api-version of a request, as lists have it. An external authentication
// gets its condition.
func (f *front) view(x *exchange, r resource) map[string]any {
	shown := r.view(x.version)
	if r.kind == kindAuth {
		f.addCondition(x.ctx, x.version, r, shown)
	}
	return shown
}

// get serves GET of a cluster, node pool or external authentication.
func (f *front) get(kind store.Kind) func(*exchange) error {
	return func(x *exchange) error {
		if x.resource == nil || x.subscription.state() == unregistered {
			if kind == kindAuth && x.subscription.state() != unregistered {
				if _, err := f.parentOf(x); err != nil {
					return err
				}
			}
			return f.notFound(x, kind)
		}
		shown := f.view(x, *x.resource)
		if kind != kindAuth {
			f.addStatus(x.ctx, x.version, *x.resource, shown)
		}
		x.w.Header().Set("ETag", x.resource.etag())
		return x.writeJSON(http.StatusOK, shown)
	}
}

// Bounds of pages.
const (
	pageSize    = 20
	maxPageSize = 100
)

// list serves the lists of clusters of a subscription or resource group, and of node pools and external
// authentications of a cluster.
func (f *front) list(kind store.Kind) func(*exchange) error {
	return func(x *exchange) error {
		q := store.Query{Kind: kind, Scope: x.subscription.ID, Limit: pageSize,
			OrderBy: []store.Order{{Expr: "d.created_at", Type: "timestamptz"}}}
		var parent *resource
		group := x.r.PathValue("rg")
		switch {
		case x.subscription.state() == unregistered:
			return x.writeJSON(http.StatusOK, map[string]any{"value": []any{}})
		case kind != kindCluster:
			var err error
			if parent, err = f.parentOf(x); err != nil {
				return err
			}
			q.Where = store.Fragment{SQL: childrenSQL, Args: []any{parent.id}}
		case group != "":
			q.Where = store.Fragment{SQL: "split_part(d.name, '/', 1) = $1", Args: []any{group}}
		}
		query := x.r.URL.Query()
		q.After = query.Get("$skipToken")
		if top, err := strconv.Atoi(query.Get("$top")); err == nil && top > 0 {
			q.Limit = min(top, maxPageSize)
		}
		page, err := f.store.List(x.ctx, q)
		if fault, known := store.FaultOf(err); known && fault == rest.FaultInvalid && q.After != "" {
			return rest.Errorf(http.StatusBadRequest, codeInvalidParameter,
				"The query parameter '$skipToken' is invalid; take it from a nextLink.")
		}
		if err != nil {
			return err
		}
		value := []any{}
		for _, d := range page.Documents {
			r, err := toResource(d)
			if err != nil {
				return err
			}
			may, err := f.mayDescribe(x, r, parent)
			if err != nil {
				return err
			}
			if may {
				value = append(value, f.view(x, r))
			}
		}
		body := map[string]any{"value": value}
		if page.Next != "" {
			next := url.Values{"api-version": {versions[x.version]}, "$skipToken": {page.Next}}
			if query.Has("$top") {
				next.Set("$top", strconv.Itoa(q.Limit))
			}
			body["nextLink"] = x.base + x.path + "?" + next.Encode()
		}
		return x.writeJSON(http.StatusOK, body)
	}
}

// mayDescribe reports whether the caller may see an item of a list.
func (f *front) mayDescribe(x *exchange, r resource, parent *resource) (bool, error) {
	action := map[store.Kind]access.Action{kindCluster: "DescribeCluster", kindPool: "DescribeNodePool",
		kindAuth: "DescribeCluster"}[r.kind]
	err := access.AuthorityFrom(x.r.Context()).Check(x.r.Context(), action, resourceOf(r, parent))
	if e, isAnswer := errors.AsType[*rest.Error](err); isAnswer && e.Status == http.StatusForbidden {
		return false, nil
	}
	return err == nil, err
}

// delete serves DELETE of a cluster, node pool or external authentication.
func (f *front) delete(kind store.Kind) func(*exchange) error {
	return func(x *exchange) error {
		if err := x.subscription.checkState(x.r.Method); err != nil {
			return err
		}
		pre := preconditionsOf(x.r.Header)
		if x.resource == nil {
			x.w.WriteHeader(http.StatusNoContent)
			return nil
		}
		if err := pre.check(x.resource); err != nil {
			return err
		}
		op, err := f.beginDelete(x, *x.resource, pre)
		if err != nil {
			return err
		}
		return f.writeAccepted(x, http.StatusAccepted, op, nil)
	}
}

// beginDelete marks a resource as deleting and begins the operation, which takes the place of another
// one. A second deletion is refused, or in the strict mode answered with the operation of the first.
func (f *front) beginDelete(x *exchange, have resource, pre preconditions) (op ops.State, err error) {
	if have.status.State == stateDeleting {
		if f.mode == Strict {
			return f.engine.Active(x.ctx, f.store, have.scope, have.operationKey())
		}
		return op, conflict(have.spec.Path, "Resource is already deleting")
	}
	version := int64(0)
	if pre.match != "" && pre.match != "*" {
		version = have.version
	}
	err = f.store.Tx(x.ctx, func(tx *store.Tx) error {
		if have.spec.Parent != "" {
			if err := f.lockParent(x.ctx, tx, &resource{id: have.spec.Parent}, "delete"); err != nil {
				return err
			}
		}
		order := f.newOrder(x, have, requestDelete, nil)
		if _, _, err := tx.Update(x.ctx, have.kind, have.id, version, func(d *store.Document) error {
			now, err := toResource(*d)
			if err != nil {
				return err
			}
			if now.status.State == stateDeleting {
				return conflict(have.spec.Path, "Resource is already deleting")
			}
			now.status.State, now.status.Error, now.status.Operation = stateDeleting, nil, order.ID
			return now.store(d)
		}); err != nil {
			return err
		}
		if err := f.cancelActiveOperation(x.ctx, tx, have, order.ID); err != nil {
			return err
		}
		op, err = f.engine.Begin(x.ctx, tx, order)
		return err
	})
	return op, pre.translateStale(err)
}

// parameters are the parameters of an operation of this front: its resource, its caller and its request.
type parameters struct {
	Kind     store.Kind      `json:"kind"`
	Document string          `json:"document"`
	Account  cluster.Account `json:"account"`
	Path     string          `json:"path"`
	Tenant   string          `json:"tenant,omitempty"` // of the caller; only he reads the operation
	Client   string          `json:"client,omitempty"`
	Request  string          `json:"request,omitempty"` // PEM of a certificate request
	Sealed   []byte          `json:"sealed,omitempty"`  // private key for the certificate, if the service has made it
	Version  version         `json:"version"`
}

func parametersOf(s ops.State) (p parameters, err error) {
	return p, json.Unmarshal(s.Parameters, &p)
}

// newOrder returns the order of a new operation on a resource. change may set more parameters.
func (f *front) newOrder(x *exchange, r resource, request ops.Request, change func(*parameters)) ops.Order {
	p := parameters{Kind: r.kind, Document: r.id, Account: r.spec.Account, Path: r.spec.Path,
		Tenant: x.r.Header.Get("X-Ms-Home-Tenant-Id"), Client: x.r.Header.Get("X-Ms-Client-Object-Id"),
		Version: x.version}
	if change != nil {
		change(&p)
	}
	id, of := newID(), r.operationKey()
	switch request {
	case requestCredential:
		of = id // several credentials of one cluster can be requested at once
	case requestRevoke:
		of = revocationKey(r)
	}
	data, err := json.Marshal(p)
	if err != nil {
		panic("arm: encoding parameters: " + err.Error())
	}
	order := ops.Order{ID: id, Scope: r.scope, Resource: of, Request: request, Parameters: data,
		Budget: budgets[request]}
	if uri := x.r.Header.Get("Azure-AsyncNotificationUri"); uri != "" && f.notifier != nil && f.notifier.Permits(uri) {
		order.NotificationURI = uri
	}
	return order
}

// operationPath returns the path of an operation: of its status or of its result, by the segment view.
func (f *front) operationPath(subscription, view, id string) string {
	return "/subscriptions/" + subscription + "/providers/" + namespace + "/locations/" + f.location + "/" + view + "/" +
		id
}

const (
	statusesSegment = "hcpOperationStatuses"
	resultsSegment  = "hcpOperationResults"
)

// writeAccepted answers that an operation was accepted. The answer to a PUT has the resource and the URL of
// the operation; the answer to another request has the URL of the result, too. The strict mode sends no
// body with 202.
func (f *front) writeAccepted(x *exchange, status int, op ops.State, r *resource) error {
	link := func(view, unsealSecret string) string {
		return x.base + f.operationPath(op.Scope, view, op.ID) + "?" + x.resultQuery(unsealSecret)
	}
	h := x.w.Header()
	h.Set("Azure-AsyncOperation", link(statusesSegment, ""))
	if status == http.StatusAccepted {
		h.Set("Location", link(resultsSegment, x.unsealSecret))
	}
	f.setRetryAfter(h)
	if op.NotificationURI != "" {
		h.Set("Azure-AsyncNotification", "Enabled")
	}
	if r == nil || status == http.StatusAccepted && f.mode == Strict {
		x.w.WriteHeader(status)
		return nil
	}
	return f.writeResource(x, status, *r)
}

func (f *front) setRetryAfter(h http.Header) {
	h.Set("Retry-After", strconv.Itoa(max(1, int(f.retryAfter.Seconds()))))
}

// operation reads the operation of a path. Only the tenant and client that requested it may.
func (f *front) operation(x *exchange) (s ops.State, p parameters, err error) {
	missing := rest.Errorf(http.StatusNotFound, codeResourceNotFound, "The operation '%s' was not found.",
		x.r.PathValue("operation"))
	if s, err = f.engine.Get(x.ctx, x.r.PathValue("operation")); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			err = missing
		}
		return s, p, err
	}
	if p, err = parametersOf(s); err != nil {
		return s, p, err
	}
	if s.Scope != x.subscription.ID || !strings.EqualFold(p.Tenant, x.r.Header.Get("X-Ms-Home-Tenant-Id")) ||
		!strings.EqualFold(p.Client, x.r.Header.Get("X-Ms-Client-Object-Id")) {
		return s, p, missing
	}
	return s, p, nil
}

// getOperationStatus serves the URL of Azure-AsyncOperation: always 200.
func (f *front) getOperationStatus(x *exchange) error {
	s, _, err := f.operation(x)
	if err != nil {
		return err
	}
	if !s.Status.IsTerminal() {
		f.setRetryAfter(x.w.Header())
	}
	return x.writeJSON(http.StatusOK, f.notificationOf(s))
}

// notificationOf returns the view of an operation, which is also the body of its notification.
func (f *front) notificationOf(s ops.State) any {
	return s.ViewAsARM(f.operationPath(s.Scope, statusesSegment, s.ID), activeStateOf(s.Request))
}

// getOperationResult serves the URL of Location: 202 until the end, then what the request would have
// been answered without an operation.
func (f *front) getOperationResult(x *exchange) error {
	s, p, err := f.operation(x)
	if err != nil {
		return err
	}
	if !s.Status.IsTerminal() {
		x.w.Header().Set("Location", x.base+x.path+"?"+x.resultQuery(x.r.URL.Query().Get(resultKey)))
		f.setRetryAfter(x.w.Header())
		x.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if s.Status != ops.Succeeded {
		status := http.StatusInternalServerError
		if f.mode == Strict {
			status = http.StatusConflict
		}
		e := rest.Errorf(status, s.Error.Code, "%s", s.Error.Message)
		if s.Error.Target != "" {
			e.Fields = []rest.FieldError{{Field: s.Error.Target, Message: s.Error.Message}}
		}
		return e
	}
	switch s.Request {
	case requestDelete, requestRevoke:
		x.w.WriteHeader(http.StatusNoContent)
		return nil
	case requestCredential:
		return x.writeCredential(s.Result, p.Sealed)
	}
	d, err := f.store.Get(x.ctx, p.Kind, p.Document)
	if errors.Is(err, store.ErrNotFound) {
		return rest.Errorf(http.StatusNotFound, codeResourceNotFound, "The resource '%s' was not found.", p.Path)
	}
	if err != nil {
		return err
	}
	r, err := toResource(d)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if s.Request == requestCreate {
		status = http.StatusCreated
	}
	return f.writeResource(x, status, r)
}
