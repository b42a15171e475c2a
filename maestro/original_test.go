package maestro

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
)

// The answers of the original's OpenAPI document, member by member, as a client
// that is generated from it decodes them.
type (
	originalReference struct {
		ID, Kind, Href string
	}
	originalError struct {
		originalReference
		Code        string `json:"code"`
		Reason      string `json:"reason"`
		OperationID string `json:"operation_id"`
	}
	originalConsumer struct {
		originalReference
		Name      string            `json:"name"`
		Labels    map[string]string `json:"labels"`
		CreatedAt time.Time         `json:"created_at"`
		UpdatedAt time.Time         `json:"updated_at"`
	}
	originalBundle struct {
		originalReference
		Name            string           `json:"name"`
		ConsumerName    string           `json:"consumer_name"`
		Version         int32            `json:"version"`
		CreatedAt       time.Time        `json:"created_at"`
		UpdatedAt       time.Time        `json:"updated_at"`
		DeletedAt       *time.Time       `json:"deleted_at"`
		Metadata        map[string]any   `json:"metadata"`
		Manifests       []map[string]any `json:"manifests"`
		DeleteOption    map[string]any   `json:"delete_option"`
		ManifestConfigs []map[string]any `json:"manifest_configs"`
		Status          map[string]any   `json:"status"`
	}
	originalList[T any] struct {
		Kind  *string `json:"kind"`
		Page  *int32  `json:"page"`
		Size  *int32  `json:"size"`
		Total *int32  `json:"total"`
		Items *[]T    `json:"items"`
	}
)

// strictly decodes an answer and refuses members that the original has not.
func strictly[T any](a answer) (v T, err error) {
	dec := json.NewDecoder(bytes.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err = dec.Decode(&v); err != nil {
		err = fmt.Errorf("%w in %s", err, a.body)
	}
	return v, err
}

func (l originalList[T]) missing() error {
	if l.Kind == nil || l.Page == nil || l.Size == nil || l.Total == nil || l.Items == nil {
		return errors.New("a list lacks a member that it must have")
	}
	return nil
}

// TestTheAnswersHaveOnlyTheOriginalsMembers: a client that is generated from
// the original's document and refuses unknown members reads every answer, also
// when an agent was last seen, holds works that nobody ordered, and has reported.
// The members that are added come when they are asked for.
func TestTheAnswersHaveOnlyTheOriginalsMembers(t *testing.T) {
	t.Parallel()
	const consumers, bundles = "/api/maestro/v1/consumers", "/api/maestro/v1/resource-bundles"
	site := newSite(t)
	m := site.start()
	plain := func(status int, method, path, body string) answer {
		t.Helper()
		return m.want(status, method, path, body, api.ExtensionsHeader, "")
	}
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	// What the original's own client posts is a whole Consumer.
	c, err := strictly[originalConsumer](plain(http.StatusCreated, "POST", consumers,
		`{"kind":"Consumer","name":"mc1","labels":{"a":"b"}}`))
	check("POST consumer", err)
	agent := site.agent("mc1")
	agent.fault(func() {
		agent.digests = true
		agent.works["strange"] = &agentWork{generation: 1, data: specData(configMap("s", 1)),
			status: []byte(`{"conditions":[]}`), hash: "x"}
	})
	agent.sayDigest(t.Context())
	src := m.source()
	src.create("mc1", "w1", 1)
	eventually(t, "all that can be added is there", func() error {
		var full api.Consumer
		m.want(http.StatusOK, "GET", c.Href, "").into(t, &full)
		if full.LastSeenAt == nil || full.UnknownWorks != 1 || full.ComparedAt == nil ||
			m.bundle("w1").Status.ObservedVersion != 1 {
			agent.sayDigest(context.Background())
			return fmt.Errorf("%+v", full)
		}
		return nil
	})
	if m.bundle("w1").Delivery == nil {
		t.Error("a bundle has no delivery, though extensions are asked for")
	}
	agent.stop()
	src.create("mc1", "w2", 1)
	src.remove("mc1", "w2")

	got, err := strictly[originalConsumer](plain(http.StatusOK, "GET", c.Href, ""))
	check("GET consumer", err)
	if got.Name != "mc1" || got.ID == "" || got.Kind != "Consumer" || got.CreatedAt.IsZero() || got.UpdatedAt.IsZero() {
		t.Errorf("consumer %+v", got)
	}
	_, err = strictly[originalConsumer](plain(http.StatusOK, "PATCH", c.Href, `{"labels":{"c":"d"}}`))
	check("PATCH consumer", err)
	for _, query := range []string{"", "?size=0", "?page=9", "?search=" + url.QueryEscape("name='mc1'"),
		"?fields=id,name"} {
		list, err := strictly[originalList[originalConsumer]](plain(http.StatusOK, "GET", consumers+query, ""))
		check("GET consumers"+query, errors.Join(err, list.missing()))
	}
	for _, id := range []string{"w1", "w2"} {
		b, err := strictly[originalBundle](plain(http.StatusOK, "GET", bundles+"/"+id, ""))
		check("GET bundle", err)
		if b.Version != 1 || b.ConsumerName != "mc1" || (b.DeletedAt != nil) != (id == "w2") || len(b.Manifests) != 1 ||
			b.Metadata["creationTimestamp"] == nil {
			t.Errorf("bundle %+v", b)
		}
	}
	for _, query := range []string{"", "?size=1&orderBy=" + url.QueryEscape("name desc"), "?search=" + url.QueryEscape(
		"source='"+testSource+"'")} {
		list, err := strictly[originalList[originalBundle]](plain(http.StatusOK, "GET", bundles+query, ""))
		check("GET bundles"+query, errors.Join(err, list.missing()))
	}
	for _, refused := range []struct {
		status             int
		method, path, body string
	}{
		{http.StatusNotFound, "GET", consumers + "/none", ""},
		{http.StatusNotFound, "GET", bundles + "/none", ""},
		{http.StatusNotFound, "PATCH", consumers + "/none", `{}`},
		{http.StatusBadRequest, "GET", bundles + "?search=" + url.QueryEscape("no such thing"), ""},
		{http.StatusBadRequest, "GET", bundles + "?orderBy=none", ""},
		{http.StatusBadRequest, "POST", consumers, `{`},
		{http.StatusBadRequest, "POST", consumers, `{"id":"x"}`},
		{http.StatusConflict, "POST", consumers, `{"name":"mc1"}`},
		{http.StatusForbidden, "DELETE", c.Href, ""},
	} {
		e, err := strictly[originalError](plain(refused.status, refused.method, refused.path, refused.body))
		check(refused.method+" "+refused.path, err)
		if e.Kind != "Error" || e.Code == "" || e.Reason == "" || e.OperationID == "" {
			t.Errorf("%s %s: %+v", refused.method, refused.path, e)
		}
	}
	list, err := strictly[originalList[originalError]](plain(http.StatusOK, "GET", "/api/maestro/v1/errors", ""))
	check("GET errors", errors.Join(err, list.missing()))
	_, err = strictly[originalError](plain(http.StatusOK, "GET", "/api/maestro/v1/errors/7", ""))
	check("GET error", err)
	if a := plain(http.StatusNoContent, "DELETE", bundles+"/w1", ""); len(a.body) > 0 {
		t.Errorf("DELETE answers %s", a.body)
	}
	if n := len(firstDeliveries(agent.received(work.SpecCreate))); n != 1 {
		t.Errorf("%d works reached the agent", n)
	}
}
