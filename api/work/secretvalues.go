package work

import "strings"

// Mask is shown in the place of a value of a Secret.
const Mask = "***"

// The kinds of objects with the contents of Secrets.
const (
	secretKind     = "Secret"
	secretListKind = "SecretList"
)

// IsSecretKind reports whether a kind is that of Secrets. Clients of Kubernetes also resolve a
// kind in lower case.
func IsSecretKind(kind any) bool {
	text, ok := kind.(string)
	return ok && strings.EqualFold(text, secretKind)
}

// isKind reports whether an object with the members kind and apiVersion is of a kind of Kubernetes' core. One without
// apiVersion counts: it is better to hide too much.
func isKind(kind, version, want string) bool {
	return strings.EqualFold(kind, want) && (version == "" || version == "v1")
}

func objectIsKind(object map[string]any, want string) bool {
	kind, _ := object["kind"].(string)
	version, _ := object["apiVersion"].(string)
	return isKind(kind, version, want)
}

// EachSecret calls f with every Secret in decoded JSON, at any depth: in works, in lists, in manifests that are works
// themselves. The items of a SecretList are Secrets, also those without a kind, as an API server lists them. f may
// change the Secret.
func EachSecret(v any, f func(secret map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			EachSecret(e, f)
		}
	case map[string]any:
		if objectIsKind(v, secretKind) {
			f(v)
		}
		if items, ok := v["items"].([]any); ok && objectIsKind(v, secretListKind) {
			for _, item := range items {
				if item, ok := item.(map[string]any); ok && !objectIsKind(item, secretKind) {
					f(item)
				}
			}
		}
		for _, e := range v {
			EachSecret(e, f)
		}
	}
}

// HasSecret reports whether EachSecret finds a Secret.
func HasSecret(v any) (found bool) {
	EachSecret(v, func(map[string]any) { found = true })
	return found
}

// MaskSecrets replaces with Mask every value of the Secrets that EachSecret finds.
func MaskSecrets(v any) {
	EachSecret(v, func(secret map[string]any) {
		for _, member := range []string{"data", "stringData"} {
			if values, ok := secret[member].(map[string]any); ok {
				for k := range values {
					values[k] = Mask
				}
			} else if secret[member] != nil {
				secret[member] = Mask
			}
		}
		if meta, ok := secret["metadata"].(map[string]any); ok {
			if annotations, ok := meta["annotations"].(map[string]any); ok && annotations[LastApplied] != nil {
				annotations[LastApplied] = Mask
			}
		}
	})
}
