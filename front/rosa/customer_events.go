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
	"atoll.dev/cluster"
	"atoll.dev/cluster/progress"
	"atoll.dev/internal/rest"
)

// maxRecords is how many records of one resource's history are read: the latest
// ones.
const maxRecords = 2000

// clusterHistory has the histories of a cluster and of its node pools, as far as
// they were read.
type clusterHistory struct {
	h          *customerAPI
	visibility progress.Visibility
	cluster    progress.History
	pools      map[string]*progress.History
	described  clmclient.Resource // the cluster as readTags has read it
}

// readHistory reads the histories of a cluster and its node pools; 404 when the
// account has no such cluster.
func (h *customerAPI) readHistory(ctx context.Context, c *exchange, id cluster.ID) (*clusterHistory, error) {
	r, err := h.clm.Get(ctx, clusters, string(id), "name,created_time")
	if err != nil {
		return nil, replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, string(id)))
	}
	k := &clusterHistory{h: h, visibility: c.visibility,
		cluster: progress.History{ID: string(id), Name: r.Name, Created: r.CreatedTime},
		pools:   map[string]*progress.History{}}
	if err := k.read(ctx, clusters, &k.cluster); err != nil {
		return nil, replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, string(id)))
	}
	names := clmclient.ResourceQuery{Order: oldestFirst, Fields: "name"}
	for pool, err := range h.clm.All(ctx, clusters.Below(string(id), nodePools), names) {
		if err != nil {
			return nil, replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, string(id)))
		}
		if err := k.readPool(ctx, pool.ID, pool.Name); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// readPool reads the new records of a node pool. The records of a deleted node
// pool stay as they were.
func (k *clusterHistory) readPool(ctx context.Context, id, name string) error {
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

// refresh reads the new records of all resources, because one change may touch
// several, and their events have one order.
func (k *clusterHistory) refresh(ctx context.Context) error {
	for id, pool := range k.pools {
		if err := k.readPool(ctx, id, pool.Name); err != nil {
			return err
		}
	}
	err := k.read(ctx, clusters, &k.cluster)
	if remote.StatusOf(err) == http.StatusNotFound {
		return nil // the watch reports the end of the cluster
	}
	return err
}

// read appends the records that a history does not have yet.
func (k *clusterHistory) read(ctx context.Context, from clmclient.Collection, of *progress.History) error {
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

func (k *clusterHistory) events() []progress.Event {
	var pools []progress.History
	for _, p := range k.pools {
		pools = append(pools, *p)
	}
	return progress.Events(k.visibility, k.cluster, pools...)
}

func (h *customerAPI) clusterEvents(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	watch, err := c.readFlag("watch")
	if err != nil {
		return err
	}
	if watch {
		return h.watchEvents(c, id)
	}
	k, err := h.readHistory(c.ctx, c, id)
	if err != nil {
		return err
	}
	list := platform.EventList{Items: []platform.Event{}}
	for _, e := range k.events() {
		list.Items = append(list.Items, wireEvent(e))
	}
	return c.write(http.StatusOK, "", list)
}

// watchEvents watches the cluster, its node pools and credentials, reads the
// history of each resource that changes, and sends the new events.
func (h *customerAPI) watchEvents(c *exchange, id cluster.ID) error {
	from, err := readCursor(c.r.URL.Query().Get("cursor"))
	if err != nil {
		return c.errorf(http.StatusBadRequest, codeUnreadable, "%s", err)
	}
	return rest.Watch(c.w, c.r, rest.WatchOptions{}, func(ctx context.Context, s *rest.Stream) error {
		ctx = clmclient.WithTenant(ctx, c.caller.Account)
		upstream, err := h.clm.Watch(ctx, clmclient.AllKinds, remote.WatchOptions{
			Search: remote.SearchEqual("id", string(id)) + " or " + remote.SearchEqual("owner_id", string(id)),
			Fields: "kind,name",
		})
		if err != nil {
			return c.translate(err)
		}
		defer upstream.Close()
		defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
		// The watch is open, so that no later record is missed.
		k, err := h.readHistory(ctx, c, id)
		if err != nil {
			return c.translate(err)
		}
		v := &eventWriter{s: s, from: from, sent: maps.Clone(from), seen: map[string]bool{},
			read: func() error { return k.readTags(ctx, c) }, check: func() error { return k.checkReader(c) }}
		if err := s.Open(from.String()); err != nil {
			return err
		}
		if err := v.sendNew(k.events()); err != nil {
			return c.translate(err)
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
				return c.translate(err)
			}
		}
	})
}

// readTags reads the cluster with its tags for checkReader. A deleted cluster keeps its last tags.
func (k *clusterHistory) readTags(ctx context.Context, c *exchange) error {
	r, err := k.h.clm.Get(ctx, clusters, k.cluster.ID, "")
	switch {
	case err == nil:
		k.described = r
	case remote.StatusOf(err) != http.StatusNotFound || k.described.ID == "":
		return replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, k.cluster.ID))
	}
	return nil
}

