package transporttest

import (
	"testing"

	"atoll.dev/adapter"
)

func TestMemory(t *testing.T) {
	m := NewMemory()
	object := func(name, value string) adapter.Object {
		return adapter.Object{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "one"},
			"data": map[string]any{"k": value},
		}
	}
	Run(t, func(*testing.T) Subject {
		return Subject{
			Transport: m, Target: "here", Object: object,
			Value: func(o adapter.Object) string { return text(o["data"].(map[string]any)["k"]) },
			Modify: func(t testing.TB, name, value string) {
				if !m.Change("here", object(name, ""), func(o adapter.Object) bool {
					o["data"] = map[string]any{
						"k": value}
					return true
				}) {
					t.Errorf("no %s", name)
				}
			},
			Remove: func(t testing.TB, name string) {
				if !m.Change("here", object(name, ""), func(adapter.Object) bool { return false }) {
					t.Errorf("no %s", name)
				}
			},
		}
	})
}
