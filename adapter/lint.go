package adapter

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"atoll.dev/internal/strictyaml"
)

// Lint checks config files and task files without running anything: structure, types, names,
// expressions, templates, calls and manifests. It returns all findings by file and line. It checks
// a task against the config in the same directory, or against the only config.
func Lint(names []string, read func(string) ([]byte, error)) Findings {
	var found Findings
	configs := map[string]*Config{}
	tasks := map[string][]byte{}
	for _, name := range names {
		data, err := read(name)
		if err != nil {
			found = append(found, Finding{File: name, Message: err.Error()})
			continue
		}
		if !isConfig(name, data) {
			tasks[name] = data
			continue
		}
		c, err := ParseConfig(name, data, nil)
		if wrong, ok := errors.AsType[Findings](err); ok {
			found = append(found, wrong...)
			continue
		}
		configs[name] = c
	}
	for _, name := range sortedKeys(tasks) {
		task, wrong := parseTask(name, tasks[name], read)
		c := newCompiler(configFor(name, configs), task, time.Now)
		c.compile()
		c.checkTransports()
		c.checkReports()
		found = append(append(append(found, wrong...), c.errors...), c.lintFindings...)
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line, strings.Compare(a.Path, b.Path))
	})
	return slices.Compact(found)
}

// LintFiles is Lint for files on disk.
func LintFiles(names ...string) Findings { return Lint(names, os.ReadFile) }

// Errors returns the findings without the warnings.
func (f Findings) Errors() Findings {
	return slices.DeleteFunc(slices.Clone(f), func(x Finding) bool { return x.Warning })
}

// isConfig reports whether a file is an AdapterConfig, not a task.
func isConfig(name string, data []byte) bool {
	root, _ := parseYAML(name, data)
	if root == nil {
		return bytes.Contains(data, []byte("\nclients:"))
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "adapter", "clients":
			return true
		}
	}
	return false
}

// configFor returns the config for a task file; nil without exactly one.
func configFor(task string, configs map[string]*Config) *Config {
	var near []*Config
	for _, name := range sortedKeys(configs) {
		if filepath.Dir(name) == filepath.Dir(task) || len(configs) == 1 {
			near = append(near, configs[name])
		}
	}
	if len(near) == 1 {
		return near[0]
	}
	return nil
}

var objectName = regexp.MustCompile(`\bresources(?:\.\??|\[\??["'])([A-Za-z_][A-Za-z0-9_]*)`)

// checkObjectNames checks resources.<name> in an expression.
func (c *compiler) checkObjectNames(t Text) {
	for _, m := range objectName.FindAllStringSubmatch(t.Value, -1) {
		if !c.found[m[1]] {
			c.lintf(t.Place, "there is no resource %q", m[1])
		}
	}
}

// checkURL checks a call's URL up to its first template.
func (c *compiler) checkURL(method string, t Text) {
	known, _, _ := strings.Cut(t.Value, "{{")
	u, err := url.Parse(known)
	switch {
	case t.Value == "":
	case strings.ContainsAny(strings.TrimSpace(known), " \t\n"):
		c.lintf(t.Place, "the URL has white space in it")
	case err != nil:
		c.lintf(t.Place, "%v", err)
	case u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https":
		c.lintf(t.Place, "%q is no scheme of CLM's", u.Scheme)
	case u.Scheme == "" && u.Host != "":
		c.lintf(t.Place, "a path begins with one slash")
	case strings.Contains(u.Path, "/../"):
		c.lintf(t.Place, "the URL leads upwards")
	}
	if method != "PUT" && isStatusReport(method, t.Value) {
		c.lintf(t.Place, "CLM takes status reports by PUT, not by %s", method)
	}
}

// checkManifest checks a manifest that is a mapping, and the manifests in a ManifestWork.
func (c *compiler) checkManifest(at Place, m map[string]any, within string) {
	report := func(format string, args ...any) {
		p := at
		if within != "" {
			p.Path = strictyaml.Join(p.Path, within)
		}
		c.lintf(p, format, args...)
	}
	if m == nil {
		if at.File != "" {
			report("a manifest is a mapping, a text, or {ref: FILE}")
		}
		return
	}
	for _, key := range []string{"apiVersion", "kind", "metadata.name"} {
		if s, _ := valueAt(m, key).(string); s == "" {
			report("the manifest has no %s", key)
		}
	}
	annotations, _ := valueAt(m, "metadata.annotations").(map[string]any)
	if _, ok := annotations[generationAnnotation].(string); !ok {
		report("the manifest has no annotation %s, which must be a string", generationAnnotation)
	}
	if inner, ok := valueAt(m, "spec.workload.manifests").([]any); ok && within == "" {
		for i, v := range inner {
			o, _ := v.(map[string]any)
			c.checkManifest(at, o, fmt.Sprintf("spec.workload.manifests[%d]", i))
		}
	}
}

// checkTransports checks that resources name the transport that the config sets up.
func (c *compiler) checkTransports() {
	if c.config == nil {
		return
	}
	for _, r := range c.task.Resources {
		maestro := r.Transport != nil && r.Transport.Client == "maestro"
		switch {
		case maestro && c.config.Clients.Maestro == nil:
			c.lintf(r.Place, "it goes to maestro, but %s has no clients.maestro", c.config.File)
		case !maestro && c.config.Clients.Maestro != nil:
			c.lintf(r.Place, "it goes to a Kubernetes API, but with clients.maestro in %s all go to maestro",
				c.config.File)
		}
	}
}

// checkReports checks the payloads of status reports.
func (c *compiler) checkReports() {
	for _, a := range c.task.Post.Actions {
		if a.APICall == nil || !isStatusReport(strings.ToUpper(a.APICall.Method), a.APICall.URL.Value) {
			continue
		}
		for _, p := range c.task.Post.Payloads {
			if build, ok := p.Build.Value.(map[string]any); ok && strings.Contains(a.APICall.Body.Value, "."+p.Name) {
				c.checkReportPayload(p, build)
			}
		}
	}
}

// checkReportPayload checks one status report: its members and its conditions.
func (c *compiler) checkReportPayload(p Payload, build map[string]any) {
	deletes := slices.ContainsFunc(c.task.Resources, func(r Resource) bool {
		return r.Lifecycle != nil && r.Lifecycle.Delete != nil
	})
	for _, key := range []string{"adapter", "conditions", "observed_generation", "observed_time"} {
		if _, ok := build[key]; !ok {
			c.lintf(p.Build.Place, "the status report has no %s", key)
		}
	}
	if s, ok := build["observed_generation"].(string); ok {
		at := p.Build.Place
		at.Line = cmp.Or(p.Build.Lines["observed_generation"], at.Line)
		c.lintf(at, "observed_generation is %q, a string; CLM wants a number: use an expression", s)
	}
	list, ok := build["conditions"].([]any)
	if !ok {
		return
	}
	there := map[any]bool{}
	for _, x := range list {
		condition, _ := x.(map[string]any)
		kind := condition["type"]
		if there[kind] {
			c.lintf(p.Build.Place, "the status report has the condition %v twice", kind)
		}
		if s, ok := kind.(string); ok {
			there[s] = true
		}
	}
	for _, kind := range []string{"Applied", "Available", "Health"} {
		if !there[kind] {
			c.lintf(p.Build.Place, "the status report has no condition %s", kind)
		}
	}
	if deletes && !there["Finalized"] {
		c.warn(p.Build.Place, "the task deletes, but reports no condition Finalized: its resources will never go")
	}
}
