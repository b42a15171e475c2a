// Package client calls the region's APIs: the Platform API as its users do,
// with signed requests, and Maestro and the cluster lifecycle manager as the
// region's services do, with their certificates and on behalf of an actor.
//
// What the clients have in common: errors are *Error with the status and code
// of the answer, calls are repeated where that is safe, connections are kept,
// and watches go on after the stream breaks.
//
// It is a tool: services, fronts and the command line import it, api and
// internal packages must not.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"atoll.dev/api/platform"
)

// PlatformOptions say where a region is and who calls it.
type PlatformOptions struct {
	Endpoint    string // such as https://127.0.0.1:20000, with the stage prefix if there is one
	CAFile      string // PEM file of the region's CA; empty: the system's
	Credentials Credentials

	// Budget is how long a call is repeated while the region is unavailable;
	// default 20 s.
	Budget time.Duration
}

// Platform is a client of one region's Platform API. It may be used by many
// goroutines.
type Platform struct{ http *caller }

// NewPlatform returns a client. It connects when it is used.
func NewPlatform(o PlatformOptions) (*Platform, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the region's CA: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading the region's CA: %s has no PEM certificate", o.CAFile)
		}
	}
	c, err := newCaller("the Platform API", o.Endpoint, config)
	if err != nil {
		return nil, err
	}
	if o.Budget > 0 {
		c.budget = o.Budget
	}
	c.prepare = func(r *http.Request, body []byte) error { return Sign(r, body, o.Credentials, time.Now()) }
	return &Platform{c}, nil
}

// Close closes idle connections.
func (p *Platform) Close() { p.http.close() }

// Ready asks, once, whether the region can do its work. The error says when it
// cannot; the Health then says what is missing, if the region answered.
func (p *Platform) Ready(ctx context.Context) (platform.Health, error) {
	var h platform.Health
	resp, err := p.http.open(ctx, request{method: http.MethodGet, path: "/api/v0/ready"}, p.http.headers)
	if e, ok := errors.AsType[*Error](err); ok && json.Unmarshal(e.body, &h) == nil && len(h.Missing) > 0 {
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
	pathClusters       = "/api/v0/management_clusters"
	pathWork           = "/api/v0/work"
	pathPlatformBundle = "/api/v0/resource_bundles"
)

// CreateManagementCluster registers a management cluster. A name that is taken
// is 409.
func (p *Platform) CreateManagementCluster(ctx context.Context, name string, labels map[string]string) (
	platform.ManagementCluster, error) {
	return p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: name, Labels: labels})
}

// RegisterManagementCluster is CreateManagementCluster, with what it takes.
func (p *Platform) RegisterManagementCluster(ctx context.Context, r platform.ManagementClusterRequest) (
	platform.ManagementCluster, error) {
	return p.changeManagementCluster(ctx, http.MethodPost, pathClusters, r)
}

// UpdateManagementCluster changes what a management cluster takes, by its id or
// name; what is absent stays.
func (p *Platform) UpdateManagementCluster(ctx context.Context, idOrName string, u platform.ManagementClusterUpdate) (
	platform.ManagementCluster, error) {
	return p.changeManagementCluster(ctx, http.MethodPatch, pathClusters+"/"+url.PathEscape(idOrName), u)
}

func (p *Platform) changeManagementCluster(ctx context.Context, method, path string, v any) (
	mc platform.ManagementCluster, err error) {
	body, err := json.Marshal(v)
	if err != nil {
		return mc, err
	}
	doc, _, err := p.http.do(ctx, request{method: method, path: path, body: body})
	if err != nil {
		return mc, err
	}
	err = decode(doc, &mc)
	return mc, err
}

// ManagementCluster returns a management cluster by its id or name.
func (p *Platform) ManagementCluster(ctx context.Context, idOrName string) (platform.ManagementCluster, error) {
	var mc platform.ManagementCluster
	doc, _, err := p.http.do(ctx, request{method: http.MethodGet, path: pathClusters + "/" + url.PathEscape(idOrName)})
	if err != nil {
		return mc, err
	}
	err = decode(doc, &mc)
	return mc, err
}

// ManagementClusters returns all management clusters.
func (p *Platform) ManagementClusters(ctx context.Context) ([]platform.ManagementCluster, error) {
	return pages(ctx, 100, func(ctx context.Context, page, size int) ([]platform.ManagementCluster, error) {
		var list platform.ManagementClusterList
		doc, _, err := p.http.do(ctx, request{method: http.MethodGet, path: pathClusters, query: ListOptions{Page: page,
			Size: size}.query()})
		if err != nil {
			return nil, err
		}
		err = decode(doc, &list)
		return list.Items, err
	})
}

// DeleteManagementCluster removes a management cluster by its id or name. One
// that still has works is 409.
func (p *Platform) DeleteManagementCluster(ctx context.Context, idOrName string) error {
	_, _, err := p.http.do(ctx, request{method: http.MethodDelete, path: pathClusters + "/" + url.PathEscape(idOrName)})
	return err
}

// ListBundles returns one page of resource bundles, those of all sources.
func (p *Platform) ListBundles(ctx context.Context, o ListOptions) (platform.ResourceBundleList, error) {
	var list platform.ResourceBundleList
	doc, _, err := p.http.do(ctx, request{method: http.MethodGet, path: pathPlatformBundle, query: o.query()})
	if err != nil {
		return list, err
	}
	err = decode(doc, &list)
	return list, err
}

// Bundle returns one resource bundle.
func (p *Platform) Bundle(ctx context.Context, id string) (platform.ResourceBundle, error) {
	var b platform.ResourceBundle
	doc, _, err := p.http.do(ctx, request{method: http.MethodGet, path: pathPlatformBundle + "/" + url.PathEscape(id)})
	if err != nil {
		return b, err
	}
	err = decode(doc, &b)
	return b, err
}

// WatchBundles opens one stream of changes. Its objects are
// platform.ResourceBundles.
func (p *Platform) WatchBundles(ctx context.Context, o WatchOptions) (*Watch, error) {
	return p.http.watch(ctx, pathPlatformBundle, o)
}

// FollowBundles calls apply with every event until ctx ends or apply fails,
// and returns why. It continues streams that break, and says Relist when they
// cannot be continued.
func (p *Platform) FollowBundles(ctx context.Context, o WatchOptions, apply func(Event) error) error {
	return follow(ctx, o, p.WatchBundles, apply)
}

// pages gets all pages of a list.
func pages[T any](ctx context.Context, size int, get func(ctx context.Context, page, size int) ([]T, error)) (
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

func decode(doc Document, v any) error {
	if err := json.Unmarshal(doc.JSON, v); err != nil {
		return fmt.Errorf("reading the Platform API's answer: %w", err)
	}
	return nil
}
