package rosa

import (
	"encoding/json"
	"fmt"

	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/maestro"
	"atoll.dev/api/platform"
)

// The paths of works in answers. They leave the stage out, as the contract's
// do.
const workPath = "/api/v0/work/"

// workOf shows a bundle of Maestro as a work, secrets masked.
func workOf(bundle []byte) (platform.Work, error) {
	var b maestro.ResourceBundle
	if err := json.Unmarshal(bundle, &b); err != nil {
		return platform.Work{}, fmt.Errorf("reading a bundle of Maestro: %w", err)
	}
	return viewOf(b)
}

func viewOf(b maestro.ResourceBundle) (platform.Work, error) {
	status, err := statusOf(b.Status)
	if err != nil {
		return platform.Work{}, fmt.Errorf("reading the status of bundle %s: %w", b.ID, err)
	}
	data, err := dataOf(b)
	if err != nil {
		return platform.Work{}, fmt.Errorf("showing bundle %s as a work: %w", b.ID, err)
	}
	w := platform.Work{
		ID: b.ID, Kind: platform.WorkKindManifestWork, Href: workPath + b.ID,
		ClusterID: b.ConsumerName, Name: nameOf(b), Generation: b.Version,
		Status: status, Data: data,
		CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt, DeletedAt: b.DeletedAt,
	}
	if d := b.Delivery; d != nil {
		p := platform.Delivery(*d)
		w.Delivery = &p
	}
	return w, nil
}

// nameOf is the name that the work was posted with. Bundles of sources that
// send no metadata are called by their id.
func nameOf(b maestro.ResourceBundle) string {
	var meta struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(b.Metadata, &meta) == nil && meta.Name != "" {
		return meta.Name
	}
	return b.Name
}

// dataOf is the ManifestWork that the bundle was made from.
func dataOf(b maestro.ResourceBundle) (json.RawMessage, error) {
	type workload struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	type spec struct {
		Workload        workload          `json:"workload"`
		DeleteOption    json.RawMessage   `json:"deleteOption,omitempty"`
		ManifestConfigs []json.RawMessage `json:"manifestConfigs,omitempty"`
	}
	metadata := b.Metadata
	if len(metadata) == 0 {
		var err error
		if metadata, err = json.Marshal(map[string]string{"name": b.Name, "namespace": b.ConsumerName}); err != nil {
			return nil, err
		}
	}
	data, err := json.Marshal(struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Metadata   json.RawMessage `json:"metadata"`
		Spec       spec            `json:"spec"`
	}{
		workv1.GroupVersion.String(), "ManifestWork", metadata,
		spec{workload{b.Manifests}, b.DeleteOption, b.ManifestConfigs},
	})
	if err != nil {
		return nil, err
	}
	return maskSecrets(data)
}

// statusOf shows a bundle's status as that of a ManifestWork. Lists are never
// null.
func statusOf(s *maestro.ResourceBundleStatus) (platform.WorkStatus, error) {
	status := platform.WorkStatus{
		Conditions:     []platform.Condition{},
		ResourceStatus: platform.ResourceStatus{Manifests: []platform.ManifestCondition{}},
	}
	if s == nil {
		return status, nil
	}
	status.ObservedGeneration = s.ObservedVersion
	for _, raw := range s.Conditions {
		var c platform.Condition
		if err := json.Unmarshal(raw, &c); err != nil {
			return status, err
		}
		status.Conditions = append(status.Conditions, c)
	}
	for _, raw := range s.ResourceStatus {
		var m platform.ManifestCondition
		if err := json.Unmarshal(raw, &m); err != nil {
			return status, err
		}
		status.ResourceStatus.Manifests = append(status.ResourceStatus.Manifests, m)
	}
	return status, nil
}

// created is the answer to POST.
func created(id, cluster, name string) platform.WorkCreated {
	status, _ := statusOf(nil)
	return platform.WorkCreated{
		ID: id, Kind: platform.WorkCreatedKindManifestWork, Href: workPath + id,
		ClusterID: cluster, Name: name, Status: status,
	}
}
