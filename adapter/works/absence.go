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
	"atoll.dev/client/remote"
)

// Unconfirmed implements adapter.AbsenceChecker: after Maestro's database was lost nobody
// knows what an agent holds until the agent has said it. A search by labels is in
// doubt, too, while an agent holds works of which only their ids are known.
func (w *Works) Unconfirmed(ctx context.Context, s adapter.Search) (adapter.Object, error) {
	if foreign, err := w.isForeign(ctx); foreign || err != nil {
		return nil, err
	}
	consumer := cmp.Or(s.TargetCluster, s.Namespace)
	if consumer == "*" {
		consumer = ""
	}
	// In this order: a rebuild makes consumers at the same time.
	first, err := w.consumers(ctx, remote.ListOptions{Size: 1})
	if err != nil {
		return nil, err
	}
	since := time.Now()
	if len(first) > 0 {
		silent, from, err := w.unheard(ctx, consumer)
		if err != nil {
			return nil, err
		}
		if !silent {
			return w.heard(ctx, consumer, s)
		}
		since = from
	}
	u := maestro.UnknownWork{ConsumerName: consumer, FirstSeenAt: since}
	if s.Name != "" && consumer != "" {
		u.ID = w.client.BundleID(consumer, s.Name)
	}
	return unknownObject(&u, s.Name), nil
}

// unheard says whether it is not known yet what the agent of a consumer holds, or
// what that of any does if consumer is "", and since when.
func (w *Works) unheard(ctx context.Context, consumer string) (silent bool, since time.Time, err error) {
	var found []maestro.Consumer
	for page := 1; ; page++ {
		o := remote.ListOptions{Page: page, Size: pageSize}
		if consumer != "" {
			o.Search = remote.Equal("name", consumer)
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
	if w.should == nil || consumer != "" && len(found) > 0 {
		return false, since, nil // one that is not there never was
	}
	names, err := w.should(ctx)
	if err != nil {
		return false, since, fmt.Errorf("asking which management clusters there are: %w", err)
	}
	for _, name := range names {
		if (consumer == "" || consumer == name) && !slices.ContainsFunc(found, func(c maestro.Consumer) bool {
			return c.Name == name
		}) {
			return true, time.Now(), nil // it will be there again
		}
	}
	return false, since, nil
}

func (w *Works) consumers(ctx context.Context, o remote.ListOptions) ([]maestro.Consumer, error) {
	doc, err := w.client.ListConsumers(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("asking whether it is known what agents hold: %w", err)
	}
	var list maestro.ConsumerList
	if err := json.Unmarshal(doc.JSON, &list); err != nil {
		return nil, fmt.Errorf("reading Maestro's list of consumers: %w", err)
	}
	return list.Items, nil
}

// heard looks again for a work after agents have said what they hold: that may
// have been between Discover and Doubt. What is unknown may be adopted, so it is
// asked for first.
func (w *Works) heard(ctx context.Context, consumer string, s adapter.Search) (adapter.Object, error) {
	if s.Name != "" && consumer != "" {
		id := w.client.BundleID(consumer, s.Name)
		if object, err := w.unknown(ctx, consumer, s.Name, id); err != nil || object != nil {
			return object, err
		}
		b, _, err := w.bundle(ctx, id)
		if err != nil || b == nil {
			return nil, err
		}
		return objectOf(b)
	}
	o := remote.ListOptions{Size: 1}
	if consumer != "" {
		o.Search = remote.Equal("consumer_name", consumer)
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
