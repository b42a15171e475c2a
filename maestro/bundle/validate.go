package bundle

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	k8svalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
)

// maxManifests is the limit of the bytes of all manifests of a bundle together, so that
// every broker takes it in one message.
const maxManifests = 500 * 1024

// CheckData checks the data of a source's request: CheckHeldData, and no rules that read
// Secrets.
func CheckData(raw json.RawMessage) error {
	data, err := decodeData(raw)
	if err != nil {
		return err
	}
	if i, found := work.SecretRules(data.ManifestConfigs); found {
		return apierror.Invalid("manifestConfigs[%d]: %s; remove its rules", i, work.SecretRulesRefused)
	}
	return nil
}

// CheckHeldData refuses data that no agent could apply, or that PostgreSQL cannot store.
// Its errors name the member and the remedy. It accepts rules that read Secrets: an agent
// may hold a work of an earlier release with such rules, and the agent itself refuses
// them.
func CheckHeldData(raw json.RawMessage) error {
	_, err := decodeData(raw)
	return err
}

// decodeData decodes the data of a bundle, with the types of all known members, and checks it as CheckHeldData does.
func decodeData(raw json.RawMessage) (*work.Bundle, error) {
	var data work.Bundle
	if err := rest.DecodeJSON(raw, &data); err != nil {
		return nil, apierror.Invalid("the data of the event cannot be read: %s", apierror.ReasonOf(err))
	}
	if len(data.Manifests) == 0 {
		return nil, apierror.Invalid("manifests is empty; a bundle needs at least one manifest")
	}
	size := 0
	seen := map[string]int{}
	for i, m := range data.Manifests {
		size += len(m)
		identity, err := checkManifest(m)
		if err != nil {
			return nil, apierror.Invalid("manifests[%d]: %s", i, err)
		}
		if first, twice := seen[identity]; twice {
			return nil, apierror.Invalid(
				"manifests[%d] is the same object as manifests[%d]: %s; name each object once",
				i,
				first,
				identity,
			)
		}
		seen[identity] = i
	}
	if size > maxManifests {
		return nil, apierror.Invalid(
			"the manifests have %d bytes, at most %d are possible; split the work",
			size,
			maxManifests,
		)
	}
	return &data, nil
}

func checkManifest(raw json.RawMessage) (identity string, err error) {
	var m struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name            string            `json:"name"`
			GenerateName    string            `json:"generateName"`
			Namespace       string            `json:"namespace"`
			ResourceVersion string            `json:"resourceVersion"`
			Labels          map[string]string `json:"labels"`
			Annotations     map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return "", fmt.Errorf("not a Kubernetes object: %w", err)
	}
	if err := work.CheckMemberNames(raw); err != nil {
		return "", err
	}
	path := field.NewPath("metadata")
	switch {
	case m.APIVersion == "":
		return "", fmt.Errorf("apiVersion is missing")
	case strings.Count(m.APIVersion, "/") > 1:
		return "", fmt.Errorf("apiVersion %q is not <group>/<version>", m.APIVersion)
	case m.Kind == "":
		return "", fmt.Errorf("kind is missing")
	case m.Metadata.GenerateName != "":
		return "", fmt.Errorf("metadata.generateName is not possible; set metadata.name")
	case m.Metadata.Name == "":
		return "", fmt.Errorf("metadata.name is missing")
	case m.Metadata.ResourceVersion != "":
		return "", fmt.Errorf("metadata.resourceVersion is not possible; remove it")
	}
	if m.Metadata.Namespace != "" {
		if msgs := k8svalidation.IsDNS1123Label(m.Metadata.Namespace); len(msgs) > 0 {
			return "", fmt.Errorf("metadata.namespace: %s", msgs[0])
		}
	}
	if errs := metav1validation.ValidateLabels(m.Metadata.Labels, path.Child("labels")); len(errs) > 0 {
		return "", errs[0]
	}
	if errs := validation.ValidateAnnotations(m.Metadata.Annotations, path.Child("annotations")); len(errs) > 0 {
		return "", errs[0]
	}
	return strings.Join([]string{m.APIVersion, m.Kind, m.Metadata.Namespace, m.Metadata.Name}, " "), nil
}

// CheckMetadata reads the ObjectMeta of the source's work. It returns nil when
// there is none.
func CheckMetadata(text string) (json.RawMessage, error) {
	if text == "" {
		return nil, nil
	}
	raw := json.RawMessage(text)
	var m metav1.ObjectMeta
	if err := rest.DecodeJSON(raw, &m); err != nil {
		return nil, apierror.Invalid("extension metadata cannot be read as an ObjectMeta: %s", apierror.ReasonOf(err))
	}
	if errs := metav1validation.ValidateLabels(m.Labels, field.NewPath("metadata", "labels")); len(errs) > 0 {
		return nil, apierror.Invalid("extension %s", errs[0])
	}
	if m.Name != "" {
		if msgs := k8svalidation.IsDNS1123Subdomain(m.Name); len(msgs) > 0 {
			return nil, apierror.Invalid("extension metadata: name %q: %s", m.Name, msgs[0])
		}
	}
	return raw, nil
}

// CheckID returns a 400 unless id can be the id of a bundle: an RFC 1123 subdomain.
func CheckID(id work.ID) error {
	if id == "" {
		return apierror.Invalid("extension %s is missing; it is the id of the bundle", work.ExtResourceID)
	}
	if msgs := k8svalidation.IsDNS1123Subdomain(string(id)); len(msgs) > 0 {
		return apierror.Invalid("extension %s %q: %s", work.ExtResourceID, id, msgs[0])
	}
	return nil
}

// CheckConsumerName returns a 400 unless name is an RFC 1123 label.
func CheckConsumerName(name work.Consumer) error {
	if msgs := k8svalidation.IsDNS1123Label(string(name)); len(msgs) > 0 {
		return apierror.Invalid("the name %q of a consumer is not possible: %s", name, msgs[0])
	}
	return nil
}

// CheckConsumerLabels returns a 400 for the first of the labels, by name, that Kubernetes does not allow.
func CheckConsumerLabels(labels map[string]string) error {
	// In order, so that the same fault has the same text.
	names := make([]string, 0, len(labels))
	for k := range labels {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		if errs := metav1validation.ValidateLabels(map[string]string{k: labels[k]}, field.NewPath("labels")); len(
			errs) > 0 {
			return apierror.Invalid("%s", errs[0])
		}
	}
	return nil
}
