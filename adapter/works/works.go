// Package works is the adapter's transport by Maestro: an object of a task is a
// ManifestWork, which Maestro delivers to a management cluster. The work's status
// has the state of its objects there.
//
// It uses the protocols of Maestro's sources, REST to read and gRPC to write, so it
// works with the original Maestro, too. Atoll's additions (watches, entity tags, works
// that only agents know) are used where the server has them.
package works

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"atoll.dev/adapter"
	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
)

// Options configure Works.
type Options struct {
	Client *maestroclient.Client // its source owns the works
	Log    *slog.Logger          // default: none

	// RecreateWait is how long Apply waits for the deletion of a work that it recreates. Then it fails,
	// and the next run continues. Default 5 s.
	RecreateWait time.Duration
	// Pace limits, per second, the works that Watch reports because they existed when it began and may
	// have changed before. Default 50.
	Pace float64
	// Clusters returns the names of the lifecycle manager's management clusters: a rebuild creates their
	// consumers. Nil means that they are unknown.
	Clusters func(context.Context) ([]work.Consumer, error)
}

// Works is the transport. Use New.
type Works struct {
	client   *maestroclient.Client
	log      *slog.Logger
	wait     time.Duration
	clusters func(context.Context) ([]work.Consumer, error) // Options.Clusters

	mu               sync.Mutex
	appliedVersions  map[work.ID]int64 // by bundle: the version that Apply made last, which a watch does not report
	withoutAdditions bool              // the server has no list of unknown works: it is the original Maestro

	watching *watching
}

var (
	_ adapter.Transport      = (*Works)(nil)
	_ adapter.Watcher        = (*Works)(nil)
	_ adapter.AbsenceChecker = (*Works)(nil)
)

// New returns a transport over a client, which the caller closes.
func New(o Options) *Works {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &Works{
		client: o.Client, log: o.Log, appliedVersions: map[work.ID]int64{},
		wait: cmp.Or(o.RecreateWait, 5*time.Second), clusters: o.Clusters,
	}
	w.watching = newWatching(w, cmp.Or(o.Pace, 50))
	return w
}

// ErrUnderDeletion is the error of Apply while a work of the same name is being deleted.
var ErrUnderDeletion = fmt.Errorf("the work of this name: %w", adapter.ErrTerminating)

// Discover finds works by name on the target cluster, or by labels there or, without a target, on all. It
// finds by its name also a work that Maestro lost and the agent holds; that one has only the annotation
// UnknownSince.
func (w *Works) Discover(ctx context.Context, s adapter.Search) ([]adapter.Object, error) {
	if err := isWork(s.APIVersion, s.Kind); err != nil {
		return nil, err
	}
	consumer := cmp.Or(s.TargetCluster, work.Consumer(s.Namespace))
	if consumer == "*" {
		consumer = ""
	}
	if s.Name != "" && consumer != "" {
		return w.discoverByName(ctx, consumer, s)
	}
	search := remote.SearchEqual("source", w.client.Source())
	if consumer != "" {
		search += " and " + remote.SearchEqual("consumer_name", string(consumer))
	}
	if s.Name != "" {
		search += " and payload->'metadata'->>'name'=" + quote(s.Name)
	}
	if len(s.Labels) > 0 {
		labels, err := json.Marshal(s.Labels)
		if err != nil {
			return nil, err
		}
		search += " and payload->'metadata'->'labels'@>" + quote(string(labels))
	}
	var found []adapter.Object
	for page := 1; ; page++ {
		doc, err := w.client.ListBundles(ctx, remote.ListOptions{Page: page, Size: pageSize, Search: search})
		if err != nil {
			return nil, fmt.Errorf("searching works: %w", err)
		}
		var list maestro.ResourceBundleList
		if err := json.Unmarshal(doc.JSON, &list); err != nil {
			return nil, fmt.Errorf("reading Maestro's list of works: %w", err)
		}
		for i := range list.Items {
			object, err := objectOf(&list.Items[i])
			if err != nil {
				return nil, err
			}
			found = append(found, object)
		}
		if len(list.Items) < pageSize {
			break
		}
	}
	slices.SortFunc(found, func(a, b adapter.Object) int {
		return cmp.Or(
			cmp.Compare(metadataText(a, "namespace"), metadataText(b, "namespace")),
			cmp.Compare(metadataText(a, "name"),
				metadataText(b, "name")),
		)
	})
	return found, nil
}

