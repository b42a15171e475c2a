package bus

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"

	"atoll.dev/api/work"
)

// TopicKind is the direction of a topic.
type TopicKind string

// Kinds of topics: from a source to one agent, from an agent to one source, from a
// source to all agents, from an agent to all sources.
const (
	SourceEvents    TopicKind = "sourceevents"
	AgentEvents     TopicKind = "agentevents"
	SourceBroadcast TopicKind = "sourcebroadcast"
	AgentBroadcast  TopicKind = "agentbroadcast"
)

// Topic is a topic, or topic filter, of Open Cluster Management:
//
//	<word>/<source>/<word>/<consumer>/(sourceevents|agentevents)
//	<word>/<source>/sourcebroadcast
//	<word>/<consumer>/agentbroadcast
//
// The words can be chosen. SourceWord and ConsumerWord are empty for Maestro's words,
// "sources" and "consumers", so that == compares topics. Source and Consumer may be "+"
// in a filter. Group is the group of a shared subscription, "$share/<group>/...".
type Topic struct {
	Group        string
	SourceWord   string
	Source       string
	ConsumerWord string
	Consumer     work.Consumer
	Kind         TopicKind
}

// AllConsumers is the consumer in a filter for all consumers.
const AllConsumers = "+"

const (
	sourceWord   = "sources"
	consumerWord = "consumers"

	// shareGroup is the group in which Maestro's replicas share the agents' events.
	shareGroup = "statussubscribers"
)

// String returns the topic's name, or its filter without the group.
func (t Topic) String() string {
	source := cmp.Or(t.SourceWord, sourceWord) + "/" + t.Source
	consumer := cmp.Or(t.ConsumerWord, consumerWord) + "/" + string(t.Consumer)
	switch t.Kind {
	case SourceBroadcast:
		return source + "/" + string(t.Kind)
	case AgentBroadcast:
		return consumer + "/" + string(t.Kind)
	}
	return source + "/" + consumer + "/" + string(t.Kind)
}

// Filter returns the topic filter for a subscription: shared when the topic has a group.
func (t Topic) Filter() string {
	if t.Group == "" {
		return t.String()
	}
	return "$share/" + t.Group + "/" + t.String()
}

// Share returns the topic with a group for a shared subscription: the topic's own, or
// Maestro's.
func (t Topic) Share() Topic {
	t.Group = cmp.Or(t.Group, shareGroup)
	return t
}

// For returns the topic of one consumer, without a group.
func (t Topic) For(consumer work.Consumer) Topic {
	t.Group, t.Consumer = "", consumer
	return t
}

// Match parses the topic name of a message, and reports whether t, as a filter, matches
// it.
func (t Topic) Match(name string) (Topic, bool) {
	got, err := ParseTopic(name)
	fits := func(pattern, value string) bool { return value != "+" && (pattern == value || pattern == "+") }
	ok := err == nil && got.Group == "" && got.Kind == t.Kind && got.SourceWord == t.SourceWord &&
		got.ConsumerWord == t.ConsumerWord &&
		fits(t.Source, got.Source) && fits(string(t.Consumer), string(got.Consumer))
	return got, ok
}

// ErrBadTopic is wrapped by every error of ParseTopic.
var ErrBadTopic = errors.New("not a topic of this bus")

var (
	eventsForm = regexp.MustCompile(
		`^(?:\$share/([a-z0-9-]+)/)?([a-z]+)/([a-z0-9-]+|\+)/([a-z]+)/([a-z0-9-]+|\+)/(sourceevents|agentevents)$`)
	broadcastForm = regexp.MustCompile(
		`^(?:\$share/([a-z0-9-]+)/)?([a-z]+)/([a-z0-9-]+|\+)/(sourcebroadcast|agentbroadcast)$`)
)

// ParseTopic parses a topic name or filter, shared or not.
func ParseTopic(s string) (Topic, error) {
	unless := func(word, usual string) string {
		if word == usual {
			return ""
		}
		return word
	}
	if m := eventsForm.FindStringSubmatch(s); m != nil {
		return Topic{Group: m[1], SourceWord: unless(m[2], sourceWord), Source: m[3], ConsumerWord: unless(
			m[4], consumerWord), Consumer: work.Consumer(m[5]), Kind: TopicKind(m[6])}, nil
	}
	if m := broadcastForm.FindStringSubmatch(s); m != nil {
		if kind := TopicKind(m[4]); kind == SourceBroadcast {
			return Topic{Group: m[1], SourceWord: unless(m[2], sourceWord), Source: m[3], Kind: kind}, nil
		}
		return Topic{Group: m[1], ConsumerWord: unless(m[2], consumerWord), Consumer: work.Consumer(m[3]),
			Kind: AgentBroadcast}, nil
	}
	return Topic{}, fmt.Errorf("%w: %q", ErrBadTopic, s)
}

// Topics are the topics of a source and its agents. The broadcasts are optional and zero
// when absent: an agent then sends its resync request to one source on AgentEvents, and a
// source sends its request to each agent on SourceEvents.
type Topics struct {
	SourceEvents, AgentEvents       Topic
	SourceBroadcast, AgentBroadcast Topic
}

// TopicsOf returns Maestro's topics for a source: no broadcasts, and a shared
// subscription to the agents' events for its replicas.
func TopicsOf(source string) Topics {
	return Topics{
		SourceEvents: Topic{Source: source, Consumer: AllConsumers, Kind: SourceEvents},
		AgentEvents:  Topic{Group: shareGroup, Source: source, Consumer: AllConsumers, Kind: AgentEvents},
	}
}

// CheckSource checks that a server of the source can use the topics: to publish
// SourceEvents to any consumer, and to read the AgentEvents of all.
func (t Topics) CheckSource(source string) error {
	for _, topic := range []Topic{t.SourceEvents, t.AgentEvents} {
		switch {
		case topic.Source != source:
			return fmt.Errorf("%w: %s: its source is %q, and the server's is %q", ErrBadTopic, topic, topic.Source,
				source)
		case topic.Consumer != AllConsumers:
			return fmt.Errorf("%w: %s: a server's is of all consumers, +", ErrBadTopic, topic)
		}
	}
	if t.AgentBroadcast.Kind != "" && t.AgentBroadcast.Consumer != AllConsumers {
		return fmt.Errorf("%w: %s: a server's is of all consumers, +", ErrBadTopic, t.AgentBroadcast)
	}
	return nil
}

// ForAgent returns the topics of one consumer's agent. The topics may have the consumer's
// name or "+" as their consumer. They must name the source: an agent has one source.
func (t Topics) ForAgent(consumer work.Consumer) (Topics, error) {
	for _, topic := range []*Topic{&t.SourceEvents, &t.AgentEvents, &t.AgentBroadcast} {
		switch {
		case topic.Kind == "":
			continue
		case topic.Consumer != consumer && topic.Consumer != AllConsumers:
			return t, fmt.Errorf("%w: %s is of consumer %q, and the agent is %q", ErrBadTopic, *topic, topic.Consumer,
				consumer)
		case topic.Source == "+":
			return t, fmt.Errorf("%w: %s: name the source", ErrBadTopic, *topic)
		}
		*topic = topic.For(consumer)
	}
	return t, nil
}
