package gitops

import (
	"context"
	"fmt"
	"strings"
)

// Reference is a value that is not in Git: ${ssm:///infra/eu-west-1/account}. Render
// writes references as they are; the program that applies the rendered files resolves them.
type Reference struct {
	Scheme string // ssm, env or file
	Path   string // what follows the scheme and "://": /infra/eu-west-1/account
}

func (r Reference) String() string { return "${" + r.Scheme + "://" + r.Path + "}" }

// part is a piece of a text: a reference, or a literal when reference is nil.
type part struct {
	literal   string
	reference *Reference
}

// splitReferences returns the parts of a text. "$${" is a literal "${".
func splitReferences(value string) ([]part, error) {
	var parts []part
	for rest := value; rest != ""; {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			return append(parts, part{literal: rest}), nil
		}
		if escaped, ok := strings.CutSuffix(before, "$"); ok {
			parts, rest = append(parts, part{literal: escaped + "${"}), after
			continue
		}
		inner, next, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf("%q has ${ without its }; write $${ for the text itself", value)
		}
		reference, err := parseReference(inner)
		if err != nil {
			return nil, err
		}
		parts, rest = append(parts, part{literal: before}, part{reference: &reference}), next
	}
	return parts, nil
}

// parseReference reads the text between "${" and "}".
func parseReference(inner string) (Reference, error) {
	scheme, path, ok := strings.Cut(inner, "://")
	switch {
	case !ok:
		return Reference{}, fmt.Errorf("${%s} is not a reference such as ${env://NAME}; write $${%s} for the text itself",
			inner, inner)
	case scheme != "ssm" && scheme != "env" && scheme != "file":
		return Reference{}, fmt.Errorf("${%s} has the scheme %s; known are ssm, env and file", inner, scheme)
	case strings.Trim(path, "/ ") == "":
		return Reference{}, fmt.Errorf("${%s} names nothing", inner)
	}
	return Reference{scheme, path}, nil
}

// References returns the references in a text, in their order. It fails when a
// reference is malformed or has an unknown scheme. "$${" is a literal "${".
func References(value string) ([]Reference, error) {
	parts, err := splitReferences(value)
	if err != nil {
		return nil, err
	}
	var found []Reference
	for _, p := range parts {
		if p.reference != nil {
			found = append(found, *p.reference)
		}
	}
	return found, nil
}

// Resolver finds the value of a reference.
type Resolver interface {
	// Resolve returns the value. An error says what is missing, and contains no value.
	Resolve(ctx context.Context, r Reference) (string, error)
}

// Resolve returns a text with its references replaced by their values. References
// within a value are not resolved.
func Resolve(ctx context.Context, value string, by Resolver) (string, error) {
	parts, err := splitReferences(value)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, p := range parts {
		if p.reference == nil {
			b.WriteString(p.literal)
			continue
		}
		v, err := by.Resolve(ctx, *p.reference)
		if err != nil {
			return "", fmt.Errorf("resolving %s: %w", p.reference, err)
		}
		b.WriteString(v)
	}
	return b.String(), nil
}
