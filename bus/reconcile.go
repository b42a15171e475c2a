package bus

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
}
