package bus

import (
	"hash/fnv"
	"slices"
)

// EventTopic returns the MQTT topic to which a sentinel publishes the events of
// resources that need work. topic is that of the configuration
// (clients.broker.topic), such as "clusters"; "#" gives a filter for all.
func EventTopic(topic string) string { return "clm/events/" + topic }

// EventFilter returns the filter that an adapter subscribes to: a shared
// subscription of MQTT. Each subscription gets one copy of each event of the topic;
// replicas of one adapter have one subscription and share its events.
func EventFilter(subscription, topic string) string {
	return "$share/" + subscription + "/" + EventTopic(topic)
}

// HelloTopic returns the MQTT topic to which the adapters of a topic publish a Hello
// when they connect. The sentinel then sends the events of unreconciled resources
// again. "#" gives a filter for all.
func HelloTopic(topic string) string { return "clm/hello/" + topic }

// HelloType is the type of the CloudEvent that carries a Hello. Its source is the
// adapter.
const HelloType = "dev.atoll.adapter.connected"

// Hello is the message of an adapter that has connected.
type Hello struct {
	Adapter string `json:"adapter"`
	Topic   string `json:"topic"` // of its configuration
	// Replicas of an adapter share the resources by slots (SlotOf). Of is the
	// number of all slots, and Slots are those of the sender. Of is 0 when the
	// adapter wants the events of all resources.
	Of    int   `json:"of,omitempty"`
	Slots []int `json:"slots,omitempty"`
}

// Wants reports whether the adapter wants the events of a resource.
func (h Hello) Wants(id string) bool {
	return h.Of <= 0 || slices.Contains(h.Slots, SlotOf(id, h.Of))
}

// SlotOf returns the slot of a resource, from 0 to slots-1, by a hash of its id.
func SlotOf(id string, slots int) int {
	h := fnv.New64a()
	h.Write([]byte(id))
	return int(h.Sum64() % uint64(slots))
}
