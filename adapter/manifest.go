package adapter

import (
	"context"
	"errors"
	"fmt"
)

// renderManifest renders a resource's object, and checks the members that every object must have.
func (x *execution) renderManifest(ctx context.Context, r *resource) (Object, int64, error) {
	v, err := x.renderObject(ctx, r)
	if err != nil {
		return nil, 0, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, 0, fmt.Errorf("it is a %s and no mapping", kindOf(v))
	}
	if err := checkRequiredMembers(object); err != nil {
		return nil, 0, err
	}
	generation, err := generationOf(object)
	if err != nil {
		return nil, 0, err
	}
	if !r.maestro && !isWork(object) {
		return object, generation, nil
	}
	if !isWork(object) {
		return nil, 0, fmt.Errorf("%s is no ManifestWork, as maestro needs it", nameOf(object))
	}
	manifests, _ := valueAt(object, "spec.workload.manifests").([]any)
	if len(manifests) == 0 {
		return nil, 0, errors.New("spec.workload.manifests is empty")
	}
	for i, m := range manifests {
		inner, ok := m.(map[string]any)
		if !ok {
			return nil, 0, fmt.Errorf("spec.workload.manifests[%d] is a %s and no mapping", i, kindOf(m))
		}
		err := checkRequiredMembers(inner)
		if err == nil {
			_, err = generationOf(inner)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("spec.workload.manifests[%d]: %w", i, err)
		}
	}
	return object, generation, nil
}

func (x *execution) renderObject(ctx context.Context, r *resource) (any, error) {
	if r.text == nil {
		return r.manifest.build(ctx, x.frame(ctx))
	}
	body, err := r.text.render(x.scope)
	if err != nil {
		return nil, err
	}
	var v Value
	if found := decodeValue(r.text.place.File+" as rendered", []byte(body), &v); found != nil {
		return nil, found
	}
	return v.Value, nil
}

func isWork(o Object) bool {
	id := identify(o)
	return id.Kind == "ManifestWork" && id.APIVersion == "work.open-cluster-management.io/v1"
}

func nameOf(o Object) string {
	id := identify(o)
	if id.Kind == "" && id.Name == "" {
		return "the object"
	}
	return id.Kind + " " + id.Name
}

// checkRequiredMembers returns an error when an object lacks a required member.
func checkRequiredMembers(o Object) error {
	id := identify(o)
	for _, f := range []struct{ name, value string }{{"apiVersion", id.APIVersion}, {"kind", id.Kind},
		{"metadata.name", id.Name}} {
		if f.value == "" {
			return fmt.Errorf("%s has no %s", nameOf(o), f.name)
		}
	}
	return nil
}
