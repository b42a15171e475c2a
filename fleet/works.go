package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// Work is a ManifestWork that is on a management cluster or under delivery to it.
type Work struct {
	ID                work.ID
	ManagementCluster cluster.ManagementCluster
	Name              string     // "" for an unknown work
	Cluster           cluster.ID // from the label; "" for an unknown work
	Known             bool       // Maestro has a bundle of the work; false: only an agent has the work
	Since             time.Time
	Deleting          *time.Time
	Objects           []string // "KIND NAMESPACE/NAME"
}

// Works reads and deletes the works of Maestro. A work whose deletion was ordered stays in Each and Unknown until its
// agent has confirmed the deletion, or an operator has forced it. The methods may be called concurrently.
type Works interface {
	// Each calls f with batches of works that have the label of a cluster: of one cluster or of all (""), on one
	// management cluster or on all (""). It ends with the first error, of f or of Maestro.
	Each(ctx context.Context, cluster cluster.ID, managementCluster cluster.ManagementCluster, f func([]Work) error) error
	// Unknown returns the works that agents have and for which Maestro has no bundle, on one management cluster or
	// on all ("").
	Unknown(ctx context.Context, managementCluster cluster.ManagementCluster) ([]Work, error)
	// Get returns a known work with its objects, or an unknown work; false if the management cluster has no work of
	// that id.
	Get(ctx context.Context, managementCluster cluster.ManagementCluster, id work.ID) (Work, bool, error)
	// End orders the deletion of a work. It is idempotent: a work that does not exist any more is no error.
	End(ctx context.Context, w Work, reason string) error
}

// quote returns a text as a literal of Maestro's search language.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// clusterLabel is the label of a work with the id of its cluster.
const clusterLabel = "hyperfleet.io/cluster-id"

// MaestroWorks returns the works of a Maestro.
func MaestroWorks(m *maestroclient.Client) Works { return maestroWorks{m} }

type maestroWorks struct{ m *maestroclient.Client }

const (
	workFields = "id,consumer_name,created_at,deleted_at,metadata.name,metadata.labels"
	workPage   = 500
)

func (w maestroWorks) Each(ctx context.Context, cluster cluster.ID, managementCluster cluster.ManagementCluster,
	f func([]Work) error) error {
	search := "payload->'metadata'->'labels'->>" + quote(clusterLabel) + " <> null"
	if cluster != "" {
		label, err := json.Marshal(map[string]string{clusterLabel: string(cluster)})
		if err != nil {
			return err
		}
		search = "payload->'metadata'->'labels'@>" + quote(string(label))
	}
	if managementCluster != "" {
		search += " and " + remote.SearchEqual("consumer_name", string(managementCluster))
	}
	for last := ""; ; {
		q := remote.ListOptions{Page: 1, Size: workPage, OrderBy: "id asc", Search: search, Fields: workFields}
		if last != "" {
			q.Search += " and id > " + quote(last)
		}
		doc, err := w.m.ListBundles(ctx, q)
		if err != nil {
			return fmt.Errorf("listing works: %w", err)
		}
		var list struct{ Items []maestro.ResourceBundle }
		if err := json.Unmarshal(doc.JSON, &list); err != nil {
			return fmt.Errorf("reading Maestro's list of works: %w", err)
		}
		batch := make([]Work, 0, len(list.Items))
		for _, b := range list.Items {
			batch = append(batch, workOf(b))
			last = b.ID
		}
		if err := f(batch); err != nil || len(batch) < workPage {
			return err
		}
	}
}

func workOf(b maestro.ResourceBundle) Work {
	var meta struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	}
	_ = json.Unmarshal(b.Metadata, &meta)
	w := Work{ID: work.ID(b.ID), ManagementCluster: cluster.ManagementCluster(b.ConsumerName), Name: meta.Name,
		Cluster: cluster.ID(meta.Labels[clusterLabel]),
		Known:   true, Since: b.CreatedAt, Deleting: b.DeletedAt}
	for _, raw := range b.Manifests {
		var m struct {
			Kind     string `json:"kind"`
			Metadata struct{ Name, Namespace string }
		}
		if json.Unmarshal(raw, &m) != nil {
			continue
		}
		name := m.Metadata.Name
		if m.Metadata.Namespace != "" {
			name = m.Metadata.Namespace + "/" + name
		}
		w.Objects = append(w.Objects, m.Kind+" "+name)
	}
	return w
}

func (w maestroWorks) Unknown(ctx context.Context, managementCluster cluster.ManagementCluster) (all []Work,
	err error) {
	for last := ""; ; {
		q := remote.ListOptions{Page: 1, Size: workPage, OrderBy: "id asc"}
		if managementCluster != "" {
			q.Search = remote.SearchEqual("consumer_name", string(managementCluster))
		}
		if last != "" {
			if q.Search != "" {
				q.Search += " and "
			}
			q.Search += "id > " + quote(last)
		}
		list, err := w.m.UnknownWorks(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("listing unknown works: %w", err)
		}
		for _, u := range list.Items {
			all, last = append(all, unknownWork(u)), u.ID
		}
		if len(list.Items) < workPage {
			return all, nil
		}
	}
}

func unknownWork(u maestro.UnknownWork) Work {
	return Work{ID: work.ID(u.ID), ManagementCluster: cluster.ManagementCluster(u.ConsumerName), Since: u.FirstSeenAt}
}

func (w maestroWorks) Get(ctx context.Context, managementCluster cluster.ManagementCluster, id work.ID) (found Work,
	ok bool, err error) {
	doc, err := w.m.Bundle(ctx, id)
	switch {
	case err == nil:
		var b maestro.ResourceBundle
		if err := json.Unmarshal(doc.JSON, &b); err != nil {
			return found, false, fmt.Errorf("reading work %s: %w", id, err)
		}
		found = workOf(b)
		return found, managementCluster == "" || found.ManagementCluster == managementCluster, nil
	case remote.StatusOf(err) != 404:
		return found, false, fmt.Errorf("reading work %s: %w", id, err)
	}
	unknown, err := w.Unknown(ctx, managementCluster)
	if i := slices.IndexFunc(unknown, func(u Work) bool { return u.ID == id }); i >= 0 {
		return unknown[i], true, err
	}
	return found, false, err
}

func (w maestroWorks) End(ctx context.Context, ended Work, reason string) (err error) {
	if ended.Known {
		err = w.m.DeleteBundle(ctx, ended.ID, "")
	} else {
		err = w.m.DeleteUnknownWork(ctx, work.Consumer(ended.ManagementCluster), ended.ID, reason)
	}
	if remote.StatusOf(err) == 404 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ending work %s on %s: %w", ended.ID, ended.ManagementCluster, err)
	}
	return nil
}
