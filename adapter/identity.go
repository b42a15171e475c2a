package adapter

import (
	"fmt"
	"strconv"
)

// identity names an object in a cluster.
type identity struct{ APIVersion, Kind, Namespace, Name string }

func identify(o Object) identity {
	text := func(path string) string { s, _ := valueAt(o, path).(string); return s }
	return identity{text("apiVersion"), text("kind"), text("metadata.namespace"), text("metadata.name")}
}

// matches reports whether a search finds an object, not counting its kind.
func matches(s Search, o Object) bool {
	id := identify(o)
	if s.Namespace != "" && s.Namespace != "*" && s.Namespace != id.Namespace {
		return false
	}
	if s.Name != "" {
		return s.Name == id.Name
	}
	labels, _ := valueAt(o, "metadata.labels").(map[string]any)
	for key, value := range s.Labels {
		if labels[key] != value {
			return false
		}
	}
	return len(s.Labels) > 0
}

// latest is the object of the highest generation, the first of several.
func latest(objects []Object) Object {
	var best Object
	most := int64(-1)
	for _, o := range objects {
		if g, _ := generationOf(o); g > most {
			best, most = o, g
		}
	}
	return best
}

// generationOf reads the annotation, which every manifest must have.
func generationOf(o Object) (int64, error) {
	annotations, _ := valueAt(o, "metadata.annotations").(map[string]any)
	text, ok := annotations[generationAnnotation].(string)
	if !ok {
		return 0, fmt.Errorf("%s has no annotation %s", nameOf(o), generationAnnotation)
	}
	g, err := strconv.ParseInt(text, 10, 64)
	if err != nil || g < 1 {
		return 0, fmt.Errorf("the annotation %s of %s is %q and no generation", generationAnnotation, nameOf(o), text)
	}
	return g, nil
}
