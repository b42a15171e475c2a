package maestro

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/quick"
	"atoll.dev/maestro/wire"
	"atoll.dev/pki"
)

func TestI7TheAgentsPortIsPerCluster(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site), alone)
	m.consumer("mc1")
	m.consumer("mc2")
	m.source().create("mc2", "w2", "secret")
	mine := dialAs(t, site, "mc1", m.agentsTarget())
	subscribe := func(c cloudevents.CloudEventServiceClient, cluster, dataType string) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		stream, err := c.Subscribe(ctx, &cloudevents.SubscriptionRequest{ClusterName: cluster, DataType: dataType})
		if err != nil {
			return err
		}
		e, err := stream.Recv()
		if err == nil {
			err = fmt.Errorf("got %s", e.GetType())
		}
		return err
	}
	status := func(cluster string, id work.ID, change ...func(*bus.Event)) error {
		ms := bus.Event{DataContentType: wire.JSONType, ID: uuid.NewString(), Source: "mc1-agent", Type: work.StatusUpdate,
			Data: []byte(`{"conditions":[]}`), Extensions: map[string]string{
				work.ExtClusterName: cluster, work.ExtResourceID: string(id), work.ExtResourceVersion: "1",
				work.ExtOriginalSource: "maestro", work.ExtSequenceID: "1",
			}}
		for _, f := range change {
			f(&ms)
		}
		_, err := mine.Publish(t.Context(), &cloudevents.PublishRequest{Event: wire.ToProto(ms)})
		return err
	}
	none := dialAs(t, site, "mc1", m.agentsTarget())
	for what, c := range map[string]struct {
		err  error
		code string
	}{
		"another's stream": {subscribe(mine, "mc2", work.DataType), "PermissionDenied"},
		"a service's stream": {subscribe(dialAs(t, site, pki.ServiceName("platform"), m.agentsTarget()), "mc2",
			work.DataType), "PermissionDenied"},
		"an agent as a source": {publishAs(t, site, "mc1", m.target), "PermissionDenied"},
		"no cluster":           {subscribe(mine, "", work.DataType), "InvalidArgument"},
		"a bad cluster":        {subscribe(mine, "A_B", work.DataType), "InvalidArgument"},
		"no data type":         {subscribe(none, "mc1", ""), "InvalidArgument"},
		"another data type":    {subscribe(mine, "mc1", "io.example.v1.things"), "InvalidArgument"},
		"another's status":     {status("mc2", "w2"), "PermissionDenied"},
		"of another's bundle":  {status("mc1", "w2"), "FailedPrecondition"},
		"of an unknown bundle": {status("mc1", "w9"), "OK"},
		"no cluster in status": {status("", "w2"), "InvalidArgument"},
		"no id in status":      {status("mc1", ""), "InvalidArgument"},
		"bad data":             {status("mc1", "w2", func(m *bus.Event) { m.Data = []byte("{") }), "InvalidArgument"},
		"a source's event": {status("mc1", "w2", func(m *bus.Event) { m.Type = work.SpecCreate }),
			"InvalidArgument"},
		"an unknown event": {status("mc1", "w2", func(m *bus.Event) { m.Type = "x.y" }), "InvalidArgument"},
		"a bad list in a resync": {status("mc1", "", func(m *bus.Event) {
			m.Type = work.SpecResync
			m.Data = []byte("{")
		}), "OK"},
	} {
		if !isCode(c.err, c.code) && !(c.code == "OK" && c.err == nil) {
			t.Errorf("%s: %v instead of %s", what, c.err, c.code)
		}
	}
	if v := m.bundle("w2").Status.ObservedVersion; v != 0 {
		t.Errorf("another cluster's status was taken")
	}
}

func publishAs(t *testing.T, s *site, name pki.Name, target string) error {
	src := &source{t: t, client: dialAs(t, s, name, target), name: testSource}
	return src.publish(src.event(work.SpecCreate, "mc1", "w1", 0, specData(configMap("x", 1))))
}

// A client comes back before the server knows that its old connection is dead.
func TestTheNewerStreamOfAClusterWins(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site), alone)
	m.consumer("mc1")
	client := dialAs(t, site, "mc1", m.agentsTarget())
	open := func() (func() (*cloudevents.CloudEvent, error), context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.Subscribe(ctx, &cloudevents.SubscriptionRequest{ClusterName: "mc1",
			DataType: work.DataType})
		if err != nil {
			t.Fatal(err)
		}
		if h, err := stream.Header(); err != nil || uuid.Validate(h.Get("subscription-id")[0]) != nil {
			t.Fatalf("%v %v", h, err)
		}
		return stream.Recv, cancel
	}
	old, end := open()
	defer end()
	recv, end2 := open()
	defer end2()
	if _, err := old(); !isCode(err, "Aborted") {
		t.Errorf("the old stream: %v", err)
	}
	m.source().create("mc1", "w1", 1)
	if e, err := recv(); err != nil || e.GetType() != work.SpecCreate {
		t.Errorf("the new stream: %v %v", e, err)
	}
}

// An agent that reads nothing costs a bounded queue and its stream, and delays
// nobody.
func TestAGRPCAgentThatDoesNotReadDelaysNobody(t *testing.T) {
	quick.Slow(t, "fills the buffers of a connection with large works")
	t.Parallel()
	site := newSite(t)
	// a busy machine makes any reader slow
	m := site.start(withAgents(site), alone, func(o *Options) { o.Stuck = 10 * time.Second })
	m.consumer("deaf")
	m.consumer("absent")
	m.consumer("mc1")
	good := m.grpcAgent("mc1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := m.source()
	const works = 20
	big := strings.Repeat("x", 400<<10)
	// deliver creates large works of another cluster and returns the median time of a delivery to mc1 beside them.
	deliver := func(other work.Consumer) time.Duration {
		var took []time.Duration
		for n := range works {
			src.create(other, work.ID(fmt.Sprintf("%s%d", other, n)), big)
			begun, id := time.Now(), work.ID(fmt.Sprintf("beside-%s%d", other, n))
			src.create("mc1", id, n)
			good.awaitValue(id, n)
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		return took[works/2]
	}
	before := deliver("absent")
	stream, err := dialAs(t, site, "deaf", m.agentsTarget()).Subscribe(ctx, &cloudevents.SubscriptionRequest{
		ClusterName: "deaf", DataType: work.DataType})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	beside := deliver("deaf") // 8 MB to the deaf one, of which its stream takes 64 KB
	t.Logf("the median delivery took %s before it, and %s beside it", before, beside)
	if beside > 5*before+2*time.Second {
		t.Errorf("a delivery to another cluster took %s, and %s without the deaf one", beside, before)
	}
	eventually(t, "it is dropped", func() error {
		if n := gauge(t, m, "maestro_grpc_streams"); n != 1 {
			return fmt.Errorf("%v streams are open", n)
		}
		return nil
	})
	for {
		if _, err = stream.Recv(); err != nil {
			break
		}
	}
	if !isCode(err, "ResourceExhausted") || !strings.Contains(err.Error(), "reconnect and resync") {
		t.Errorf("it ended with %v", err)
	}
	// It comes back and gets everything.
	healed := m.grpcAgent("deaf")
	eventually(t, "it has everything", func() error {
		if n := healed.count(); n != works {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}
