package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// DryRun runs a task without CLM and without a transport, for the task's author. Its files have the
// formats of hyperfleet-adapter's dry run.
type DryRun struct {
	Config *Config
	Task   *Task
	// Event is a CloudEvent in JSON.
	Event []byte
	// Responses are CLM's answers, in JSON:
	//
	//	{"responses": [{"match": {"method": "GET", "urlPattern": "/clusters/.*"},
	//	                "responses": [{"statusCode": 200, "headers": {}, "body": {}}]}]}
	//
	// The pattern is a regular expression; the method * matches any. Each call gets the next of
	// several responses, and the last one repeatedly. A call that matches nothing gets 200 {}. It
	// may be empty.
	Responses []byte
	// Discovery has the objects that exist before the run, in JSON by their metadata.name, or by TARGET/NAME where a task
	// has works of one name on several management clusters.
	// Discoveries find them also in place of the objects that the run applies. It may be empty.
	Discovery []byte
	LookupEnv func(string) (string, bool) // os.LookupEnv by default
	Now       func() time.Time            // time.Now by default
}

// Trace is a record of a dry run.
type Trace struct {
	EventID, EventType string
	Result             *Result
	Calls              []TraceCall
	Operations         []TraceOperation
}

// TraceCall is one request to CLM.
type TraceCall struct {
	Method, URL string
	Status      int
	Request     []byte
	Response    []byte
}

// TraceOperation is one request to the transport.
type TraceOperation struct {
	Operation string // apply, get, discover, delete
	Kind      string
	Namespace string
	Name      string
	Result    Operation // of apply
	Object    Object    // of apply
}

// Run runs the task once. The error is about an unreadable file or a malformed task; failures of
// the run are in the trace.
func (d DryRun) Run(ctx context.Context) (*Trace, error) {
	var event struct {
		ID   string          `json:"id"`
		Type string          `json:"type"`
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(d.Event, &event); err != nil {
		return nil, fmt.Errorf("reading the event: %w", err)
	}
	var data Event
	if len(event.Data) == 0 {
		return nil, errors.New("reading the event: it has no data")
	}
	if err := json.Unmarshal(event.Data, &data); err != nil {
		return nil, fmt.Errorf("reading the event's data: %w", err)
	}
	t := &Trace{EventID: event.ID, EventType: event.Type}
	api, err := newScript(d.Responses, t)
	if err != nil {
		return nil, fmt.Errorf("reading the API's responses: %w", err)
	}
	transport := &recordingTransport{trace: t, now: d.Now}
	if d.Now == nil {
		transport.now = time.Now
	}
	if len(bytes.TrimSpace(d.Discovery)) > 0 {
		if err := utiljson.Unmarshal(d.Discovery, &transport.found); err != nil {
			return nil, fmt.Errorf("reading the file of discovered objects: %w", err)
		}
	}
	config := *d.Config
	config.Clients.API.Auth = nil
	e, err := New(Options{
		Config: &config, Task: d.Task, Transport: transport, API: api, LookupEnv: d.LookupEnv, Now: d.Now,
		Log: slog.New(slog.DiscardHandler), noRetries: true,
	})
	if err != nil {
		return nil, err
	}
	t.Result = e.Run(ctx, data)
	return t, nil
}

// script answers calls from the file of responses.
type script struct {
	trace  *Trace
	routes []*route
}

type route struct {
	Match struct {
		Method     string `json:"method"`
		URLPattern string `json:"urlPattern"`
	} `json:"match"`
	Responses []struct {
		StatusCode int               `json:"statusCode"`
		Headers    map[string]string `json:"headers"`
		Body       json.RawMessage   `json:"body"`
	} `json:"responses"`
	pattern *regexp.Regexp
	calls   int
}

func newScript(file []byte, t *Trace) (*script, error) {
	s := &script{trace: t}
	if len(bytes.TrimSpace(file)) == 0 {
		return s, nil
	}
	var doc struct {
		Responses []*route `json:"responses"`
	}
	if err := json.Unmarshal(file, &doc); err != nil {
		return nil, err
	}
	for i, r := range doc.Responses {
		if r == nil || len(r.Responses) == 0 {
			return nil, fmt.Errorf("responses[%d] has no responses", i)
		}
		var err error
		if r.pattern, err = regexp.Compile(r.Match.URLPattern); err != nil {
			return nil, fmt.Errorf("responses[%d].match.urlPattern: %w", i, err)
		}
	}
	s.routes = doc.Responses
	return s, nil
}

// Do implements Doer.
func (s *script) Do(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	url := req.URL.RequestURI()
	status, answer, headers := http.StatusOK, []byte("{}"), http.Header{}
	for _, r := range s.routes {
		if (r.Match.Method != "*" && !strings.EqualFold(r.Match.Method, req.Method)) || !r.pattern.MatchString(url) {
			continue
		}
		x := r.Responses[min(r.calls, len(r.Responses)-1)]
		r.calls++
		if x.StatusCode != 0 {
			status = x.StatusCode
		}
		if len(x.Body) > 0 {
			answer = x.Body
		}
		for name, value := range x.Headers {
			headers.Set(name, value)
		}
		break
	}
	s.trace.Calls = append(s.trace.Calls, TraceCall{req.Method, url, status, body, compact(answer)})
	return &http.Response{StatusCode: status, Header: headers, Body: io.NopCloser(bytes.NewReader(answer)),
		Request: req}, nil
}

func compact(data []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return data
	}
	return b.Bytes()
}

