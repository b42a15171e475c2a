package bus

import "strings"

// servicePrefix begins the common names of the region's own services; no
// consumer's name can.
const servicePrefix = "system:"

// maestroName is the one service that uses the bus.
const maestroName = servicePrefix + "maestro"

// agentClientID is the client id that a consumer's agent must use: nobody else
// can, so nobody else ends its connection.
func agentClientID(consumer string) string { return consumer + "-agent-client" }

// rules decide what a certificate's common name may do (I7). An agent hears
// its own consumer's source events and says its own agent events. Maestro does
// the reverse for every consumer. Nobody does anything else.
type rules struct{ source string }

// mayConnect decides whether the owner of a certificate may use a client id.
func (r rules) mayConnect(name, clientID string) bool {
	switch {
	case name == maestroName:
		return clientID == "maestro" || strings.HasPrefix(clientID, "maestro-") && !strings.HasSuffix(clientID, "-agent-client")
	case name == "" || strings.HasPrefix(name, servicePrefix):
		return false
	default:
		return clientID == agentClientID(name)
	}
}

// mayPublish decides on a topic name.
func (r rules) mayPublish(name, topic string) bool {
	if name == maestroName {
		t, err := ParseTopic(topic)
		return err == nil && t.Consumer != AllConsumers && topic == r.topic(t.Consumer, SourceEvents)
	}
	return r.isAgent(name) && topic == r.topic(name, AgentEvents)
}

// mayRead decides on a topic filter, shared or not, and on the topics that
// come by it.
func (r rules) mayRead(name, filter string) bool {
	if name == maestroName {
		t, err := ParseTopic(filter)
		if err != nil || t.Kind != AgentEvents {
			return false
		}
		return strings.HasSuffix(filter, r.topic(t.Consumer, AgentEvents))
	}
	return r.isAgent(name) && filter == r.topic(name, SourceEvents)
}

func (r rules) isAgent(name string) bool {
	return name != "" && !strings.HasPrefix(name, servicePrefix) && !strings.ContainsAny(name, "+#/$")
}

func (r rules) topic(consumer string, kind TopicKind) string {
	return Topic{Source: r.source, Consumer: consumer, Kind: kind}.String()
}
