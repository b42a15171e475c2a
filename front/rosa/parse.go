package rosa

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/internal/rest"
)

// maxMetadata bounds name, labels and annotations of a ManifestWork together: they
// travel as one string of MQTT, which has at most 65,535 bytes.
const maxMetadata = 60 << 10

// manifestWork has the members of a ManifestWork that this API reads. Manifests
// stay as they are.
type manifestWork struct {
	Metadata struct {
		Name         string            `json:"name"`
		GenerateName string            `json:"generateName"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Workload struct {
			Manifests []json.RawMessage `json:"manifests"`
		} `json:"workload"`
		DeleteOption    *workv1.DeleteOption          `json:"deleteOption"`
		ManifestConfigs []workv1.ManifestConfigOption `json:"manifestConfigs"`
		Executor        *workv1.ManifestWorkExecutor  `json:"executor"`
	} `json:"spec"`
}

// parseWork reads the body of POST or PUT as a bundle without an id. Its Consumer
// is empty when the request names no management cluster. Maestro checks the
// manifests.
func parseWork(body []byte) (maestroclient.Bundle, error) {
	var b maestroclient.Bundle
	var req platform.WorkRequest
	if err := rest.DecodeJSON(body, &req); err != nil {
		return b, err
	}
	if req.ClusterID != "" && !isManagementClusterName(req.ClusterID) {
		return b, rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
			"cluster_id %s is not the name of a management cluster; GET /api/v0/management_clusters lists those "+
				"there are", quote(req.ClusterID))
	}
	b.Consumer = work.Consumer(req.ClusterID)
	data := bytes.TrimSpace(req.Data)
	if len(data) == 0 || string(data) == "null" {
		return b, rest.Errorf(http.StatusBadRequest, codeMissingData, "data is missing; it is the ManifestWork")
	}
	if data[0] != '{' {
		return b, rest.Errorf(http.StatusBadRequest, codeInvalidData, "data is not an object; it is the ManifestWork")
	}
	var typed struct {
		APIVersion json.RawMessage `json:"apiVersion"`
		Kind       json.RawMessage `json:"kind"`
	}
	if err := json.Unmarshal(data, &typed); err != nil {
		return b, invalidWork("data cannot be read: %s", err)
	}
	if string(typed.APIVersion) != `"`+workv1.GroupVersion.String()+`"` || string(typed.Kind) != `"ManifestWork"` {
		return b, rest.Errorf(http.StatusBadRequest, codeInvalidType,
			"data is of apiVersion %s and kind %s; it must be of apiVersion %q and kind %q",
			shorten(typed.APIVersion), shorten(typed.Kind), workv1.GroupVersion.String(), "ManifestWork")
	}
	var mw manifestWork
	if err := json.Unmarshal(data, &mw); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return b, invalidWork("data.%s is a JSON %s, which cannot stand there", e.Field, e.Value)
		}
		return b, invalidWork("data cannot be read as a ManifestWork: %s", err)
	}
	b.Metadata = metav1.ObjectMeta{
		Name: mw.Metadata.Name, Labels: mw.Metadata.Labels, Annotations: mw.Metadata.Annotations,
	}
	b.Spec = work.Bundle{
		Manifests:    mw.Spec.Workload.Manifests,
		DeleteOption: mw.Spec.DeleteOption, ManifestConfigs: mw.Spec.ManifestConfigs, Executer: mw.Spec.Executor,
	}
	return b, checkWork(b, mw.Metadata.GenerateName)
}

func checkWork(b maestroclient.Bundle, generateName string) error {
	if b.Metadata.Name == "" && generateName != "" {
		return invalidWork(
			"data.metadata.generateName is not possible, as a work's id follows from its name; set data.metadata.name")
	}
	if b.Metadata.Name == "" {
		return invalidWork("data.metadata.name is missing")
	}
	if problems := validation.IsDNS1123Subdomain(b.Metadata.Name); len(problems) > 0 {
		return invalidWork("data.metadata.name %s is not possible: %s", quote(b.Metadata.Name), problems[0])
	}
	meta, err := json.Marshal(b.Metadata)
	if err != nil {
		return fmt.Errorf("measuring metadata: %w", err)
	}
	if len(meta) > maxMetadata {
		return invalidWork("data.metadata has %d bytes, at most %d are possible; remove annotations or labels",
			len(meta), maxMetadata)
	}
	if len(b.Spec.Manifests) == 0 {
		return invalidWork("data.spec.workload.manifests is empty; a work needs at least one manifest")
	}
	if i, found := work.SecretRules(b.Spec.ManifestConfigs); found {
		return invalidWork("data.spec.manifestConfigs[%d]: %s; remove its rules", i, work.SecretRulesRefused)
	}
	for i, m := range b.Spec.Manifests {
		if m = bytes.TrimSpace(m); len(m) == 0 || m[0] != '{' {
			return invalidWork("data.spec.workload.manifests[%d] is not an object", i)
		}
		if work.MayHaveSecret(m) && hasMask(m) {
			return invalidWork(
				"data.spec.workload.manifests[%d] has a Secret with the value %q, which stands in answers for what "+
					"is not shown; send the real one", i, mask)
		}
	}
	return nil
}

func invalidWork(format string, args ...any) *rest.Error {
	return rest.Errorf(http.StatusBadRequest, codeInvalidWork, format, args...)
}

// shorten returns a member of the request for a message: cut when it is long,
// "(missing)" when it is empty.
func shorten(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "(missing)"
	}
	if len(raw) > 100 {
		return quote(string(raw))
	}
	return string(raw)
}
