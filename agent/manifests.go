package agent

import (
	"bytes"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Manifests returns the objects that Bootstrap applies, as a stream of YAML documents, for
// a review or a Git repository.
func Manifests(o BootstrapOptions) ([]byte, error) {
	objects, err := bootstrapObjects(o.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("bootstrapping: %w", err)
	}
	var b bytes.Buffer
	for _, obj := range objects {
		data, err := yaml.Marshal(obj.object.Object)
		if err != nil {
			return nil, fmt.Errorf("bootstrapping: %s %s: %w", obj.object.GetKind(), obj.object.GetName(), err)
		}
		b.WriteString("---\n")
		b.Write(data)
	}
	return b.Bytes(), nil
}
