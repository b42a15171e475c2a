package hosting

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateChart = flag.Bool("update", false, "write what is generated into deploy/charts/management-cluster")

// TestTheChartGivesTheRightsOfBootstrap compares the templates of the chart with the objects that Bootstrap applies, so
// that hosting has the same rights by both ways.
func TestTheChartGivesTheRightsOfBootstrap(t *testing.T) {
	// Without its kinds or its namespace, a cluster loses every HostedCluster or the volume with every plane.
	const kept = "metadata:\n" +
		"  annotations: {helm.sh/resource-policy: keep, argocd.argoproj.io/sync-options: 'Prune=false,Delete=false'}\n"
	const comment = "{{- /* Made from hosting.Manifests by `go test ./hosting -run Chart -update`. */ -}}\n"
	kinds := comment + "{{- if and .Values.hosting.enabled .Values.hosting.crds }}\n"
	rights := comment + "{{- if .Values.hosting.enabled }}\n"
	for document := range bytes.SplitSeq(Manifests(), []byte("---\n")) {
		text := "---\n" + strings.TrimSuffix(string(document), "\n") + "\n"
		if strings.Contains(text, "\nkind: CustomResourceDefinition\n") || strings.Contains(text, "\nkind: Namespace\n") {
			text = strings.Replace(text, "metadata:\n", kept, 1)
		}
		switch {
		case strings.Contains(text, "kind: CustomResourceDefinition\n"):
			kinds += text
		case strings.Contains(text, "name: atoll-hosting-renewal\n"): // a kubelet renews the token of a pod
		default:
			rights += strings.ReplaceAll(text, "managed-by: atoll", "managed-by: {{ .Release.Service }}")
		}
	}
	for file, want := range map[string]string{"hosting-crds.yaml": kinds, "hosting-rbac.yaml": rights} {
		path := filepath.Join("../deploy/charts/management-cluster/atoll/templates", file)
		want += "{{- end }}\n"
		if *updateChart {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if difference := cmp.Diff(want, string(have)); difference != "" {
			t.Errorf("%s is not as Bootstrap has it; run the test with -update (-want +have):\n%s", file, difference)
		}
	}
}
