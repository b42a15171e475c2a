package adapter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// traceJSON is a trace in JSON, with the keys that hyperfleet-adapter's has.
type traceJSON struct {
	Event struct {
		ID   string `json:"id"`
		Type string `json:"type"`
	} `json:"event"`
	Status              Status             `json:"status"`
	Params              map[string]any     `json:"params,omitempty"`
	Preconditions       []preconditionJSON `json:"preconditions,omitempty"`
	Resources           []resourceJSON     `json:"resources,omitempty"`
	DiscoveredResources map[string]any     `json:"discoveredResources,omitempty"`
	PostActions         []postActionJSON   `json:"postActions,omitempty"`
	Errors              map[Phase]string   `json:"errors,omitempty"`
	APIRequests         []apiRequestJSON   `json:"apiRequests,omitempty"`
	TransportOperations []operationJSON    `json:"transportOperations,omitempty"`
	Warnings            []string           `json:"warnings,omitempty"` // Atoll's own
}

type preconditionJSON struct {
	Name    string `json:"name"`
	Status  Status `json:"status"`
	Matched bool   `json:"matched"`
	Error   string `json:"error,omitempty"`
}

type resourceJSON struct {
	DiscoveredState Object    `json:"discoveredState,omitempty"` // of a deleted object
	Name            string    `json:"name"`
	Kind            string    `json:"kind"`
	Namespace       string    `json:"namespace,omitempty"`
	ResourceName    string    `json:"resourceName,omitempty"`
	Status          Status    `json:"status"`
	Operation       Operation `json:"operation"`
	Reason          string    `json:"reason,omitempty"`
	Error           string    `json:"error,omitempty"`
}

type postActionJSON struct {
	Name    string `json:"name"`
	Status  Status `json:"status"`
	Skipped bool   `json:"skipped,omitempty"`
	Error   string `json:"error,omitempty"`
}

type apiRequestJSON struct {
	Method       string `json:"method"`
	URL          string `json:"url"`
	StatusCode   int    `json:"statusCode"`
	RequestBody  string `json:"requestBody,omitempty"`
	ResponseBody string `json:"responseBody,omitempty"`
}

