// Package clmclient is the Go client of the cluster lifecycle manager (CLM), for the region's
// services and for operators: resources, the reports of adapters, history, placement, and watches.
//
// A service proves its identity by its certificate. With remote.WithActor it names the actor, and
// with WithTenant the tenant, for whom it calls. Errors are *remote.Error. It is a tool: api and
// internal packages must not import it.
package clmclient

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/client/remote"
	"atoll.dev/internal/jsonvalue"
)

// Options are the address of the cluster lifecycle manager and the caller's identity.
type Options struct {
	Endpoint string      // such as https://127.0.0.1:20020
	TLS      *tls.Config // the caller's certificate and the CA of CLM's; nil: the system's CAs
	Token    string      // bearer token of a caller without certificate

	Timeout time.Duration // until a call's answer begins; default 10 s
	Budget  time.Duration // of the retries of a call while CLM is unavailable; default 20 s
}

// Client is a client of one cluster lifecycle manager. Several goroutines may use it.
type Client struct{ http *remote.Service }

// New returns a client. The client connects at its first call.
func New(o Options) (*Client, error) {
	c, err := remote.New("CLM", o.Endpoint, o.TLS)
	if err != nil {
		return nil, err
	}
	if o.Timeout > 0 {
		c.AnswerTimeout = o.Timeout
	}
	if o.Budget > 0 {
		c.Budget = o.Budget
	}
	c.Prepare = func(r *http.Request, _ []byte) error {
		remote.ActorOf(r.Context()).EachHeader(r.Header.Set)
		if err := setTenant(r); err != nil {
			return err
		}
		if o.Token != "" {
			r.Header.Set("Authorization", "Bearer "+o.Token)
		}
		return nil
	}
	return &Client{c}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.Close() }

// Ready reads one resource of a collection, without retries, and returns the error of an unavailable
// lifecycle manager.
func (c *Client) Ready(ctx context.Context, from Collection) error {
	resp, err := c.http.Open(ctx, remote.Request{Method: http.MethodGet, Path: from.path(), Query: url.Values{
		"size":   {"1"},
		"fields": {"id"}}}, c.http.AnswerTimeout)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Collection is a path of resources: the plural of their kind, such as "clusters"; the plural below
// one owner (see Below); or AllKinds.
type Collection string

// AllKinds is the collection of the resources of every kind.
const AllKinds Collection = "resources"

// Below returns the collection of the children of one resource of c.
func (c Collection) Below(id string, children Collection) Collection {
	return c + "/" + Collection(url.PathEscape(id)) + "/" + children
}

const pathCLM = "/api/hyperfleet/v1/"

func (c Collection) path(elem ...string) string {
	path := pathCLM + string(c)
	for _, e := range elem {
		path += "/" + url.PathEscape(e)
	}
	return path
}

// Resource is a resource as the lifecycle manager sent it; JSON has the same bytes. Members that
// the parameter fields leaves out are empty.
type Resource struct {
	clm.Resource
	JSON json.RawMessage
	ETag string // empty in lists and watches
	// Derived has values that callers have computed from the resource, by keys of their own types. It is nil unless a
	// ResourceCache has the resource. A changed resource has a new one.
	Derived *sync.Map
}

// MarshalJSON returns the JSON of the answer.
func (r Resource) MarshalJSON() ([]byte, error) { return r.JSON, nil }

// ResourceOf reads the object of an event of a watch.
func ResourceOf(object json.RawMessage) (Resource, error) {
	r, err := jsonvalue.DecodeAs[clm.Resource](object)
	if err != nil {
		err = fmt.Errorf("reading a resource of CLM: %w", err)
	}
	return Resource{Resource: r, JSON: object}, err
}

// ResourceKind is a kind of resources that a CLM serves.
type ResourceKind struct {
	Kind   string
	Plural Collection
	Owner  Collection // plural of the kind that it belongs to; "" for none
}

// Kinds returns the server's kinds of resources in the order of their plurals. It reads them from
// the server's OpenAPI document.
func (c *Client) Kinds(ctx context.Context) ([]ResourceKind, error) {
	doc, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodGet, Path: pathCLM + "openapi"})
	if err != nil {
		return nil, err
	}
	return parseKinds(doc.JSON)
}

// parseKinds finds the kinds in an OpenAPI document by the ids of their list operations: the id of the
// operation that lists all resources, followed by the kind, or by the owner's kind and the kind.
func parseKinds(document []byte) ([]ResourceKind, error) {
	var openapi struct {
		Paths map[string]struct {
			Get struct {
				OperationID string `json:"operationId"`
			}
		}
	}
	if err := json.Unmarshal(document, &openapi); err != nil {
		return nil, fmt.Errorf("reading CLM's OpenAPI document: %w", err)
	}
	list := openapi.Paths[pathCLM+string(AllKinds)].Get.OperationID
	owners := map[string]string{}
	var kinds []ResourceKind
	for path, item := range openapi.Paths {
		tail, ok := strings.CutPrefix(path, pathCLM)
		kind, isList := strings.CutPrefix(item.Get.OperationID, list)
		if !ok || !isList || kind == "" {
			continue
		}
		if owner, child, nested := strings.Cut(tail, "/{parent_id}/"); nested {
			owners[child] = owner
		} else {
			kinds = append(kinds, ResourceKind{Kind: kind, Plural: Collection(tail)})
		}
	}
	if list == "" || len(kinds) == 0 {
		return nil, fmt.Errorf("reading CLM's OpenAPI document: it names no kinds")
	}
	for i, k := range kinds {
		kinds[i].Owner = Collection(owners[string(k.Plural)])
	}
	slices.SortFunc(kinds, func(a, b ResourceKind) int { return strings.Compare(string(a.Plural), string(b.Plural)) })
	return kinds, nil
}

