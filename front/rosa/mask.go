package rosa

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"atoll.dev/api/work"
	workv1 "open-cluster-management.io/api/work/v1"
)

// mask replaces the values of Secrets. A Secret in a work is payload of its user
// and is not shown again (I11).
const mask = work.Mask

// maskSecrets returns a document with every value of every Secret masked. It
// returns a document without Secrets as it is; nearly all have none.
func maskSecrets(doc []byte) ([]byte, error) {
	if !work.MayHaveSecret(doc) {
		return doc, nil
	}
	v, err := decodeExact(doc)
	if err != nil {
		return nil, err
	}
	work.MaskSecrets(v)
	maskStatuses(v)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("masking secrets: %w", err)
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// hasMask reports whether a Secret in a document has a masked value. Such a
// document was read from this API and would destroy the real value.
func hasMask(doc []byte) (found bool) {
	v, err := decodeExact(doc)
	if err != nil {
		return false // Maestro reports what cannot be decoded
	}
	work.EachSecret(v, func(secret map[string]any) {
		for _, member := range []string{"data", "stringData"} {
			values, _ := secret[member].(map[string]any)
			for _, value := range values {
				found = found || value == mask
			}
		}
	})
	return found
}

// maskStatuses masks what statuses have from the content of Secrets: the feedback values of
// Secrets, the messages of their conditions that rules made or that quote a value, and whole
// Secrets in other feedback values. Agents no longer report these; a status of an earlier release
// may still have them.
func maskStatuses(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			maskStatuses(e)
		}
	case map[string]any:
		if meta, ok := v["resourceMeta"].(map[string]any); ok && (meta["group"] == nil || meta["group"] == "") &&
			(meta["resource"] == "secrets" || work.IsSecretKind(meta["kind"])) {
			maskStatus(v)
		}
		if text, ok := v["jsonRaw"].(string); ok {
			v["jsonRaw"] = maskFeedback(text)
		}
		for _, e := range v {
			maskStatuses(e)
		}
	}
}

// maskFeedback masks the Secrets in a feedback value that is JSON. An agent of an earlier release
// reads whole Secrets out of objects with Secrets inside.
func maskFeedback(value string) string {
	v, err := decodeExact([]byte(value))
	if err != nil || !work.HasSecret(v) {
		return value
	}
	work.MaskSecrets(v)
	masked, err := json.Marshal(v)
	if err != nil {
		return mask // not reached: v was decoded
	}
	return string(masked)
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