type operationJSON struct {
	Operation string    `json:"operation"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Result    Operation `json:"result,omitempty"`
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Detail is how much of a trace the engine writes.
type Detail int

const (
	Summary    Detail = iota
	WithBodies        // with the objects, and the bodies of requests and answers
)

// WriteJSON writes the trace as JSON, for programs.
func (t *Trace) WriteJSON(w io.Writer, detail Detail) error {
	r := t.Result
	out := traceJSON{Status: r.Status, Params: r.Params, DiscoveredResources: r.Seen}
	out.Event.ID, out.Event.Type = t.EventID, t.EventType
	for _, p := range r.Preconditions {
		out.Preconditions = append(out.Preconditions, preconditionJSON{p.Name, p.Status, p.Matched, message(p.Err)})
	}
	for _, x := range r.Resources {
		out.Resources = append(out.Resources, resourceJSON{x.DiscoveredState, x.Name, x.Kind, x.Namespace, x.ObjectName,
			x.Status, x.Operation, x.Reason, message(x.Err)})
	}
	for _, a := range r.PostActions {
		out.PostActions = append(out.PostActions, postActionJSON{a.Name, a.Status, a.Status == Skip, message(a.Err)})
	}
	for phase, err := range r.Errors {
		if out.Errors == nil {
			out.Errors = map[Phase]string{}
		}
		out.Errors[phase] = err.Error()
	}
	for _, c := range t.Calls {
		line := apiRequestJSON{Method: c.Method, URL: c.URL, StatusCode: c.Status}
		if detail == WithBodies {
			line.RequestBody, line.ResponseBody = string(c.Request), string(c.Response)
		}
		out.APIRequests = append(out.APIRequests, line)
	}
	for _, o := range t.Operations {
		out.TransportOperations = append(out.TransportOperations, operationJSON{o.Operation, o.Kind, o.Namespace,
			o.Name, o.Result})
	}
	for _, err := range r.Warnings {
		out.Warnings = append(out.Warnings, err.Error())
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}

// WriteText writes the trace as text, for people.
func (t *Trace) WriteText(w io.Writer, detail Detail) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Dry run of event %s (%s)\n", t.EventID, t.EventType)
	t.writeParameters(&b)
	t.writePreconditions(&b)
	t.writeResources(&b, detail)
	t.writePostActions(&b)
	if len(t.Result.Warnings) > 0 {
		b.WriteString("\nExpressions that failed; null or their defaults stand in their places\n")
		for _, err := range t.Result.Warnings {
			fmt.Fprintf(&b, "  %v\n", err)
		}
	}
	t.writeRequests(&b, detail)
	fmt.Fprintf(&b, "\nResult: %s\n", strings.ToUpper(string(t.Result.Status)))
	_, err := w.Write(b.Bytes())
	return err
}

func (t *Trace) writeParameters(b *bytes.Buffer) {
	t.head(b, 1, "Parameters", ParamExtraction, "")
	for _, name := range slices.Sorted(maps.Keys(t.Result.Params)) {
		if name != "adapter" {
			fmt.Fprintf(b, "  %-20s = %s\n", name, compactValue(t.Result.Params[name]))
		}
	}
}

func (t *Trace) writePreconditions(b *bytes.Buffer) {
	r := t.Result
	state := ""
	if r.Errors[ParamExtraction] != nil {
		state = "SKIPPED"
	}
	if len(r.Preconditions) > 0 && r.Errors[Preconditions] == nil {
		state = "MET"
		if r.Skipped && !r.Preconditions[len(r.Preconditions)-1].Matched {
			state = "NOT MET"
		}
	}
	t.head(b, 2, "Preconditions", Preconditions, state)
	for i, p := range r.Preconditions {
		word := map[bool]string{true: "PASS", false: "NOT MET"}[p.Matched]
		if p.Status == Failed {
			word = "FAIL"
		}
		fmt.Fprintf(b, "  [%d/%d] %-30s %s\n", i+1, len(r.Preconditions), p.Name, word)
		for _, name := range slices.Sorted(maps.Keys(p.Captured)) {
			fmt.Fprintf(b, "    captured %s = %s\n", name, compactValue(p.Captured[name]))
		}
		problemLine(b, p.Err)
	}
}

// writeResources writes the phase of the resources, and the objects that expressions find.
func (t *Trace) writeResources(b *bytes.Buffer, detail Detail) {
	r := t.Result
	state := ""
	if r.Skipped {
		state = "SKIPPED"
	}
	t.head(b, 3, "Resources", Resources, state)
	if r.Skipped {
		fmt.Fprintf(b, "  reason: %s\n", r.SkipReason)
	}
	for i, x := range r.Resources {
		word := strings.ToUpper(string(x.Operation))
		if x.Status == Failed {
			word = strings.TrimSpace("FAILED " + word)
		}
		fmt.Fprintf(b, "  [%d/%d] %-30s %s\n", i+1, len(r.Resources), x.Name, word)
		fmt.Fprintf(b, "    %s %s\n", x.Kind, strings.TrimPrefix(x.Namespace+"/"+x.ObjectName, "/"))
		problemLine(b, x.Err)
		if detail == WithBodies {
			t.applied(b, x)
		}
	}
	if len(r.Discovered) > 0 {
		b.WriteString("\nFound (resources.* of expressions)\n")
		for _, name := range slices.Sorted(maps.Keys(r.Discovered)) {
			fmt.Fprintf(b, "  %s = %s\n", name, compactValue(r.Discovered[name]))
		}
	}
}

func (t *Trace) writePostActions(b *bytes.Buffer) {
	t.head(b, 4, "Post actions", PostActions, "")
	for i, a := range t.Result.PostActions {
		word := "EXECUTED"
		switch a.Status {
		case Skip:
			word = "SKIPPED: " + a.SkipReason
		case Failed:
			word = "FAILED"
		}
		fmt.Fprintf(b, "  [%d/%d] %-30s %s\n", i+1, len(t.Result.PostActions), a.Name, word)
		problemLine(b, a.Err)
	}
}

func (t *Trace) writeRequests(b *bytes.Buffer, detail Detail) {
	b.WriteString("\nRequests\n")
	for _, c := range t.Calls {
		fmt.Fprintf(b, "  %s %s -> %d\n", c.Method, c.URL, c.Status)
		if detail == WithBodies {
			body(b, "sent", c.Request)
			body(b, "received", c.Response)
		}
	}
}

func (t *Trace) head(b *bytes.Buffer, n int, title string, p Phase, state string) {
	if state == "" {
		state = "SUCCESS"
	}
	err := t.Result.Errors[p]
	if err != nil {
		state = "FAILED"
	}
	fmt.Fprintf(b, "\nPhase %d: %s %s %s\n", n, title, strings.Repeat(".", 34-len(title)), state)
	problemLine(b, err)
}

func (t *Trace) applied(b *bytes.Buffer, x ResourceResult) {
	for _, o := range t.Operations {
		if o.Object != nil && identify(o.Object) == (identity{identify(o.Object).APIVersion, x.Kind, x.Namespace,
			x.ObjectName}) {
			data, _ := json.Marshal(o.Object)
			body(b, "applied", data)
			return
		}
	}
}

func problemLine(b *bytes.Buffer, err error) {
	if err != nil {
		fmt.Fprintf(b, "    error: %v\n", err)
	}
}

func body(b *bytes.Buffer, what string, data []byte) {
	if len(data) == 0 {
		return
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, data, "      ", "  ") != nil {
		pretty.Reset()
		pretty.Write(data)
	}
	fmt.Fprintf(b, "    %s:\n      %s\n", what, pretty.String())
}

func compactValue(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(data)
}
