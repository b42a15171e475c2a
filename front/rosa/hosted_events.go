package rosa

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster/progress"
	"atoll.dev/internal/rest"
)

// maxRecords of one resource's history are read: the latest ones.
const maxRecords = 2000

// chronicle is what is known of a cluster's history and of its node pools'.
type chronicle struct {
	h          *hosted
	visibility progress.Visibility
	cluster    progress.History
	pools      map[string]*progress.History
}

// open reads what there is. A cluster that is not there is 404.
func (h *hosted) open(ctx context.Context, c *exchange, id string) (*chronicle, error) {
	r, err := h.clm.Get(ctx, clusters, id, "name,created_time")
	if err != nil {
		return nil, explain(err, http.StatusNotFound, c.missing("cluster", id))
	}
	k := &chronicle{h: h, visibility: c.visibility, cluster: progress.History{ID: id, Name: r.Name, Created: r.CreatedTime},
		pools: map[string]*progress.History{}}
	if err := k.read(ctx, clusters, &k.cluster); err != nil {
		return nil, explain(err, http.StatusNotFound, c.missing("cluster", id))
	}
	for pool, err := range h.clm.All(ctx, clusters.Below(id, nodePools), clmclient.ResourceQuery{Order: oldestFirst,
		Fields: "name"}) {
		if err != nil {
			return nil, explain(err, http.StatusNotFound, c.missing("cluster", id))
		}
		if err := k.readPool(ctx, pool.ID, pool.Name); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// readPool reads what is new of a node pool. One that is gone keeps what was
// known of it.
func (k *chronicle) readPool(ctx context.Context, id, name string) error {
	of := k.pools[id]
	if of == nil {
		of = &progress.History{ID: id, Name: name}
	}
	err := k.read(ctx, nodePools, of)
	if remote.StatusOf(err) == http.StatusNotFound {
		return nil
	}
	k.pools[id] = of
	return err
}

// refresh reads what is new of all: one change may be of several, whose records
// are told in their order.
func (k *chronicle) refresh(ctx context.Context) error {
	for id, pool := range k.pools {
		if err := k.readPool(ctx, id, pool.Name); err != nil {
			return err
		}
	}
	err := k.read(ctx, clusters, &k.cluster)
	if remote.StatusOf(err) == http.StatusNotFound {
		return nil // its end is told by the watch
	}
	return err
}

// read adds the records that a history has not yet.
func (k *chronicle) read(ctx context.Context, from clmclient.Collection, of *progress.History) error {
	last := int64(0)
	if n := len(of.Records); n > 0 {
		last = of.Records[n-1].Seq
	}
	var found []clm.HistoryRecord // the latest first
	for before := int64(0); len(found) < maxRecords; {
		page, err := k.h.clm.History(ctx, from, of.ID, before, 100)
		if err != nil {
			return err
		}
		fresh := slices.DeleteFunc(slices.Clone(page), func(r clm.HistoryRecord) bool { return r.Seq <= last })
		found = append(found, fresh...)
		if len(page) < 100 || len(fresh) < len(page) {
			break
		}
		before = page[len(page)-1].Seq
	}
	slices.Reverse(found)
	of.Records = append(of.Records, found...)
	return nil
}

func (k *chronicle) events() []progress.Event {
	var pools []progress.History
	for _, p := range k.pools {
		pools = append(pools, *p)
	}
	return progress.Events(k.visibility, k.cluster, pools...)
}

func (h *hosted) clusterEvents(c *exchange) error {
	id, err := c.id("cluster")
	if err != nil {
		return err
	}
	watch, err := c.flag("watch")
	if err != nil {
		return err
	}
	if watch {
		return h.watchEvents(c, id)
	}
	k, err := h.open(c.ctx, c, id)
	if err != nil {
		return err
	}
	list := platform.EventList{Items: []platform.Event{}}
	for _, e := range k.events() {
		list.Items = append(list.Items, wireEvent(e))
	}
	return c.answer(http.StatusOK, "", list)
}

// watchEvents follows the cluster and what belongs to it, and reads the history
// of what changes.
func (h *hosted) watchEvents(c *exchange, id string) error {
	from, err := readCursor(c.r.URL.Query().Get("cursor"))
	if err != nil {
		return c.fail(http.StatusBadRequest, codeBad, "%s", err)
	}
	return rest.Watch(c.w, c.r, rest.WatchOptions{}, func(ctx context.Context, s *rest.Stream) error {
		ctx = clmclient.WithTenant(ctx, c.who.Account)
		upstream, err := h.clm.Watch(ctx, clmclient.AllKinds, remote.WatchOptions{
			Search: remote.Equal("id", id) + " or " + remote.Equal("owner_id", id), Fields: "kind,name",
		})
		if err != nil {
			return c.explained(err)
		}
		defer upstream.Close()
		defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
		// Now nothing that happens is missed.
		k, err := h.open(ctx, c, id)
		if err != nil {
			return c.explained(err)
		}
		v := &eventView{s: s, from: from, sent: maps.Clone(from), seen: map[string]bool{}}
		if err := s.Open(from.String()); err != nil {
			return err
		}
		if err := v.show(k.events()); err != nil {
			return err
		}
		if err := s.Send(rest.Event{Type: rest.Bookmark, Cursor: v.sent.String()}); err != nil {
			return err
		}
		for {
			e, err := upstream.Next()
			if err != nil {
				return c.unavailable(err)
			}
			if err := k.follow(ctx, c, e, v); err != nil {
				return c.explained(err)
			}
		}
	})
}

// follow shows what one change made happen.
func (k *chronicle) follow(ctx context.Context, c *exchange, e remote.Event, v *eventView) error {
	switch e.Type {
	case rest.Failed:
		return c.ended(e.Object)
	case rest.Bookmark:
		return nil
	}
	r, err := clmclient.ResourceOf(e.Object)
	if err != nil {
		return err
	}
	switch {
	case r.ID == k.cluster.ID && e.Type == rest.Deleted:
		if err := v.gone(k.cluster); err != nil {
			return err
		}
		return c.missing("cluster", k.cluster.ID)
	case r.Kind == "NodePool":
		if err := k.readPool(ctx, r.ID, r.Name); err != nil {
			return err
		}
	case r.ID != k.cluster.ID:
		return nil // a credential
	}
	if err := k.refresh(ctx); err != nil {
		return err
	}
	return v.show(k.events())
}

// eventView is who watches events: those up to from it had before, sent is how
// far it has come, and seen are the events that it has got from this stream.
type eventView struct {
	s          *rest.Stream
	from, sent eventCursor
	seen       map[string]bool
}

// show sends the events that the watcher has not got. Its cursor is past a
// record when all that the record tells is sent.
func (v *eventView) show(events []progress.Event) error {
	for i, e := range events {
		key := fmt.Sprintf("%s %d %s %s %s", e.Resource, e.Seq, e.Type, e.Stage, e.Reason)
		if v.seen[key] || e.Seq <= v.from[e.Resource] {
			continue
		}
		v.seen[key] = true
		if i+1 == len(events) || events[i+1].Resource != e.Resource || events[i+1].Seq != e.Seq {
			v.sent[e.Resource] = max(v.sent[e.Resource], e.Seq)
		}
		if err := v.send(wireEvent(e)); err != nil {
			return err
		}
	}
	return nil
}

func (v *eventView) send(e platform.Event) error {
	object, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return v.s.Send(rest.Event{Type: rest.Added, Object: object, Cursor: v.sent.String()})
}

// gone tells that nothing is left. The cluster's history says it, too, but no
// more to its tenant.
func (v *eventView) gone(cluster progress.History) error {
	now := time.Now().UTC()
	e := platform.Event{Time: now, Type: platform.EventTypeNormal, Reason: "Deleted", Message: "nothing is left"}
	e.SinceMs = now.Sub(cluster.Created).Milliseconds()
	return v.send(e)
}

// eventCursor says, for each resource, up to which record its events were
// sent: as text "id:seq,id:seq".
type eventCursor map[string]int64

func (c eventCursor) String() string {
	parts := make([]string, 0, len(c))
	for _, id := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, id+":"+strconv.FormatInt(c[id], 10))
	}
	return strings.Join(parts, ",")
}

func readCursor(text string) (eventCursor, error) {
	c := eventCursor{}
	if text == "" {
		return c, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		id, seq, _ := strings.Cut(part, ":")
		n, err := strconv.ParseInt(seq, 10, 64)
		if err != nil || id == "" || n < 0 {
			return nil, fmt.Errorf("the cursor is not one of a watch of events; watch without one")
		}
		c[id] = n
	}
	return c, nil
}
