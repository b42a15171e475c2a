package rosa

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Secrets that users put into their works are payload, and are not shown
// again (I11). mask stands for their values.
const mask = "***"

// secretKind is in the text of every document that has a Secret: PostgreSQL
// and encoding/json write letters as they are.
const secretKind = `"Secret"`

// lastApplied is where kubectl keeps a copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// maskSecrets returns doc with the values of every Secret in it masked. A
// document without any, which is nearly every one, is returned as it is.
func maskSecrets(doc []byte) ([]byte, error) {
	if !bytes.Contains(doc, []byte(secretKind)) {
		return doc, nil
	}
	v, err := decodeExact(doc)
	if err != nil {
		return nil, err
	}
	eachSecret(v, func(secret map[string]any) {
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
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("masking secrets: %w", err)
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// holdsMask says whether a Secret in doc has a masked value, as in a document
// that was got and is put back.
func holdsMask(doc []byte) (found bool) {
	v, err := decodeExact(doc)
	if err != nil {
		return false // said elsewhere
	}
	eachSecret(v, func(secret map[string]any) {
		for _, member := range []string{"data", "stringData"} {
			values, _ := secret[member].(map[string]any)
			for _, value := range values {
				found = found || value == mask
			}
		}
	})
	return found
}

// eachSecret finds Secrets at any depth: in works, in lists, in manifests that
// are works themselves.
func eachSecret(v any, f func(map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			eachSecret(e, f)
		}
	case map[string]any:
		if v["kind"] == "Secret" && v["apiVersion"] == "v1" {
			f(v)
		}
		for _, e := range v {
			eachSecret(e, f)
		}
	}
}

// decodeExact keeps numbers as they are written.
func decodeExact(doc []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("looking for secrets: %w", err)
	}
	return v, nil
}
