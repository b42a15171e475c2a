package works

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"atoll.dev/adapter"
	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
)

// Unconfirmed implements adapter.AbsenceChecker. After Maestro's database was lost, Maestro does not know
// which works an agent holds until the agent has reported them. The absence of works by labels is also
// unconfirmed while an agent holds works of which Maestro knows only the ids.
func (w *Works) Unconfirmed(ctx context.Context, s adapter.Search) (adapter.Object, error) {
	if foreign, err := w.lacksAdditions(ctx); foreign || err != nil {
		return nil, err
	}
	consumer := cmp.Or(s.TargetCluster, work.Consumer(s.Namespace))
	if consumer == "*" {
		consumer = ""
	}
	// Maestro first, then CLM (isUnreported): a rebuild creates consumers at the same time.
	first, err := w.consumers(ctx, remote.ListOptions{Size: 1})
	if err != nil {
		return nil, err
	}
	since := time.Now()
	if len(first) > 0 {
		unreported, from, err := w.isUnreported(ctx, consumer)
		if err != nil {
			return nil, err
		}
		if !unreported {
			return w.discoverAgain(ctx, consumer, s)
		}
		since = from
	}
	u := maestro.UnknownWork{ConsumerName: string(consumer), FirstSeenAt: since}
	if s.Name != "" && consumer != "" {
		u.ID = string(w.client.BundleID(consumer, s.Name))
	}
	return unknownObject(&u, s.Name), nil
}

// isUnreported reports whether the agent of a consumer has not reported its works yet, and since when. With
// consumer "" it reports whether that holds for any consumer.
func (w *Works) isUnreported(ctx context.Context, consumer work.Consumer) (unreported bool, since time.Time,
	err error) {
	var found []maestro.Consumer
	for page := 1; ; page++ {
		o := remote.ListOptions{Page: page, Size: pageSize}
		if consumer != "" {
			o.Search = remote.SearchEqual("name", string(consumer))
		}
		list, err := w.consumers(ctx, o)
		if err != nil {
			return false, since, err
		}
		if found = append(found, list...); len(list) < pageSize {
			break
		}
	}
	for _, c := range found {
		if c.ComparedAt == nil {
			return true, c.CreatedAt, nil
		}
	}
	if w.clusters == nil || consumer != "" && len(found) > 0 {
		return false, since, nil // a consumer that does not exist never had works
	}
	names, err := w.clusters(ctx)
	if err != nil {
		return false, since, fmt.Errorf("asking which management clusters there are: %w", err)
	}
	for _, name := range names {
		if (consumer == "" || consumer == name) && !slices.ContainsFunc(found, func(c maestro.Consumer) bool {
			return work.Consumer(c.Name) == name
		}) {
			return true, time.Now(), nil // the rebuild will create it
		}
	}
	return false, since, nil
}

func (w *Works) consumers(ctx context.Context, o remote.ListOptions) ([]maestro.Consumer, error) {
	doc, err := w.client.ListConsumers(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("reading which agents have reported their works: %w", err)
	}
	var list maestro.ConsumerList
	if err := json.Unmarshal(doc.JSON, &list); err != nil {
		return nil, fmt.Errorf("reading Maestro's list of consumers: %w", err)
	}
	return list.Items, nil
}

// discoverAgain searches again, now that the agents have reported their works: that may have happened
// between Discover and Unconfirmed. It asks for unknown works first, because these may be adopted
// meanwhile.
func (w *Works) discoverAgain(ctx context.Context, consumer work.Consumer, s adapter.Search) (adapter.Object, error) {
	if s.Name != "" && consumer != "" {
		id := w.client.BundleID(consumer, s.Name)
		if object, err := w.readUnknown(ctx, consumer, s.Name, id); err != nil || object != nil {
			return object, err
		}
		b, _, err := w.readBundle(ctx, id)
		if err != nil || b == nil {
			return nil, err
		}
		return objectOf(b)
	}
	o := remote.ListOptions{Size: 1}
	if consumer != "" {
		o.Search = remote.SearchEqual("consumer_name", string(consumer))
	}
	list, err := w.client.UnknownWorks(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("asking whether agents hold works that Maestro lost: %w", err)
	}
	if len(list.Items) > 0 {
		return unknownObject(&list.Items[0], s.Name), nil
	}
	found, err := w.Discover(ctx, s)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}
