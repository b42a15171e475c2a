package bus

import (
	"errors"
	"testing"
)

func TestTopics(t *testing.T) {
	for s, want := range map[string]Topic{
		"sources/maestro/consumers/c1/sourceevents": {Source: "maestro", Consumer: "c1",
			Kind: SourceEvents},
		"$share/statussubscribers/sources/maestro/consumers/+/agentevents": {Group: "statussubscribers",
			Source: "maestro", Consumer: "+", Kind: AgentEvents},
		"sources/mywork/clusters/cluster-1/agentevents": {Source: "mywork", ConsumerWord: "clusters",
			Consumer: "cluster-1", Kind: AgentEvents},
		"origins/+/consumers/+/sourceevents": {SourceWord: "origins", Source: "+", Consumer: "+", Kind: SourceEvents},
		"sources/maestro/sourcebroadcast":    {Source: "maestro", Kind: SourceBroadcast},
		"$share/g/clusters/+/agentbroadcast": {Group: "g", ConsumerWord: "clusters", Consumer: "+",
			Kind: AgentBroadcast},
	} {
		got, err := ParseTopic(s)
		if err != nil || got != want || got.Filter() != s {
			t.Errorf("ParseTopic(%s) = %+v, %v; written %s", s, got, err, got.Filter())
		}
	}
	for _, s := range []string{"", "#", "sources/maestro/consumers//agentevents",
		"Sources/maestro/consumers/c1/agentevents", "sources/maestro/consumers/c1/other",
		"sources/maestro/consumers/c1/agentevents/x", "$share//sources/maestro/consumers/c1/agentevents",
		"sources/maestro/consumers/c1/sourcebroadcast", "sources/maestro/agentevents"} {
		if got, err := ParseTopic(s); !errors.Is(err, ErrBadTopic) {
			t.Errorf("ParseTopic(%q) = %+v, %v", s, got, err)
		}
	}
}

func TestTopicsOfAFilter(t *testing.T) {
	filter := TopicsOf("maestro").AgentEvents
	if got, ok := filter.Match("sources/maestro/consumers/c1/agentevents"); !ok || got.Consumer != "c1" {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, name := range []string{
		"sources/maestro/consumers/+/agentevents", "sources/other/consumers/c1/agentevents",
		"sources/maestro/clusters/c1/agentevents",
		"sources/maestro/consumers/c1/sourceevents", "$share/g/sources/maestro/consumers/c1/agentevents", "x",
	} {
		if got, ok := filter.Match(name); ok {
			t.Errorf("%s is taken for %+v", name, got)
		}
	}
	if got := TopicsOf("maestro").SourceEvents.For("c1").String(); got != sourceTopic("c1") {
		t.Error(got)
	}
}

func TestTopicsAreCheckedForServersAndAgents(t *testing.T) {
	parse := func(s string) Topic {
		topic, err := ParseTopic(s)
		if err != nil {
			t.Fatal(err)
		}
		return topic
	}
	own := Topics{SourceEvents: parse("sources/maestro/clusters/c1/sourceevents"), AgentEvents: parse(
		"sources/maestro/clusters/+/agentevents"), AgentBroadcast: parse("clusters/+/agentbroadcast")}
	agent, err := own.ForAgent("c1")
	if err != nil || agent.AgentEvents.String() != "sources/maestro/clusters/c1/agentevents" ||
		agent.AgentBroadcast.String() != "clusters/c1/agentbroadcast" {
		t.Errorf("%+v, %v", agent, err)
	}
	for name, bad := range map[string]error{
		"another consumer's":       func() error { _, err := own.ForAgent("c2"); return err }(),
		"of no source":             func() error { _, err := TopicsOf("+").ForAgent("c1"); return err }(),
		"another source's":         TopicsOf("x").CheckSource("maestro"),
		"a server of one consumer": own.CheckSource("maestro"),
		"a broadcast of one agent": func() error {
			o := TopicsOf("m")
			o.AgentBroadcast = parse("clusters/c1/agentbroadcast")
			return o.CheckSource("m")
		}(),
	} {
		if !errors.Is(bad, ErrBadTopic) {
			t.Errorf("%s: %v", name, bad)
		}
	}
	if err := TopicsOf("maestro").CheckSource("maestro"); err != nil {
		t.Error(err)
	}
}

func FuzzParseTopic(f *testing.F) {
	for _, s := range []string{"sources/maestro/consumers/c1/sourceevents", "$share/g/a/b/c/+/agentevents",
		"a/+/sourcebroadcast", "a/b/agentbroadcast"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if topic, err := ParseTopic(s); err == nil && topic.Filter() != s {
			t.Errorf("%q is written %q", s, topic.Filter())
		}
	})
}
