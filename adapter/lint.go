package adapter

import (
	"fmt"
	"strings"
)

// url checks a call's URL as far as it is known before it is rendered.
func (c *compiler) url(t Text) {
	if strings.ContainsAny(strings.Split(t.Value, "{{")[0], " \t\n") {
		c.doubt(t.Place, "the URL has white space in it")
	}
}

// manifest checks a manifest that is written as a mapping.
func (c *compiler) manifest(at Place, m map[string]any, within string) {
	say := func(format string, args ...any) {
		p := at
		p.Path = join(p.Path, within)
		c.doubt(p, format, args...)
	}
	if m == nil {
		say("a manifest is a mapping")
		return
	}
	for _, key := range []string{"apiVersion", "kind", "metadata.name"} {
		if s, _ := dig(m, key).(string); s == "" {
			say("the manifest has no %s", key)
		}
	}
	annotations, _ := dig(m, "metadata.annotations").(map[string]any)
	if _, ok := annotations[generationAnnotation]; !ok {
		say("the manifest has no annotation %s", generationAnnotation)
	}
	if inner, ok := dig(m, "spec.workload.manifests").([]any); ok && within == "" {
		for i, v := range inner {
			o, _ := v.(map[string]any)
			c.manifest(at, o, fmt.Sprintf("spec.workload.manifests[%d]", i))
		}
	}
}
