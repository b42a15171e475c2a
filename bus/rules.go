package bus

import (
	"slices"
	"strings"
)

// servicePrefix begins the common names of the region's own services; no
// consumer's name can.
const servicePrefix = "system:"

// The services that use the bus: maestro is the source of all works, clm says
// which resources need work, adapters do it.
const (
	maestroName = servicePrefix + "maestro"
	clmName     = servicePrefix + "clm"
	adapterName = servicePrefix + "adapter"
)

// agentClientID is the client id that a consumer's agent must use: nobody else
// can, so nobody else ends its connection.
func agentClientID(consumer string) string { return consumer + "-agent-client" }

// A Service is what one of the region's services may do on the bus, as topic
// filters: publish to topics, and read topics, that one of them covers. What it
// reads it may also share with its replicas.
type Service struct{ Publish, Read []string }

// rules decide what a certificate's common name may do (I7). An agent hears
// its own consumer's source events and says its own agent events. Maestro does
// the reverse for every consumer. CLM says reconcile events and hears adapters'
// hellos; an adapter does the reverse. Nobody does anything else.
type rules struct {
	source   string
	services map[string]Service
}

func newRules(source string, services map[string]Service) rules {
	if services == nil {
		events, hellos := EventTopic("#"), HelloTopic("#")
		services = map[string]Service{
			maestroName: {
				Publish: []string{Topic{Source: source, Consumer: AllConsumers, Kind: SourceEvents}.String()},
				Read:    []string{Topic{Source: source, Consumer: AllConsumers, Kind: AgentEvents}.String()},
			},
			clmName:     {Publish: []string{events}, Read: []string{hellos}},
			adapterName: {Publish: []string{hellos}, Read: []string{events}},
		}
	}
	return rules{source, services}
}

// mayConnect decides whether the owner of a certificate may use a client id.
func (r rules) mayConnect(name, clientID string) bool {
	service, ok := strings.CutPrefix(name, servicePrefix)
	switch {
	case !ok:
		return r.isAgent(name) && clientID == agentClientID(name)
	case strings.HasSuffix(clientID, agentClientID("")):
		return false
	default:
		_, known := r.services[name]
		return known && (clientID == service || strings.HasPrefix(clientID, service+"-"))
	}
}

// mayPublish decides on a topic name.
func (r rules) mayPublish(name, topic string) bool {
	if r.isAgent(name) {
		return topic == r.topic(name, AgentEvents)
	}
	return !strings.ContainsAny(topic, "+#") && anyCovers(r.services[name].Publish, topic)
}

// mayRead decides on a topic filter, shared or not, and on the topics that
// come by it.
func (r rules) mayRead(name, filter string) bool {
	if r.isAgent(name) {
		return filter == r.topic(name, SourceEvents)
	}
	if rest, ok := strings.CutPrefix(filter, "$share/"); ok {
		group, shared, ok := strings.Cut(rest, "/")
		if !ok || group == "" {
			return false
		}
		filter = shared
	}
	return anyCovers(r.services[name].Read, filter)
}

func anyCovers(allowed []string, filter string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return covers(a, filter) })
}

// covers tells whether everything that filter matches is matched by allowed.
func covers(allowed, filter string) bool {
	if filter == "" || filter[0] == '$' {
		return false // what brokers keep for themselves
	}
	for {
		a, restA, moreA := strings.Cut(allowed, "/")
		f, restF, moreF := strings.Cut(filter, "/")
		switch {
		case a == "#":
			return !moreA
		case f == "" || f == "#" || a != "+" && a != f || moreA != moreF:
			return false
		case !moreA:
			return true
		}
		allowed, filter = restA, restF
	}
}

func (r rules) isAgent(name string) bool {
	return name != "" && !strings.HasPrefix(name, servicePrefix) && !strings.ContainsAny(name, "+#/$")
}

func (r rules) topic(consumer string, kind TopicKind) string {
	return Topic{Source: r.source, Consumer: consumer, Kind: kind}.String()
}
