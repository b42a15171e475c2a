package router

import (
	"container/list"
	"net"
	"net/netip"
)

// clientConn is a connection from a client. Until it has named a server it has a place in unnamedConns: then element
// is not nil. The Router's mutex guards it.
type clientConn struct {
	conn    net.Conn
	source  netip.Prefix // the load balancer's while isProxied
	element *list.Element
	order   uint64 // lower for an older place
	evicted bool   // a newer connection has got the place

	// isProxied is true until a connection from a load balancer has sent its PROXY header: the
	// limit of a source does not apply to the load balancer.
	isProxied bool
}

// unnamedConns holds the connections that have not named a server yet, in total and by source. A
// new connection always gets a place: when no place is free, it evicts another connection. That is
// the oldest connection of the same source when the source has used up its own places, else the
// oldest of the source with the most connections. So connections that name no server do not keep
// other clients out. The caller synchronizes the calls.
type unnamedConns struct {
	total, perSource int // places

	open    int
	added   uint64
	sources map[netip.Prefix]*list.List // of *place, the oldest first
}

func newUnnamedConns(total, perSource int) *unnamedConns {
	return &unnamedConns{total: total, perSource: perSource, sources: map[netip.Prefix]*list.List{}}
}

// add gives a connection a place. It returns the place of the connection that gave its place up,
// nil if there was room; the caller closes that connection.
func (u *unnamedConns) add(c *clientConn) (evicted *clientConn) {
	own := u.sources[c.source]
	switch {
	case own != nil && !c.isProxied && own.Len() >= u.perSource:
		evicted = own.Front().Value.(*clientConn)
	case u.open >= u.total:
		evicted = u.oldestOfLargest()
	}
	if evicted != nil {
		evicted.evicted = true
		u.remove(evicted)
	}
	if own = u.sources[c.source]; own == nil { // remove may have deleted it
		own = list.New()
		u.sources[c.source] = own
	}
	u.added++
	u.open++
	c.order, c.element = u.added, own.PushBack(c)
	return evicted
}

// remove frees a place, if it is not free already.
func (u *unnamedConns) remove(c *clientConn) {
	if c.element == nil {
		return
	}
	of := u.sources[c.source]
	of.Remove(c.element)
	c.element = nil
	u.open--
	if of.Len() == 0 {
		delete(u.sources, c.source)
	}
}

// oldestOfLargest returns the oldest place of the source with the most places; of several such
// sources, the oldest place of all of them.
func (u *unnamedConns) oldestOfLargest() *clientConn {
	var oldest *clientConn
	most := 0
	for _, of := range u.sources {
		front := of.Front().Value.(*clientConn)
		if of.Len() > most || of.Len() == most && front.order < oldest.order {
			most, oldest = of.Len(), front
		}
	}
	return oldest
}
