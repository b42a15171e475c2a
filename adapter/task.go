package adapter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// Task is an AdapterTaskConfig: the steps for one resource (docs/adapter-authoring-guide.md of
// hyperfleet-adapter).
type Task struct {
	File          string
	Params        []Param        `yaml:"params"`
	Preconditions []Precondition `yaml:"preconditions"`
	Resources     []Resource     `yaml:"resources"`
	Post          Post           `yaml:"post"`
}

// Param is a named value. Later ones, and everything after them, may use it.
type Param struct {
	Place       Place
	Name        string `yaml:"name"`
	Source      Source `yaml:"source"`
	Type        string `yaml:"type"` // string, int, int64, float, float64, bool; "" leaves it
	Required    bool   `yaml:"required"`
	Default     Value  `yaml:"default"`
	Description string `yaml:"description"`
	// When decides whether the source is used. When it is false the param is its default, or null,
	// also when it is required. An addition to HyperFleet's language.
	When *When `yaml:"when"`
	// Let takes the place of everything else in an entry: named expressions. An addition to HyperFleet's language.
	Let Let `yaml:"let"`
}

// Source is the source of a param's value. One member is set.
type Source struct {
	Place      Place
	From       Text // event.a, env.NAME, config.a, or a param's path
	APICall    *APICall
	Expression Text
	File       *FileSource
}

// FileSource is a file of at most 1 MiB, which each run reads.
type FileSource struct {
	Path string `yaml:"path"`
	Trim *bool  `yaml:"trim"` // white space around it, by default
}

// APICall is a request to CLM.
type APICall struct {
	Place         Place
	Method        string        `yaml:"method"`
	URL           Text          `yaml:"url"`     // template; relative to /api/hyperfleet/<version>
	Timeout       time.Duration `yaml:"timeout"` // of one attempt
	RetryAttempts int           `yaml:"retry_attempts"`
	RetryBackoff  string        `yaml:"retry_backoff"`
	Headers       []Header      `yaml:"headers"`
	Body          Text          `yaml:"body"` // template
}

// Header is a header of a request.
type Header struct {
	Name  string `yaml:"name"`
	Value Text   `yaml:"value"` // template
}

// Precondition decides whether the resources' phase runs. The first unmet one ends the phase.
type Precondition struct {
	Place      Place
	Name       string      `yaml:"name"`
	APICall    *APICall    `yaml:"api_call"` // deprecated by its authors: use a param
	Capture    []Capture   `yaml:"capture"`
	Conditions []Condition `yaml:"conditions"`
	Expression Text        `yaml:"expression"`
	Log        *LogAction  `yaml:"log"`
}

// expectedValue returns the value with which the condition compares.
func (c Condition) expectedValue() any {
	if c.Values.Set() {
		return c.Values.Value
	}
	return c.Value.Value
}

// Capture is a value of the api_call's answer. It becomes a param.
type Capture struct {
	Place      Place
	Name       string `yaml:"name"`
	Field      Text   `yaml:"field"` // a.b, or a JSONPath
	Expression Text   `yaml:"expression"`
	Default    Value  `yaml:"default"` // with Field only
}

// Condition compares a field with a value.
type Condition struct {
	Place    Place
	Field    Text   `yaml:"field"`
	Operator string `yaml:"operator"`
	Value    Value  `yaml:"value"`
	Values   Value  `yaml:"values"` // the same
}

// LogAction writes a line to the log.
type LogAction struct {
	Message Text   `yaml:"message"` // template
	Level   string `yaml:"level"`   // debug, info (default), warning, error
}

// Resource is an object that the adapter applies and deletes.
type Resource struct {
	Place            Place
	Name             string            `yaml:"name"`
	Transport        *TransportConfig  `yaml:"transport"`
	Manifest         Value             `yaml:"manifest"` // mapping, template text, or {ref: file}
	Discovery        *Discovery        `yaml:"discovery"`
	Nested           []NestedDiscovery `yaml:"nested_discoveries"`
	RecreateOnChange bool              `yaml:"recreate_on_change"`
	Lifecycle        *Lifecycle        `yaml:"lifecycle"`
	// When is the condition on which the resource takes part in a run: without it the engine neither finds, applies nor
	// deletes the object. An addition to HyperFleet's language.
	When *When `yaml:"when"`

	// RefText is the content of the manifest's file, when the manifest is {ref: FILE}.
	RefText Text
}

// Kind returns the apiVersion and kind of the resource's object; false when a template makes them,
// or the manifest has none.
func (r *Resource) Kind() (apiVersion, kind string, ok bool) {
	text := r.RefText.Value
	switch m := r.Manifest.Value.(type) {
	case string:
		text = m
	case map[string]any:
		apiVersion, _ = m["apiVersion"].(string)
		kind, _ = m["kind"].(string)
	}
	if text != "" {
		apiVersion, _ = findTopLevelKey(text, "apiVersion")
		kind, _ = findTopLevelKey(text, "kind")
	}
	return apiVersion, kind, apiVersion != "" && kind != "" && !strings.Contains(apiVersion+kind, "{{")
}

// TransportConfig selects the transport of an object.
type TransportConfig struct {
	Place   Place
	Client  string          `yaml:"client"` // kubernetes or maestro
	Maestro *MaestroOptions `yaml:"maestro"`
}

// MaestroOptions of one resource.
type MaestroOptions struct {
	TargetCluster Text `yaml:"target_cluster"` // template
}

// Discovery finds an object: by its name or by labels.
type Discovery struct {
	Place       Place
	Namespace   Text       `yaml:"namespace"` // template; "*" is any
	ByName      Text       `yaml:"by_name"`   // template
	BySelectors *Selectors `yaml:"by_selectors"`
}

