package hosting

import (
	"context"
	"slices"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/router"
)

// claimName reserves a server name for a cluster, and returns the cluster that
// holds it. The cluster keeps the names of its plane's last start, and gives all
// others back.
func (h *Hosting) claimName(id controlplane.ID, name string, lastStart []string) (holder controlplane.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if holder, ok := h.names[name]; ok && holder != id {
		return holder
	}
	for n, holder := range h.names {
		if holder == id && n != name && !slices.Contains(lastStart, n) {
			delete(h.names, n)
		}
	}
	h.names[name] = id
	return id
}

// reconsider reconciles the cluster of a server name whose last connection has
// ended: its plane may sleep.
func (h *Hosting) reconsider(serverName string) {
	h.mu.Lock()
	id, ok := h.names[serverName]
	h.mu.Unlock()
	if ok {
		h.clusters.Trigger(loop.Key(id))
	}
}

// markSeen records that a HostedCluster was reconciled, with whatever outcome,
// and publishes the routes if it was the last.
func (h *Hosting) markSeen(id controlplane.ID) {
	h.mu.Lock()
	_, before := h.seen[id]
	h.seen[id] = struct{}{}
	h.mu.Unlock()
	if !before {
		h.publish()
	}
}

// publish gives the router the table. Until every HostedCluster was reconciled
// once the table would be incomplete; the router uses its own until then.
func (h *Hosting) publish() {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	if h.clusters.Ready(context.Background()) != nil {
		return
	}
	keys := h.clusters.Keys()
	h.mu.Lock()
	for _, key := range keys {
		if _, ok := h.seen[controlplane.ID(key)]; !ok {
			h.mu.Unlock()
			return
		}
	}
	table := make([]router.Route, 0, len(h.hosted))
	var closed []*hostedCluster
	for _, c := range h.hosted {
		if c.route.ServerName != "" {
			table = append(table, c.route)
		}
		if c.route.Asleep {
			closed = append(closed, c)
		}
	}
	h.mu.Unlock()
	h.o.Routes.Set(table)
	h.mu.Lock()
	for _, c := range closed {
		c.routeClosed = c.route.Asleep // unless it was opened meanwhile
	}
	h.mu.Unlock()
}
