package bus

import (
	"slices"
	"strings"

	"atoll.dev/api/work"
)

// servicePrefix begins the common names of the region's own services. No consumer's
// name has a colon.
const servicePrefix = "system:"

// The services that use the bus: maestro is the source of all works, clm publishes the
// resources that need work, adapters do the work.
const (
	maestroName = servicePrefix + "maestro"
	clmName     = servicePrefix + "clm"
	adapterName = servicePrefix + "adapter"
)

// agentClientID returns the client id that a consumer's agent must use. No other client
// may use it, so no other client can end the agent's connection.
func agentClientID(consumer work.Consumer) string { return string(consumer) + "-agent-client" }

// A Service holds the rights of one of the region's services, as topic filters: it may
// publish to topics that a filter in Publish covers, and subscribe to those that a filter
// in Read covers, also by a shared subscription.
type Service struct{ Publish, Read []string }

// rules decide on the rights of a certificate's common name (I7). An agent reads the
// source events of its own consumer and publishes the agent events of that consumer.
// Maestro publishes source events and reads agent events of every consumer. CLM
// publishes reconcile events and reads the adapters' hellos; an adapter reads reconcile
// events and publishes hellos. Everything else is refused.
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
		return r.isAgent(name) && clientID == agentClientID(work.Consumer(name))
	case strings.HasSuffix(clientID, agentClientID("")):
		return false
	default:
		_, known := r.services[name]
		return known && (clientID == service || strings.HasPrefix(clientID, service+"-"))
	}
}

// mayPublish decides whether the owner of a certificate may publish to a topic.
func (r rules) mayPublish(name, topic string) bool {
	if r.isAgent(name) {
		return topic == r.topic(work.Consumer(name), AgentEvents)
	}
	return !strings.ContainsAny(topic, "+#") && anyCovers(r.services[name].Publish, topic)
}

// mayRead decides whether the owner of a certificate may subscribe to a topic filter,
// shared or not, or get a message of a topic.
func (r rules) mayRead(name, filter string) bool {
	if r.isAgent(name) {
		return filter == r.topic(work.Consumer(name), SourceEvents)
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

// anyCovers reports whether one of the allowed filters covers filter.
func anyCovers(allowed []string, filter string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return covers(a, filter) })
}

// covers reports whether allowed matches every topic that filter matches.
func covers(allowed, filter string) bool {
	if filter == "" || filter[0] == '$' {
		return false // reserved for the broker
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

// isAgent reports whether a common name can be a consumer's name.
func (r rules) isAgent(name string) bool {
	return name != "" && !strings.HasPrefix(name, servicePrefix) && !strings.ContainsAny(name, "+#/$")
}

// topic returns the name of a consumer's topic.
func (r rules) topic(consumer work.Consumer, kind TopicKind) string {
	return Topic{Source: r.source, Consumer: consumer, Kind: kind}.String()
}
