package router

import (
	"container/list"
	"net"
	"net/netip"
)

// place is the place of a connection that has not named a server yet. The Router's mutex guards it.
type place struct {
	conn    net.Conn
	source  netip.Prefix // the load balancer's while isProxied
	element *list.Element
	order   uint64 // of the places, the oldest has the lowest
	evicted bool   // a newer connection has taken the place

	// isProxied is true until a connection from a load balancer has sent its PROXY header: the
	// limit of a source does not apply to the load balancer.
	isProxied bool
}

// unnamedConns holds the connections that have not named a server yet, in total and by source. A
// new connection always gets a place: when all places are taken, that of another connection. The
// other one is the oldest of the same source when the source has used up its own places, else the
// oldest of the source with the most. So half-open connections keep nobody out. The caller
// synchronizes the calls.
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
func (u *unnamedConns) add(p *place) (evicted *place) {
	own := u.sources[p.source]
	switch {
	case own != nil && !p.isProxied && own.Len() >= u.perSource:
		evicted = own.Front().Value.(*place)
	case u.open >= u.total:
		evicted = u.oldestOfLargest()
	}
	if evicted != nil {
		evicted.evicted = true
		u.remove(evicted)
	}
	if own = u.sources[p.source]; own == nil { // remove may have deleted it
		own = list.New()
		u.sources[p.source] = own
	}
	u.added++
	u.open++
	p.order, p.element = u.added, own.PushBack(p)
	return evicted
}

// remove frees a place, if it is not free already.
func (u *unnamedConns) remove(p *place) {
	if p.element == nil {
		return
	}
	of := u.sources[p.source]
	of.Remove(p.element)
	p.element = nil
	u.open--
	if of.Len() == 0 {
		delete(u.sources, p.source)
	}
}

// oldestOfLargest returns the oldest place of the source with the most places; of several such
// sources, the oldest place of all of them.
func (u *unnamedConns) oldestOfLargest() *place {
	var oldest *place
	most := 0
	for _, of := range u.sources {
		front := of.Front().Value.(*place)
		if of.Len() > most || of.Len() == most && front.order < oldest.order {
			most, oldest = of.Len(), front
		}
	}
	return oldest
}
