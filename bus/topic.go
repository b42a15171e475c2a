package bus

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
)

// TopicKind is the direction of a topic.
type TopicKind string

// Kinds of topics: what a source says to one agent, and an agent to one
// source; what a source says to all agents, and an agent to all sources.
const (
	SourceEvents    TopicKind = "sourceevents"
	AgentEvents     TopicKind = "agentevents"
	SourceBroadcast TopicKind = "sourcebroadcast"
	AgentBroadcast  TopicKind = "agentbroadcast"
)

// Topic is a topic of Open Cluster Management:
//
//	<word>/<source>/<word>/<consumer>/(sourceevents|agentevents)
//	<word>/<source>/sourcebroadcast
//	<word>/<consumer>/agentbroadcast
//
// The words are free; those that Maestro uses, "sources" and "consumers", are
// empty here, so that equal topics are equal. Source and Consumer may be "+" in
// a filter. Group is that of a shared subscription, "$share/<group>/...".
type Topic struct {
	Group        string
	SourceWord   string
	Source       string
	ConsumerWord string
	Consumer     string
	Kind         TopicKind
}

// AllConsumers is the consumer of a filter for all.
const AllConsumers = "+"

const (
	sourceWord   = "sources"
	consumerWord = "consumers"

	// shareGroup is the group in which Maestro's replicas share the agents' events.
	shareGroup = "statussubscribers"
)

// String is the topic's name, or its filter without the group.
func (t Topic) String() string {
	source := cmp.Or(t.SourceWord, sourceWord) + "/" + t.Source
	consumer := cmp.Or(t.ConsumerWord, consumerWord) + "/" + t.Consumer
	switch t.Kind {
	case SourceBroadcast:
		return source + "/" + string(t.Kind)
	case AgentBroadcast:
		return consumer + "/" + string(t.Kind)
	}
	return source + "/" + consumer + "/" + string(t.Kind)
}

// Filter is what to subscribe to: shared when the topic has a group.
func (t Topic) Filter() string {
	if t.Group == "" {
		return t.String()
	}
	return "$share/" + t.Group + "/" + t.String()
}

// Share is the topic as replicas share it, in a group that was given or in
// Maestro's.
func (t Topic) Share() Topic {
	t.Group = cmp.Or(t.Group, shareGroup)
	return t
}

// For is the topic of one consumer.
func (t Topic) For(consumer string) Topic {
	t.Group, t.Consumer = "", consumer
	return t
}

// Match reads the name of a topic that a message came on, and tells whether
// this one, as a filter, stands for it.
func (t Topic) Match(name string) (Topic, bool) {
	got, err := ParseTopic(name)
	fits := func(pattern, value string) bool { return value != "+" && (pattern == value || pattern == "+") }
	ok := err == nil && got.Group == "" && got.Kind == t.Kind && got.SourceWord == t.SourceWord &&
		got.ConsumerWord == t.ConsumerWord &&
		fits(t.Source, got.Source) && fits(t.Consumer, got.Consumer)
	return got, ok
}

// ErrBadTopic is what every ParseTopic error is.
var ErrBadTopic = errors.New("not a topic of this bus")

var (
	eventsForm = regexp.MustCompile(
		`^(?:\$share/([a-z0-9-]+)/)?([a-z]+)/([a-z0-9-]+|\+)/([a-z]+)/([a-z0-9-]+|\+)/(sourceevents|agentevents)$`)
	broadcastForm = regexp.MustCompile(
		`^(?:\$share/([a-z0-9-]+)/)?([a-z]+)/([a-z0-9-]+|\+)/(sourcebroadcast|agentbroadcast)$`)
)

// ParseTopic reads a topic name or filter, shared or not.
func ParseTopic(s string) (Topic, error) {
	unless := func(word, usual string) string {
		if word == usual {
			return ""
		}
		return word
	}
	if m := eventsForm.FindStringSubmatch(s); m != nil {
		return Topic{Group: m[1], SourceWord: unless(m[2], sourceWord), Source: m[3], ConsumerWord: unless(
			m[4], consumerWord), Consumer: m[5], Kind: TopicKind(m[6])}, nil
	}
	if m := broadcastForm.FindStringSubmatch(s); m != nil {
		if kind := TopicKind(m[4]); kind == SourceBroadcast {
			return Topic{Group: m[1], SourceWord: unless(m[2], sourceWord), Source: m[3], Kind: kind}, nil
		}
		return Topic{Group: m[1], ConsumerWord: unless(m[2], consumerWord), Consumer: m[3], Kind: AgentBroadcast}, nil
	}
	return Topic{}, fmt.Errorf("%w: %q", ErrBadTopic, s)
}

// Topics are where a source and its agents meet. The broadcasts are optional,
// and zero without: an agent asks one source for what is new on AgentEvents
// then, and a source asks each agent on SourceEvents.
type Topics struct {
	SourceEvents, AgentEvents       Topic
	SourceBroadcast, AgentBroadcast Topic
}

// TopicsOf are Maestro's topics of a source: no broadcasts, and the agents'
// events shared among replicas.
func TopicsOf(source string) Topics {
	return Topics{
		SourceEvents: Topic{Source: source, Consumer: AllConsumers, Kind: SourceEvents},
		AgentEvents:  Topic{Group: shareGroup, Source: source, Consumer: AllConsumers, Kind: AgentEvents},
	}
}

// CheckSource checks that a server of the source can use the topics: it says
// SourceEvents to any consumer, and hears AgentEvents of all.
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

// ForAgent gives the topics of one consumer's agent, which may be written with
// its name or with + in its place. The source must be named: an agent speaks
// to one.
func (t Topics) ForAgent(consumer string) (Topics, error) {
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
