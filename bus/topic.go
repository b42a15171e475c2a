package bus

import (
	"errors"
	"fmt"
	"regexp"
)

// TopicKind is the direction of a topic.
type TopicKind string

// Kinds of topics: what sources say to agents, and agents to sources.
const (
	SourceEvents TopicKind = "sourceevents"
	AgentEvents  TopicKind = "agentevents"
)

// Topic is a topic of Open Cluster Management,
// <word>/<source>/<word>/<consumer>/<kind>; the words are free ("sources",
// "consumers" here). Consumer is "+" in a filter for all.
type Topic struct {
	Source   string
	Consumer string
	Kind     TopicKind
}

// AllConsumers is the consumer of a filter for all.
const AllConsumers = "+"

// shareGroup is the group in which Maestro's replicas share the agents' events.
const shareGroup = "statussubscribers"

// String is the topic's name or filter, with the words that Maestro uses.
func (t Topic) String() string {
	return "sources/" + t.Source + "/consumers/" + t.Consumer + "/" + string(t.Kind)
}

// Shared is the filter by which replicas share the topic's events.
func (t Topic) Shared() string { return "$share/" + shareGroup + "/" + t.String() }

// ErrBadTopic is what every ParseTopic error is.
var ErrBadTopic = errors.New("not a topic of this bus")

var topicForm = regexp.MustCompile(`^(?:\$share/[a-z0-9-]+/)?[a-z]+/([a-z0-9-]+|\+)/[a-z]+/([a-z0-9-]+|\+)/(sourceevents|agentevents)$`)

// ParseTopic reads a topic name or filter, shared or not.
func ParseTopic(s string) (Topic, error) {
	m := topicForm.FindStringSubmatch(s)
	if m == nil {
		return Topic{}, fmt.Errorf("%w: %q", ErrBadTopic, s)
	}
	return Topic{Source: m[1], Consumer: m[2], Kind: TopicKind(m[3])}, nil
}
