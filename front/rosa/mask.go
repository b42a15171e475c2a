package rosa

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	workv1 "open-cluster-management.io/api/work/v1"
)

// mask replaces the values of Secrets. A Secret in a work is payload of its user
// and is not shown again (I11).
const mask = "***"

// lastApplied is the annotation in which kubectl keeps a copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// maskSecrets returns a document with every value of every Secret masked. It
// returns a document without Secrets as it is; nearly all have none.
func maskSecrets(doc []byte) ([]byte, error) {
	if !mayHaveSecret(doc) {
		return doc, nil
	}
	v, err := decodeExact(doc)
	if err != nil {
		return nil, err
	}
	forEachSecret(v, func(secret map[string]any) {
		for _, member := range []string{"data", "stringData"} {
			if values, ok := secret[member].(map[string]any); ok {
				for k := range values {
					values[k] = mask
				}
			} else if secret[member] != nil {
				secret[member] = mask
			}
		}
		if meta, ok := secret["metadata"].(map[string]any); ok {
			if annotations, ok := meta["annotations"].(map[string]any); ok && annotations[lastApplied] != nil {
				annotations[lastApplied] = mask
			}
		}
	})
	maskStatuses(v)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("masking secrets: %w", err)
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// mayHaveSecret reports whether a JSON document can have a Secret or the status of one: it has a
// text that begins with "secret", in whatever case, or a letter that is written as an escape. It
// is cheaper than decoding the document.
func mayHaveSecret(doc []byte) bool {
	const quoted, escape = `"secret`, `\u00`
	for rest := doc; ; rest = rest[1:] {
		i := bytes.IndexByte(rest, '"')
		if i < 0 || len(rest)-i < len(quoted) {
			break
		}
		rest = rest[i:]
		if bytes.EqualFold(rest[:len(quoted)], []byte(quoted)) {
			return true
		}
	}
	for rest := doc; ; {
		i := bytes.Index(rest, []byte(escape))
		if i < 0 || i+len(escape) == len(rest) {
			return false
		}
		rest = rest[i+len(escape):]
		if rest[0] >= '4' && rest[0] <= '7' { // ASCII letters are 0041 to 007a
			return true
		}
	}
}

// hasMask reports whether a Secret in a document has a masked value. Such a
// document was read from this API and would destroy the real value.
func hasMask(doc []byte) (found bool) {
	v, err := decodeExact(doc)
	if err != nil {
		return false // Maestro reports what cannot be decoded
	}
	forEachSecret(v, func(secret map[string]any) {
		for _, member := range []string{"data", "stringData"} {
			values, _ := secret[member].(map[string]any)
			for _, value := range values {
				found = found || value == mask
			}
		}
	})
	return found
}

// forEachSecret calls f with every Secret at any depth: in works, in lists, in
// manifests that are works themselves.
func forEachSecret(v any, f func(map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			forEachSecret(e, f)
		}
	case map[string]any:
		if isSecretKind(v["kind"]) && v["apiVersion"] == "v1" {
			f(v)
		}
		for _, e := range v {
			forEachSecret(e, f)
		}
	}
}

// isSecretKind reports whether a kind is that of Secrets. Clients of Kubernetes also resolve a
// kind in lower case.
func isSecretKind(kind any) bool {
	text, ok := kind.(string)
	return ok && strings.EqualFold(text, "Secret")
}

// maskStatuses masks what the statuses of Secrets have from their content: the feedback
// values, and the messages of conditions that rules made or that quote a value. Agents no longer
// report these; a status of an earlier release may still have them.
func maskStatuses(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			maskStatuses(e)
		}
	case map[string]any:
		if meta, ok := v["resourceMeta"].(map[string]any); ok && (meta["group"] == nil || meta["group"] == "") &&
			(meta["resource"] == "secrets" || isSecretKind(meta["kind"])) {
			maskStatus(v)
		}
		for _, e := range v {
			maskStatuses(e)
		}
	}
}

// agentConditions are the types of conditions whose messages the agent writes.
var agentConditions = map[any]bool{
	workv1.ManifestApplied: true, workv1.ManifestAvailable: true, "StatusFeedbackSynced": true, "Contested": true,
}

// maskStatus masks the status of one Secret in a work.
func maskStatus(status map[string]any) {
	if feedback, ok := status["statusFeedback"].(map[string]any); ok && feedback["values"] != nil {
		feedback["values"] = []any{}
	}
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && !isSafeCondition(c) {
			c["message"] = mask
		}
	}
}

// isSafeCondition reports whether the message of a Secret's condition has none of its values. An
// API server that merges a Secret by server-side apply quotes a value of a wrong type: "expected
// string, got ...".
func isSafeCondition(condition map[string]any) bool {
	message, _ := condition["message"].(string)
	return agentConditions[condition["type"]] && !strings.Contains(message, ", got ")
}

// decodeExact decodes JSON and keeps numbers as they are written.
func decodeExact(doc []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("looking for secrets: %w", err)
	}
	return v, nil
}
