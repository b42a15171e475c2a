package bus

import (
	"hash/fnv"
	"slices"
)

// EventTopic is where a sentinel says which resources need work: the MQTT topic
// for a topic of its configuration (clients.broker.topic), such as "clusters".
// "#" is a filter for all.
func EventTopic(topic string) string { return "clm/events/" + topic }

// EventFilter is what an adapter subscribes to: each subscription gets one copy
// of each event of the topic, and replicas with the same one share the events.
func EventFilter(subscription, topic string) string {
	return "$share/" + subscription + "/" + EventTopic(topic)
}

// HelloTopic is where adapters that hear a topic say that they are there: they
// want what is unreconciled. "#" is a filter for all.
func HelloTopic(topic string) string { return "clm/hello/" + topic }

// HelloType is the type of an adapter's hello. Its source is the adapter, its
// data a Hello.
const HelloType = "dev.atoll.adapter.connected"

// Hello is what an adapter says when it has connected.
type Hello struct {
	Adapter string `json:"adapter"`
	Topic   string `json:"topic"` // of its configuration
	// Of and Slots restrict what the adapter wants to resources in some of its
	// slots (SlotOf); Of is 0 when it wants all.
	Of    int   `json:"of,omitempty"`
	Slots []int `json:"slots,omitempty"`
}

// Wants says whether the adapter wants events of a resource.
func (h Hello) Wants(id string) bool {
	return h.Of <= 0 || slices.Contains(h.Slots, SlotOf(id, h.Of))
}

// SlotOf is the slot of a resource among those by which replicas of an adapter
// share their work.
func SlotOf(id string, slots int) int {
	h := fnv.New64a()
	h.Write([]byte(id))
	return int(h.Sum64() % uint64(slots))
}