// recordingTransport is a transport that records its calls. The objects of the discoveries' file exist from the
// start and replace applied objects of the same name.
type recordingTransport struct {
	trace   *Trace
	now     func() time.Time
	found   map[string]Object
	applied []appliedObject
}

// appliedObject is an object that the run has applied, and the management cluster of a work.
type appliedObject struct {
	target string
	object Object
}

// key returns the key of an object in found: that with its target when there is one.
func (t *recordingTransport) key(target, name string) string {
	if _, ok := t.found[target+"/"+name]; ok {
		return target + "/" + name
	}
	return name
}

// index returns the index of an applied object; -1 when the run has not applied it.
func (t *recordingTransport) index(target string, id identity) int {
	return slices.IndexFunc(t.applied, func(x appliedObject) bool {
		return x.target == target && identify(x.object) == id
	})
}

func (t *recordingTransport) record(op TraceOperation) {
	t.trace.Operations = append(t.trace.Operations, op)
}

// Discover implements Transport.
func (t *recordingTransport) Discover(_ context.Context, q Search) (out []Object, _ error) {
	op := TraceOperation{Operation: "discover", Kind: q.Kind, Namespace: q.Namespace, Name: q.Name}
	if q.Name != "" {
		op.Operation = "get"
	}
	t.record(op)
	target := string(q.TargetCluster)
	for _, x := range t.applied {
		id := identify(x.object)
		if x.target == target && id.Kind == q.Kind && id.APIVersion == q.APIVersion && matches(q, x.object) {
			out = append(out, t.discovered(x))
		}
	}
	wanted := t.key(target, q.Name)
	for _, name := range slices.Sorted(maps.Keys(t.found)) {
		o := t.found[name]
		if id := identify(o); id.Kind == q.Kind &&
			!slices.ContainsFunc(out, func(x Object) bool { return identify(x) == id }) &&
			(q.Name != "" && wanted == name || q.Name == "" && matches(q, o)) {
			out = append(out, o)
		}
	}
	return out, nil
}

// discovered returns the object of the discoveries' file with the name of x, else the object of x.
func (t *recordingTransport) discovered(x appliedObject) Object {
	if over, ok := t.found[t.key(x.target, identify(x.object).Name)]; ok {
		return over
	}
	return x.object
}

// Apply implements Transport.
func (t *recordingTransport) Apply(_ context.Context, a Application) (Applied, error) {
	id := identify(a.Object)
	op := Created
	now := appliedObject{string(a.TargetCluster), a.Object}
	i := t.index(now.target, id)
	_, there := t.findGiven(id)
	if _, ok := t.found[now.target+"/"+id.Name]; ok {
		there = true
	}
	if a.OnlyExisting && !there && i < 0 {
		return Applied{Operation: Skipped, Reason: "its resource is being deleted: it is not made again"}, nil
	}
	switch there = there || i >= 0; {
	case there && a.Recreate:
		op = Recreated
	case there:
		op = Updated
	}
	if i >= 0 {
		t.applied[i] = now
	} else {
		t.applied = append(t.applied, now)
	}
	t.record(TraceOperation{"apply", id.Kind, id.Namespace, id.Name, op, a.Object})
	return Applied{op, "dry-run " + string(op), t.discovered(now)}, nil
}

// findGiven returns the key in the discoveries' file of the object with an identity.
func (t *recordingTransport) findGiven(id identity) (name string, ok bool) {
	for name, o := range t.found {
		if identify(o) == id {
			return name, true
		}
	}
	return "", false
}

// Delete implements Transport. An object of a Kubernetes API is deleted at once. A work exists with
// the time of its deletion until its agent confirms the deletion, which is after the run.
func (t *recordingTransport) Delete(_ context.Context, d Deletion) error {
	id := identify(d.Object)
	t.record(TraceOperation{Operation: "delete", Kind: id.Kind, Namespace: id.Namespace, Name: id.Name})
	if d.TargetCluster != "" {
		mark := func(o Object) Object {
			o = maps.Clone(o)
			meta, _ := o["metadata"].(map[string]any)
			meta = maps.Clone(meta)
			meta["deletionTimestamp"] = t.now().UTC().Format(time.RFC3339)
			o["metadata"] = meta
			return o
		}
		if i := t.index(string(d.TargetCluster), id); i >= 0 {
			t.applied[i].object = mark(t.applied[i].object)
		}
		if name, ok := t.findGiven(id); ok {
			t.found[name] = mark(t.found[name])
		}
		return nil
	}
	t.applied = slices.DeleteFunc(t.applied, func(x appliedObject) bool { return identify(x.object) == id })
	maps.DeleteFunc(t.found, func(_ string, o Object) bool { return identify(o) == id })
	return nil
}