// Selectors are labels; keys and values are templates.
type Selectors struct {
	LabelSelector map[string]Text `yaml:"label_selector"`
}

// NestedDiscovery finds a manifest inside of a ManifestWork.
type NestedDiscovery struct {
	Place     Place
	Name      string     `yaml:"name"`
	Discovery *Discovery `yaml:"discovery"`
}

// Lifecycle has the conditions on which the engine creates an object and deletes it.
type Lifecycle struct {
	Place  Place
	Create *struct {
		When *When `yaml:"when"`
	} `yaml:"create"`
	Delete *struct {
		PropagationPolicy string `yaml:"propagationPolicy"`
		When              *When  `yaml:"when"`
	} `yaml:"delete"`
}

// When is a condition.
type When struct {
	Place      Place
	Expression Text `yaml:"expression"`
}

// Post is the last phase.
type Post struct {
	Let      Let          `yaml:"let"` // before the payloads; an addition to HyperFleet's language
	Payloads []Payload    `yaml:"payloads"`
	Actions  []PostAction `yaml:"post_actions"`
	Report   *Report      `yaml:"report"` // after the post actions; an addition to HyperFleet's language
}

// Payload is a document whose JSON becomes a param.
type Payload struct {
	Place    Place
	Name     string `yaml:"name"`
	When     *When  `yaml:"when"`
	Build    Value  `yaml:"build"`
	BuildRef Text   `yaml:"build_ref"` // a file that holds it instead
}

// PostAction is a log line or a call after the payloads.
type PostAction struct {
	Place   Place
	Name    string     `yaml:"name"`
	When    *When      `yaml:"when"`
	Log     *LogAction `yaml:"log"`
	APICall *APICall   `yaml:"api_call"`
}

// LoadTask reads a task config and the files that it refers to, relative to its own directory.
func LoadTask(file string) (*Task, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the task config: %w", err)
	}
	return ParseTask(file, data, os.ReadFile)
}

// ParseTask reads an AdapterTaskConfig, and with read the files that it refers to. The error is
// Findings: all unknown keys, duplicates, wrong types and missing values. Lint and New check
// expressions and templates.
func ParseTask(file string, data []byte, read func(name string) ([]byte, error)) (*Task, error) {
	t, findings := parseTask(file, data, read)
	if err := findings.err(); err != nil {
		return nil, err
	}
	return t, nil
}

func parseTask(file string, data []byte, read func(name string) ([]byte, error)) (*Task, Findings) {
	t := &Task{File: file}
	findings := decode(file, data, t)
	findings = append(findings, t.check()...)
	findings = append(findings, t.include(read)...)
	slices.SortStableFunc(findings, func(a, b Finding) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		return a.Line - b.Line
	})
	return t, findings
}

// maxFile is the largest file that a task config may refer to, in bytes.
const maxFile = 1 << 20

// include reads manifest.ref and build_ref files.
func (t *Task) include(read func(string) ([]byte, error)) (found Findings) {
	load := func(name string, at Place) (string, []byte, bool) {
		full := name
		if !filepath.IsAbs(full) {
			full = filepath.Join(filepath.Dir(t.File), full)
		}
		data, err := read(full)
		switch {
		case name == "":
			err = errors.New("the name of a file is missing")
		case err == nil && len(data) > maxFile:
			err = fmt.Errorf("%s is larger than %d bytes", full, maxFile)
		}
		if err != nil {
			found = append(found, Finding{File: at.File, Line: at.Line, Path: at.Path, Message: err.Error()})
		}
		return full, data, err == nil
	}
	for i := range t.Resources {
		r := &t.Resources[i]
		ref, isRef := refOf(r.Manifest.Value)
		if !isRef {
			continue
		}
		if full, data, ok := load(ref, r.Manifest.Place); ok {
			r.RefText = Text{string(data), Place{full, 1, ""}}
		}
	}
	for i := range t.Post.Payloads {
		p := &t.Post.Payloads[i]
		if p.BuildRef.Value == "" || p.Build.Set() {
			continue
		}
		if full, data, ok := load(p.BuildRef.Value, p.BuildRef.Place); ok {
			found = append(found, decodeValue(full, data, &p.Build)...)
		}
	}
	return found
}

// refOf returns the file of a manifest {ref: FILE}.
func refOf(manifest any) (string, bool) {
	m, ok := manifest.(map[string]any)
	if !ok || len(m) != 1 {
		return "", false
	}
	ref, ok := m["ref"].(string)
	return ref, ok
}

// decodeValue decodes the only document of a file into a Value.
func decodeValue(file string, data []byte, into *Value) Findings {
	d := newDecoder(file)
	root, found := parseYAML(file, data)
	if found != nil {
		return found
	}
	if root == nil {
		return Findings{{File: file, Message: "the file is empty"}}
	}
	*into = Value{Lines: map[string]int{}, Place: d.place(root, "")}
	into.Value = d.any(root, "", "", into.Lines)
	return d.findings
}

// decode takes a string, or a mapping with one key.
func (s *Source) decode(d *decoder, n *yaml.Node, path string) {
	s.Place = d.place(n, path)
	if strictyaml.IsNull(n) {
		return
	}
	if n.Kind == yaml.ScalarNode {
		s.From = Text{n.Value, s.Place}
		return
	}
	var m struct {
		APICall    *APICall    `yaml:"api_call"`
		Expression Text        `yaml:"expression"`
		File       *FileSource `yaml:"file"`
	}
	d.structure(n, reflect.ValueOf(&m).Elem(), path)
	s.APICall, s.Expression, s.File = m.APICall, m.Expression, m.File
}
