package agent

import (
	"bytes"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Manifests returns what Bootstrap applies, as a stream of YAML documents, for
// people who review it or keep it in Git.
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
