package gitops

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// resolverFunc implements Resolver.
type resolverFunc func(Reference) (string, error)

func (f resolverFunc) Resolve(_ context.Context, r Reference) (string, error) { return f(r) }

func TestResolveReplacesReferences(t *testing.T) {
	byScheme := resolverFunc(func(r Reference) (string, error) {
		if r.Scheme == "file" {
			return "", errors.New("there is no such file")
		}
		return "<" + r.Scheme + " " + r.Path + " ${env://AGAIN}>", nil
	})
	for _, c := range []struct{ value, want, wrong string }{
		{value: "plain", want: "plain"},
		{value: "a${env://A}b${ssm:///x/y}", want: "a<env A ${env://AGAIN}>b<ssm /x/y ${env://AGAIN}>"},
		{value: "$${env://A} $$ $", want: "${env://A} $$ $"},
		{value: "${file:///x}", wrong: "resolving ${file:///x}: there is no such file"},
		{value: "${env://A", wrong: "without its }"},
		{value: "${vault://A}", wrong: "known are ssm, env and file"},
		{value: "${HOME}", wrong: "not a reference"},
	} {
		got, err := Resolve(t.Context(), c.value, byScheme)
		switch {
		case c.wrong == "" && (err != nil || got != c.want):
			t.Errorf("%s: %q, %v; want %q", c.value, got, err, c.want)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: the error is %v, want %q", c.value, err, c.wrong)
		}
	}
}
