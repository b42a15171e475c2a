package agent

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var updateChart = flag.Bool("update", false, "write what is generated into deploy/charts/agent")

// The chart gives the agent the rights of Bootstrap: its template is built from Bootstrap's
// objects, and the variable parts are values.
func TestTheChartGivesTheRightsOfBootstrap(t *testing.T) {
	const name, namespace, group = "name-of-the-release", "namespace-of-the-release", "groups.of.the.release"
	objects, err := bootstrapObjects(BootstrapOptions{Name: name, Namespace: namespace, APIGroups: []string{
		group}}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.WriteString(
		"{{- /* Made from agent/bootstrap.go by `go test ./agent -run Chart -update`. */ -}}\n{{- if .Values.rbac }}\n")
	for _, obj := range objects {
		switch obj.object.GetKind() {
		case "CustomResourceDefinition", // in crds/
			"Namespace": // helm's --create-namespace
			continue
		}
		if strings.HasSuffix(obj.object.GetName(), renewal) { // a kubelet renews the token of a pod
			continue
		}
		data, err := yaml.Marshal(obj.object.Object)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n")
		b.Write(data)
	}
	b.WriteString("{{- end }}\n")
	text := strings.NewReplacer(
		"  - "+group+"\n", "  {{- range .Values.apiGroups }}\n  - {{ . | quote }}\n  {{- end }}\n",
		name, "{{ .Values.serviceAccount }}", namespace, "{{ .Release.Namespace }}",
		"managed-by: atoll", "managed-by: {{ .Release.Service }}",
	).Replace(b.String())
	golden(t, "templates/rbac.yaml", text)
	// Argo CD would delete the kind with the Application, and every AppliedManifestWork with the kind.
	golden(t, "crds/appliedmanifestworks.crd.yaml", strings.Replace(string(appliedWorksCRD), "metadata:\n",
		"metadata:\n  annotations: {helm.sh/resource-policy: keep, "+
			"argocd.argoproj.io/sync-options: 'Prune=false,Delete=false'}\n", 1))

	data, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		APIGroups []string `json:"apiGroups"`
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(values.APIGroups, DefaultAPIGroups) {
		t.Errorf("the chart's API groups are not the agent's (-agent +chart):\n%s", cmp.Diff(DefaultAPIGroups,
			values.APIGroups))
	}
}

const chart = "../deploy/charts/agent"

func golden(t *testing.T, file, want string) {
	t.Helper()
	path := filepath.Join(chart, file)
	if *updateChart {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is not what agent/bootstrap.go says; run with -update (-want +file):\n%s", path, diff)
	}
}

func TestManifestsAreValidYAML(t *testing.T) {
	data, err := Manifests(BootstrapOptions{APIGroups: []string{"", "apps"}})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, doc := range strings.Split(string(data), "---\n")[1:] {
		var obj struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(doc), &obj); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, obj.Kind)
	}
	want := []string{"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding",
		"Role", "RoleBinding"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(string(data), "hypershift") {
		t.Error("a group that was not asked for is in it")
	}
}
