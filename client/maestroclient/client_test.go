package maestroclient

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/quick"
)

// The value was computed by Python's uuid5.
func TestBundleIDEqualsThatOfOCMsSources(t *testing.T) {
	const want = "736174f6-3f1a-5fd2-a1a2-a51e195ca78d"
	if got := work.BundleID(work.SourcePlatform, "management-01", "maestro-payload-test-1"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAnEventOfABundleFollowsOCMsProtocol(t *testing.T) {
	m := &Client{source: work.SourcePlatform}
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	b := Bundle{
		ID: "b-1", Consumer: "management-01", IfMatch: `"7"`,
		Metadata: metav1.ObjectMeta{Name: "w", Namespace: "elsewhere", UID: "other", Labels: map[string]string{
			"a": "b"}},
		Spec: work.Bundle{Manifests: []json.RawMessage{json.RawMessage(`{"data":"<&>"}`)}},
	}
	e, err := m.newEvent(work.SpecUpdate, b, now, remote.Actor{RequestID: "r-1"})
	if err != nil {
		t.Fatal(err)
	}
	if e.Id == "" || e.Source != work.SourcePlatform || e.SpecVersion != "1.0" || e.Type != work.SpecUpdate {
		t.Errorf("core attributes: %v", e)
	}
	if got := string(e.GetBinaryData()); got != `{"manifests":[{"data":"<&>"}]}` {
		t.Errorf("data = %s", got)
	}
	got := map[string]string{}
	for k, v := range e.Attributes {
		switch a := v.Attr.(type) {
		case *cloudevents.CloudEvent_CloudEventAttributeValue_CeString:
			got[k] = a.CeString
		case *cloudevents.CloudEvent_CloudEventAttributeValue_CeInteger:
			got[k] = "integer"
		case *cloudevents.CloudEvent_CloudEventAttributeValue_CeTimestamp:
			got[k] = a.CeTimestamp.AsTime().Format(time.RFC3339Nano)
		}
	}
	want := map[string]string{
		"contenttype": "application/json", "ce-time": "2026-01-02T03:04:05.000000006Z",
		"ce-resourceid": "b-1", "ce-resourceversion": "integer", "ce-clustername": "management-01",
		"ce-metadata":     `{"name":"w","namespace":"management-01","uid":"b-1","labels":{"a":"b"}}`,
		"ce-atollifmatch": "7",
		"ce-logtracing":   `{"logging.open-cluster-management.io/op-id":"r-1"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	if e, err = m.newEvent(work.SpecDelete, b, now, remote.Actor{}); err != nil ||
		e.Attributes["ce-deletiontimestamp"].GetCeTimestamp() == nil {
		t.Errorf("a deletion has no time: %v, %v", e, err)
	}
}

func TestErrorsOfPublish(t *testing.T) {
	const k8sError = `{"ErrStatus":{"status":"Failure","message":"failed to update resource: MESSAGE",` +
		`"reason":"Conflict","code":CODE}}`
	k8s := func(code, message string) string {
		return strings.NewReplacer("MESSAGE", message, "CODE", code).Replace(k8sError)
	}
	for _, c := range []struct {
		name    string
		code    codes.Code
		message string
		ifMatch string
		want    remote.Error
	}{
		{"exists", codes.AlreadyExists, k8s("409", "maestro-6: This Resource already exists"), "",
			remote.Error{Status: 409, Code: "maestro-6", Reason: "This Resource already exists"}},
		{"exists, plain", codes.Unknown, "failed to create resource: maestro-6: This Resource already exists", "",
			remote.Error{Status: 409, Code: "maestro-6", Reason: "This Resource already exists"}},
		{"stale", codes.FailedPrecondition, k8s("412", "maestro-412: changed"), "\"7\"",
			remote.Error{Status: 412, Code: "maestro-412", Reason: "changed"}},
		{"stale, plain", codes.Unknown,
			"failed to update resource: maestro-6: the resource version is not the latest, the latest version: 1", "\"7\"",
			remote.Error{Status: 412, Code: "maestro-6",
				Reason: "the resource version is not the latest, the latest version: 1"}},
		{"not latest, unconditional", codes.Unknown,
			"failed to update resource: maestro-6: the resource version is not the latest, the latest version: 1",
			"",
			remote.Error{Status: 409, Code: "maestro-6",
				Reason: "the resource version is not the latest, the latest version: 1"}},
		{"no such consumer, plain", codes.Unknown,
			`failed to create resource: maestro-9: violates foreign key constraint "fk_resources_consumers" ` +
				`(SQLSTATE 23503)`, "",
			remote.Error{Status: 404, Code: "maestro-9",
				Reason: `violates foreign key constraint "fk_resources_consumers" (SQLSTATE 23503)`}},
		{"invalid, plain", codes.Unknown, "failed to create resource: maestro-8: manifests[0]: kind is missing", "",
			remote.Error{Status: 400, Code: "maestro-8", Reason: "manifests[0]: kind is missing"}},
		{"too large", codes.ResourceExhausted, "grpc: received message larger than max", "",
			remote.Error{Status: 413, Code: "maestro-error", Reason: "grpc: received message larger than max"}},
		{"refused", codes.PermissionDenied, "no", "", remote.Error{Status: 403, Code: "maestro-error",
			Reason: "no"}},
		{"broken", codes.Internal, "oh", "", remote.Error{Status: 500, Code: "maestro-error", Reason: "oh"}},
		{"database down", codes.Unavailable, k8s("503", "maestro-503: the database is unavailable"), "",
			remote.Error{Status: 503, Code: "maestro-503", Reason: "the database is unavailable",
				RetryAfter: time.Second}},
		{"gone", codes.Unavailable, "connection refused", "",
			remote.Error{Status: 503, Code: remote.CodeUnreachable, Reason: "Maestro does not answer",
				RetryAfter: time.Second}},
		{"silent", codes.DeadlineExceeded, "deadline exceeded", "",
			remote.Error{Status: 503, Code: remote.CodeUnreachable, Reason: "Maestro does not answer",
				RetryAfter: time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := newError(t.Context(), status.Error(c.code, c.message), c.ifMatch)
			e, ok := errors.AsType[*remote.Error](err)
			if !ok {
				t.Fatalf("got %v", err)
			}
			got := *e
			got.Err = nil
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(remote.Error{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newError(ctx, status.Error(codes.Canceled, "x"), ""); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
}

// A Maestro that accepts connections and does not answer.
func TestASilentMaestroIs503WithinTheTimeout(t *testing.T) {
	quick.LeavesOut(t, "waits for a real time-out")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := New(Options{HTTP: "http://" + l.Addr().String(), GRPC: l.Addr().String(),
		Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for name, call := range map[string]func() error{
		"publish": func() error {
			_, err := m.CreateBundle(t.Context(), Bundle{ID: "a", Consumer: "m"})
			return err
		},
		"get":   func() error { _, err := m.Bundle(t.Context(), "a"); return err },
		"post":  func() error { _, err := m.CreateConsumer(t.Context(), "a", nil); return err },
		"watch": func() error { _, err := m.WatchBundles(t.Context(), remote.WatchOptions{}); return err },
		"ready": func() error { return m.Ready(t.Context()) },
	} {
		start := time.Now()
		err := call()
		// It takes 0.2 s on an idle machine.
		if took := time.Since(start); remote.StatusOf(err) != http.StatusServiceUnavailable || took > 20*time.Second {
			t.Errorf("%s: %v after %s", name, err, took)
		}
	}
}