// checkReader refuses to go on with a watch, with 410, when the caller may not describe the cluster any
// more.
func (k *clusterHistory) checkReader(c *exchange) error {
	switch mayDescribe, err := c.allows("DescribeCluster", c.clusterResource(k.described)); {
	case err != nil:
		return err
	case !mayDescribe:
		return errViewChanged()
	}
	return nil
}

// follow sends the events of one change.
func (k *clusterHistory) follow(ctx context.Context, c *exchange, e remote.Event, v *eventWriter) error {
	switch e.Type {
	case rest.Failed:
		return c.watchError(e.Object)
	case rest.Bookmark:
		return nil
	}
	r, err := clmclient.ResourceOf(e.Object)
	if err != nil {
		return err
	}
	switch {
	case r.ID == k.cluster.ID && e.Type == rest.Deleted:
		if err := v.sendDeleted(k.cluster); err != nil {
			return err
		}
		return c.notFound(nounCluster, k.cluster.ID)
	case r.Kind == "NodePool":
		if err := k.readPool(ctx, r.ID, r.Name); err != nil {
			return err
		}
	case r.ID != k.cluster.ID:
		return nil // a credential has no events
	}
	if err := k.refresh(ctx); err != nil {
		return err
	}
	return v.sendNew(k.events())
}

// eventWriter writes the events of a cluster to one watch.
type eventWriter struct {
	s     *rest.Stream
	from  eventCursor     // the client has the events up to here
	sent  eventCursor     // up to here all events were sent
	seen  map[string]bool // events that were sent on this stream
	read  func() error    // reads what check decides on, before the events of one change
	check func() error    // decides before each event whether the client may have it
}

// sendNew sends the events that the client does not have. The cursor passes a
// record after the last event of the record.
func (v *eventWriter) sendNew(events []progress.Event) error {
	isRead := false
	for i, e := range events {
		key := fmt.Sprintf("%s %d %s %s %s", e.Resource, e.Seq, e.Type, e.Stage, e.Reason)
		if v.seen[key] || e.Seq <= v.from[e.Resource] {
			continue
		}
		if !isRead {
			if err := v.read(); err != nil {
				return err
			}
			isRead = true
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

func (v *eventWriter) send(e platform.Event) error {
	if err := v.check(); err != nil {
		return err
	}
	object, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return v.s.Send(rest.Event{Type: rest.Added, Object: object, Cursor: v.sent.String()})
}

// sendDeleted sends the last event of a cluster. The cluster's history has it,
// too, but its tenant cannot read that any more.
func (v *eventWriter) sendDeleted(cluster progress.History) error {
	now := time.Now().UTC()
	e := platform.Event{Time: now, Type: platform.EventTypeNormal, Reason: "Deleted", Message: "nothing is left"}
	e.SinceMs = now.Sub(cluster.Created).Milliseconds()
	if err := v.read(); err != nil {
		return err
	}
	return v.send(e)
}

// eventCursor has, for each resource, the last record whose events were sent. Its
// text is "id:seq,id:seq".
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