// ResourceQuery selects resources and a page of them. Absent members are the
// service's defaults: the latest first, 20 in a page.
type ResourceQuery struct {
	Page, Size     int    // of pages by number
	Continue       string // of the page before; the pages of one query neither lose nor repeat a resource
	Search         string // tree search language
	Order          string // such as "name asc, created_time desc"
	Fields         string // such as "name,spec.*"; the answer always has the id
	Kind           string // with AllKinds: only this one
	RefType, RefTo string // only resources with a reference of this type to this id
	Statuses       bool   // with the reports of adapters, in Resource.Statuses
}

func (q ResourceQuery) values() url.Values {
	v := url.Values{}
	for name, n := range map[string]int{"page": q.Page, "size": q.Size} {
		if n > 0 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	remote.SetNonEmpty(v, "continue", q.Continue)
	remote.SetNonEmpty(v, "search", q.Search)
	remote.SetNonEmpty(v, "order", q.Order)
	remote.SetNonEmpty(v, "fields", q.Fields)
	remote.SetNonEmpty(v, "kind", q.Kind)
	remote.SetNonEmpty(v, "ref_type", q.RefType)
	remote.SetNonEmpty(v, "ref_target_id", q.RefTo)
	if q.Statuses {
		v.Set("statuses", "true")
	}
	return v
}

// ResourcePage is one page of a list.
type ResourcePage struct {
	Items    []Resource
	Total    int    // in all pages
	Continue string // for the next page; "" on the last one
	Cursor   string // a watch from here sends all later changes
}

// List returns one page.
func (c *Client) List(ctx context.Context, from Collection, q ResourceQuery) (ResourcePage, error) {
	var page ResourcePage
	var list clm.ResourceList
	if err := c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: from.path(), Query: q.values()},
		&list); err != nil {
		return page, err
	}
	page = ResourcePage{Items: make([]Resource, len(list.Items)), Total: list.Total, Continue: list.Continue,
		Cursor: list.Cursor}
	for i, item := range list.Items {
		r, err := ResourceOf(item)
		if err != nil {
			return page, err
		}
		page.Items[i] = r
	}
	return page, nil
}

// All returns an iterator over all resources of a query, which it reads by pages of 100. The
// iteration ends with the first error.
func (c *Client) All(ctx context.Context, from Collection, q ResourceQuery) iter.Seq2[Resource, error] {
	q.Page, q.Size, q.Continue = 0, 100, ""
	return func(yield func(Resource, error) bool) {
		for {
			page, err := c.List(ctx, from, q)
			if err != nil {
				yield(Resource{}, err)
				return
			}
			for _, r := range page.Items {
				if !yield(r, nil) {
					return
				}
			}
			if q.Continue = page.Continue; q.Continue == "" {
				return
			}
		}
	}
}

// Get returns one resource; fields may be "".
func (c *Client) Get(ctx context.Context, from Collection, id, fields string) (Resource, error) {
	q := url.Values{}
	remote.SetNonEmpty(q, "fields", fields)
	return c.doResource(ctx, remote.Request{Method: http.MethodGet, Path: from.path(id), Query: q})
}

// GetWithStatuses returns one resource with the reports of its adapters in Resource.Statuses.
func (c *Client) GetWithStatuses(ctx context.Context, from Collection, id string) (Resource, error) {
	return c.doResource(ctx, requestWithStatuses(from, id))
}

// requestWithStatuses returns the request for a resource with its reports.
func requestWithStatuses(from Collection, id string) remote.Request {
	return remote.Request{Method: http.MethodGet, Path: from.path(id), Query: url.Values{"statuses": {"true"}}}
}

// Named returns the only resource with a name. The error has status 404 when there is none, and 409
// when several owners or tenants have one.
func (c *Client) Named(ctx context.Context, from Collection, name string) (Resource, error) {
	page, err := c.List(ctx, from, ResourceQuery{Size: 2, Search: remote.SearchEqual("name", name)})
	if err != nil {
		return Resource{}, err
	}
	switch len(page.Items) {
	case 0:
		return Resource{}, &remote.Error{Status: http.StatusNotFound, Code: "not-found", Reason: fmt.Sprintf(
			"nothing in %s is named %q", from, name)}
	case 1:
		return c.Get(ctx, from, page.Items[0].ID, "") // for the entity tag
	}
	return Resource{}, &remote.Error{Status: http.StatusConflict, Code: "ambiguous", Reason: fmt.Sprintf(
		"%d in %s are named %q; give an id", page.Total, from, name)}
}

// doInto sends a request and decodes the JSON of the answer into v.
func (c *Client) doInto(ctx context.Context, r remote.Request, v any) error {
	doc, _, err := c.http.Do(ctx, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(doc.JSON, v); err != nil {
		return fmt.Errorf("reading CLM's answer to %s %s: %w", r.Method, r.Path, err)
	}
	return nil
}

// doResource sends a request and returns the resource of the answer.
func (c *Client) doResource(ctx context.Context, r remote.Request) (Resource, error) {
	doc, _, err := c.http.Do(ctx, r)
	if err != nil {
		return Resource{}, err
	}
	return resourceOf(doc)
}

// resourceOf reads the resource of an answer.
func resourceOf(doc remote.Document) (Resource, error) {
	r, err := ResourceOf(doc.JSON)
	r.ETag = doc.ETag
	return r, err
}
