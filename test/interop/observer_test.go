package interop

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	cloudeventsmqtt "github.com/cloudevents/sdk-go/protocol/mqtt_paho/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/google/uuid"
	workv1 "open-cluster-management.io/api/work/v1"
	agentcodec "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/agent/codec"
)

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// observer receives all messages on Mosquitto, as a plain MQTT 5 client.
type observer struct {
	mu       sync.Mutex
	messages []*paho.Publish
}

func (w *world) observe(t *testing.T, broker string) *observer {
	t.Helper()
	id := w.identity(t, "system:observer")
	conn, err := tls.Dial("tcp", broker, &tls.Config{RootCAs: w.caPool, Certificates: []tls.Certificate{id.pair}})
	if err != nil {
		t.Fatal(err)
	}
	o := &observer{}
	client := paho.NewClient(paho.ClientConfig{
		ClientID: "observer-" + uuid.NewString(), Conn: packets.NewThreadSafeConn(conn),
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.messages = append(o.messages, p.Packet)
			return true, nil
		}},
	})
	ctx := context.Background()
	if ack, err := client.Connect(ctx, &paho.Connect{ClientID: client.ClientID(), KeepAlive: 60,
		CleanStart: true}); err != nil {
		t.Fatal(ack, err)
	}
	t.Cleanup(func() { client.Disconnect(&paho.Disconnect{}) })
	if _, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: "sources/#", QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	return o
}

// next waits for the first new message on a topic with this suffix of the event type.
func (o *observer) next(t *testing.T, topic, kind string) *paho.Publish {
	t.Helper()
	var found *paho.Publish
	eventually(t, "a "+kind+" is on "+topic, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		for i, m := range o.messages {
			if m.Topic == topic && m.Properties.User.Get("ce-type") == bundles+kind {
				found, o.messages = m, slices.Delete(o.messages, i, i+1)
				return nil
			}
		}
		var seen []string
		for _, m := range o.messages {
			seen = append(seen, m.Topic+" "+m.Properties.User.Get("ce-type"))
		}
		return fmt.Errorf("seen: %q", seen)
	})
	return found
}

// properties are the user properties; a duplicate is an error.
func properties(t *testing.T, m *paho.Publish) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range m.Properties.User {
		if _, twice := all[p.Key]; twice {
			t.Errorf("user property %s comes twice", p.Key)
		}
		all[p.Key] = p.Value
	}
	return all
}

// decodeWork reads a message with the CloudEvents SDK and OCM's codec of an agent.
func decodeWork(t *testing.T, m *paho.Publish) *workv1.ManifestWork {
	t.Helper()
	e, err := binding.ToEvent(context.Background(), cloudeventsmqtt.NewMessage(m))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
	work, err := agentcodec.NewManifestBundleCodec().Decode(e)
	if err != nil {
		t.Fatal(err)
	}
	return work
}

// checkDeletingBundle looks at a bundle that is being deleted: lists and gets still have it, under its own name.
func (s *server) checkDeletingBundle(t *testing.T, id string) {
	t.Helper()
	var got map[string]any
	s.callREST(t, "GET", "/v1/resource-bundles/"+id, "", http.StatusOK, &got)
	if got["deleted_at"] == nil || got["consumer_name"] != "golden" || got["kind"] != "ResourceBundle" {
		t.Errorf("the bundle that is being deleted is %v", got)
	}
	if m, _ := got["metadata"].(map[string]any); m["name"] != "nginx" || m["deletionTimestamp"] == nil {
		t.Errorf("its metadata are %v: want the source's name and a deletionTimestamp", m)
	}
	list := s.search(t, "consumer_name='golden'")
	if len(list) != 1 || list[0].ID != id || list[0].DeletedAt == "" {
		t.Errorf("the list has %+v", list)
	}
}