// pageSize is that of Maestro's own clients.
const pageSize = 400

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func (w *Works) discoverByName(
	ctx context.Context,
	consumer work.Consumer,
	s adapter.Search,
) ([]adapter.Object, error) {
	id := w.client.BundleID(consumer, s.Name)
	b, _, err := w.readBundle(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("reading the work %s of %s: %w", s.Name, consumer, err)
	}
	var object adapter.Object
	if b == nil {
		object, err = w.readUnknown(ctx, consumer, s.Name, id)
	} else {
		object, err = objectOf(b)
	}
	if err != nil || object == nil || !hasLabels(object, s.Labels) {
		return nil, err
	}
	return []adapter.Object{object}, nil
}

// readBundle reads a bundle and its entity tag; nil when Maestro has no bundle of the id.
func (w *Works) readBundle(ctx context.Context, id work.ID) (*maestro.ResourceBundle, string, error) {
	doc, err := w.client.Bundle(ctx, id)
	if remote.StatusOf(err) == http.StatusNotFound {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	b := new(maestro.ResourceBundle)
	if err := json.Unmarshal(doc.JSON, b); err != nil {
		return nil, "", fmt.Errorf("reading Maestro's work %s: %w", id, err)
	}
	return b, doc.ETag, nil
}

// readUnknown returns a stand-in for a work that Maestro lost and the agent still holds, so that the work
// does not count as deleted; nil when the agent holds no such work.
func (w *Works) readUnknown(
	ctx context.Context,
	consumer work.Consumer,
	name string,
	id work.ID,
) (adapter.Object, error) {
	w.mu.Lock()
	original := w.withoutAdditions
	w.mu.Unlock()
	if original {
		return nil, nil
	}
	list, err := w.client.UnknownWorks(ctx, remote.ListOptions{Size: 1, Search: remote.SearchEqual("id",
		string(id)) + " and " +
		remote.SearchEqual("consumer_name", string(consumer))})
	if remote.StatusOf(err) == http.StatusNotFound {
		w.mu.Lock()
		w.withoutAdditions = true
		w.mu.Unlock()
		w.log.Info("this Maestro has no list of unknown works: works that only agents hold are not found")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading whether the agent of %s holds the work %s: %w", consumer, name, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return unknownObject(&list.Items[0], name), nil
}

// Delete orders the deletion of a work. Discover finds the work until its agent has confirmed the deletion.
// For a work that only the agent holds, Delete first creates a bundle, so that the agent confirms this
// deletion, too. With the policy Orphan the objects of the work stay on the cluster.
func (w *Works) Delete(ctx context.Context, d adapter.Deletion) error {
	name := metadataText(d.Object, "name")
	consumer := cmp.Or(d.TargetCluster, work.Consumer(metadataText(d.Object, "namespace")))
	id := cmp.Or(work.ID(metadataText(d.Object, "uid")), w.client.BundleID(consumer, name))
	b, etag, err := w.readBundle(ctx, id)
	if err != nil {
		return fmt.Errorf("deleting the work %s of %s: %w", name, consumer, err)
	}
	if b == nil {
		unknown, err := w.readUnknown(ctx, consumer, name, id)
		if err != nil || unknown == nil {
			return err
		}
		adopted, err := w.client.AdoptUnknownWork(ctx, consumer, id, w.client.Source(), "its resource is deleted")
		if remote.StatusOf(err) == http.StatusNotFound || err == nil && !adopted {
			return nil // it comes when its agent is there; the next run sees it
		}
		if err != nil {
			return fmt.Errorf("adopting the work %s of %s to delete it: %w", name, consumer, err)
		}
		if b, etag, err = w.readBundle(ctx, id); err != nil || b == nil {
			return err
		}
	}
	if b.DeletedAt != nil {
		return nil
	}
	if err := w.remove(ctx, b, etag, d.PropagationPolicy); err != nil {
		return fmt.Errorf("deleting the work %s of %s: %w", name, consumer, err)
	}
	return nil
}

func (w *Works) remove(ctx context.Context, b *maestro.ResourceBundle, etag, policy string) error {
	own, err := bundleOf(b)
	if err != nil {
		return err
	}
	if policy == "Orphan" && setOrphan(&own) {
		own.IfMatch = etag
		if _, err := w.client.UpdateBundle(ctx, own); err != nil {
			return fmt.Errorf("setting its delete option to Orphan: %w", err)
		}
		own.IfMatch = ""
	}
	return w.client.PublishDeletion(ctx, own)
}
