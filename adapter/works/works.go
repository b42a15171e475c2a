// Package works is the adapter's transport by Maestro: an object of a task is a
// ManifestWork, which Maestro ships to a management cluster, and what became of
// it there shows in the work's status.
//
// It speaks what Maestro's sources speak, REST to read and gRPC to write, so it
// works with the original, too. Atoll's additions (watches, entity tags, works
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

	mu      sync.Mutex
	made    map[work.ID]int64 // by bundle: the version that Apply made last, which a watch does not report
	foreign bool              // the server has no unknown works: it is not Atoll's

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
		client: o.Client, log: o.Log, made: map[work.ID]int64{},
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
		return w.byName(ctx, consumer, s)
	}
	search := remote.Equal("source", w.client.Source())
	if consumer != "" {
		search += " and " + remote.Equal("consumer_name", string(consumer))
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
		return cmp.Or(cmp.Compare(field(a, "namespace"), field(b, "namespace")), cmp.Compare(field(a, "name"),
			field(b, "name")))
	})
	return found, nil
}

// pageSize is that of Maestro's own clients.
const pageSize = 400

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func (w *Works) byName(ctx context.Context, consumer work.Consumer, s adapter.Search) ([]adapter.Object, error) {
	id := w.client.BundleID(consumer, s.Name)
	b, _, err := w.bundle(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("reading the work %s of %s: %w", s.Name, consumer, err)
	}
	var object adapter.Object
	if b == nil {
		object, err = w.unknown(ctx, consumer, s.Name, id)
	} else {
		object, err = objectOf(b)
	}
	if err != nil || object == nil || !hasLabels(object, s.Labels) {
		return nil, err
	}
	return []adapter.Object{object}, nil
}

// bundle reads one; nil when there is none.
func (w *Works) bundle(ctx context.Context, id work.ID) (*maestro.ResourceBundle, string, error) {
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

// unknown looks whether the agent holds what Maestro lost. While it does, the
// work is not gone.
func (w *Works) unknown(ctx context.Context, consumer work.Consumer, name string, id work.ID) (adapter.Object, error) {
	w.mu.Lock()
	foreign := w.foreign
	w.mu.Unlock()
	if foreign {
		return nil, nil
	}
	list, err := w.client.UnknownWorks(ctx, remote.ListOptions{Size: 1, Search: remote.Equal("id", string(id)) + " and " +
		remote.Equal("consumer_name", string(consumer))})
	if remote.StatusOf(err) == http.StatusNotFound {
		w.mu.Lock()
		w.foreign = true
		w.mu.Unlock()
		w.log.Info("this Maestro does not tell what its agents hold beyond its works")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking whether the agent of %s holds the work %s: %w", consumer, name, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return unknownObject(&list.Items[0], name), nil
}

// Delete has the work deleted; it is there until its agent has confirmed. Of
// one that only the agent holds Maestro gets a bundle first, so that the same
// holds for it. The policy Orphan leaves on the cluster what the work applied.
func (w *Works) Delete(ctx context.Context, d adapter.Deletion) error {
	name := field(d.Object, "name")
	consumer := cmp.Or(d.TargetCluster, work.Consumer(field(d.Object, "namespace")))
	id := cmp.Or(work.ID(field(d.Object, "uid")), w.client.BundleID(consumer, name))
	b, etag, err := w.bundle(ctx, id)
	if err != nil {
		return fmt.Errorf("deleting the work %s of %s: %w", name, consumer, err)
	}
	if b == nil {
		unknown, err := w.unknown(ctx, consumer, name, id)
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
		if b, etag, err = w.bundle(ctx, id); err != nil || b == nil {
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
	if policy == "Orphan" && orphan(&own) {
		own.IfMatch = etag
		if _, err := w.client.UpdateBundle(ctx, own); err != nil {
			return fmt.Errorf("having it orphan what it applied: %w", err)
		}
		own.IfMatch = ""
	}
	return w.client.RemoveBundle(ctx, own)
}
