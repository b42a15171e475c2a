// Package client is the Go client of a region's Platform API, for customers and operators. It signs
// each request by AWS Signature Version 4, retries calls that may be sent twice, and continues a
// watch after its stream has broken.
//
// When the region answers with an error, or does not answer, a method returns an *Error with the
// HTTP status, a stable code and a reason. StatusOf returns the status alone.
//
// The methods of Client are safe for concurrent use. A call ends early when its context is
// cancelled.
//
// The clients of the region's own services are in the packages below: clmclient (the lifecycle
// manager) and maestroclient (Maestro). Package remote has the code that all three share. All of
// them are tools: api and internal packages must not import them.
package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
	"atoll.dev/internal/certfile"
)

// Options are the address of a region and the caller's key pair.
type Options struct {
	Endpoint    string // such as https://127.0.0.1:20000, with the stage prefix if there is one
	CAFile      string // PEM file of the region's CA; empty: the system's
	Credentials Credentials

	// Token, unless nil, returns the token of an OpenID Connect issuer that each request carries, in the
	// place of a signature. Several goroutines may call it.
	Token func(ctx context.Context) (string, error)

	// Budget bounds the retries of a call while the region is unavailable; default
	// 20 s.
	Budget time.Duration
}

// Client is a client of one region's Platform API. Several goroutines may use it.
type Client struct{ http *remote.Service }

// New returns a client. The client connects at its first call.
func New(o Options) (*Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		roots, err := certfile.ReadPool(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the region's CA: %w", err)
		}
		config.RootCAs = roots
	}
	c, err := remote.New("the Platform API", o.Endpoint, config)
	if err != nil {
		return nil, err
	}
	if o.Budget > 0 {
		c.Budget = o.Budget
	}
	c.Prepare = func(r *http.Request, body []byte) error {
		return signWithInvocationID(r, body, o.Credentials, time.Now())
	}
	if o.Token != nil {
		c.Prepare = func(r *http.Request, _ []byte) error {
			token, err := o.Token(r.Context())
			if err == nil {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			return err
		}
	}
	return &Client{c}, nil
}

// Close closes idle connections.
func (p *Client) Close() { p.http.Close() }

// Ready reads the region's readiness, without retries. It returns an error when the region is not
// ready; then Health lists the missing services, if the region answered.
func (p *Client) Ready(ctx context.Context) (platform.Health, error) {
	var h platform.Health
	resp, err := p.http.Open(ctx, remote.Request{Method: http.MethodGet, Path: "/api/v0/ready"}, p.http.AnswerTimeout)
	if e, ok := errors.AsType[*remote.Error](err); ok && json.Unmarshal(e.Body, &h) == nil && len(h.Missing) > 0 {
		e.Code, e.Reason = "not-ready", "the region is not ready: "+h.Missing[0].Name+": "+h.Missing[0].Reason
	}
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
		return h, fmt.Errorf("reading the Platform API's answer: %w", err)
	}
	return h, nil
}

const (
	pathManagementClusters = "/api/v0/management_clusters"
	pathWork               = "/api/v0/work"
	pathPlatformBundle     = "/api/v0/resource_bundles"
)

// RegisterManagementCluster registers a management cluster with its labels, capacity and versions. The error has status
// 409 when another one has the name.
func (p *Client) RegisterManagementCluster(ctx context.Context, r platform.ManagementClusterRequest) (
	platform.ManagementCluster, error) {
	return p.changeManagementCluster(ctx, http.MethodPost, pathManagementClusters, r)
}

// UpdateManagementCluster changes state, labels, capacity and versions of a management cluster, which it
// finds by id or name. Absent members stay unchanged.
func (p *Client) UpdateManagementCluster(ctx context.Context, idOrName string, u platform.ManagementClusterUpdate) (
	platform.ManagementCluster, error) {
	return p.changeManagementCluster(ctx, http.MethodPatch, pathOf(pathManagementClusters, idOrName), u)
}

func (p *Client) changeManagementCluster(ctx context.Context, method, path string, v any) (
	mc platform.ManagementCluster, err error) {
	body, err := json.Marshal(v)
	if err != nil {
		return mc, err
	}
	doc, _, err := p.http.Do(ctx, remote.Request{Method: method, Path: path, Body: body})
	if err != nil {
		return mc, err
	}
	err = decode(doc, &mc)
	return mc, err
}

// ManagementCluster returns a management cluster by its id or name.
func (p *Client) ManagementCluster(ctx context.Context, idOrName string) (platform.ManagementCluster, error) {
	var mc platform.ManagementCluster
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodGet, Path: pathOf(pathManagementClusters, idOrName)})
	if err != nil {
		return mc, err
	}
	err = decode(doc, &mc)
	return mc, err
}

// ManagementClusters returns all management clusters.
func (p *Client) ManagementClusters(ctx context.Context) ([]platform.ManagementCluster, error) {
	return allByPage(ctx, 100, func(ctx context.Context, page, size int) ([]platform.ManagementCluster, error) {
		var list platform.ManagementClusterList
		doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodGet, Path: pathManagementClusters,
			Query: remote.ListOptions{Page: page,
				Size: size}.Values()})
		if err != nil {
			return nil, err
		}
		err = decode(doc, &list)
		return list.Items, err
	})
}

// DeleteManagementCluster removes a management cluster by its id or name. The error has status 409
// while the management cluster has works.
func (p *Client) DeleteManagementCluster(ctx context.Context, idOrName string) error {
	return p.sendDelete(ctx, pathOf(pathManagementClusters, idOrName), nil)
}

// ListBundles returns one page of the resource bundles of all sources.
func (p *Client) ListBundles(ctx context.Context, o remote.ListOptions) (platform.ResourceBundleList, error) {
	var list platform.ResourceBundleList
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodGet, Path: pathPlatformBundle, Query: o.Values()})
	if err != nil {
		return list, err
	}
	err = decode(doc, &list)
	return list, err
}

// Bundle returns one resource bundle.
func (p *Client) Bundle(ctx context.Context, id WorkID) (platform.ResourceBundle, error) {
	var b platform.ResourceBundle
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodGet, Path: pathPlatformBundle + "/" +
		url.PathEscape(string(id))})
	if err != nil {
		return b, err
	}
	err = decode(doc, &b)
	return b, err
}

// WatchBundles opens one stream of changes. The objects of its events are platform.ResourceBundles.
func (p *Client) WatchBundles(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
	return p.http.Watch(ctx, pathPlatformBundle, o)
}

// FollowBundles calls apply with every event until ctx ends or apply fails, and returns that error.
// It continues a broken stream from the last cursor; when the server refuses the cursor, it calls
// apply with a Relist event and begins again.
func (p *Client) FollowBundles(ctx context.Context, o remote.WatchOptions, apply func(remote.Event) error) error {
	return remote.Follow(ctx, o, p.WatchBundles, apply)
}

// allByPage returns all items of a list whose pages get reads by number, from 1.
func allByPage[T any](ctx context.Context, size int, get func(ctx context.Context, page, size int) ([]T, error)) (
	[]T, error) {
	var all []T
	for page := 1; ; page++ {
		items, err := get(ctx, page, size)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if len(items) < size {
			return all, nil
		}
	}
}

func decode(doc remote.Document, v any) error {
	if err := json.Unmarshal(doc.JSON, v); err != nil {
		return fmt.Errorf("reading the Platform API's answer: %w", err)
	}
	return nil
}
