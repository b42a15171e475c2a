package rosa

import (
	"encoding/json"
	"fmt"

	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/maestro"
	"atoll.dev/api/platform"
)

// workPath is the path of works in answers, without the stage, as in the contract.
const workPath = "/api/v0/work/"

// decodeWork gives a bundle of Maestro, in JSON, the shape of a work, with masked
// Secrets.
func decodeWork(bundle []byte) (platform.Work, error) {
	var b maestro.ResourceBundle
	if err := json.Unmarshal(bundle, &b); err != nil {
		return platform.Work{}, fmt.Errorf("reading a bundle of Maestro: %w", err)
	}
	return toWork(b)
}

// toWork gives a bundle of Maestro the shape of a work, with masked Secrets.
func toWork(b maestro.ResourceBundle) (platform.Work, error) {
	status, err := toWorkStatus(b.Status)
	if err != nil {
		return platform.Work{}, fmt.Errorf("reading the status of bundle %s: %w", b.ID, err)
	}
	data, err := toManifestWork(b)
	if err != nil {
		return platform.Work{}, fmt.Errorf("showing bundle %s as a work: %w", b.ID, err)
	}
	w := platform.Work{
		ID: b.ID, Kind: platform.WorkKindManifestWork, Href: workPath + b.ID,
		ClusterID: b.ConsumerName, Name: workName(b), Generation: b.Version,
		Status: status, Data: data,
		CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt, DeletedAt: b.DeletedAt,
	}
	if d := b.Delivery; d != nil {
		p := platform.Delivery(*d)
		w.Delivery = &p
	}
	return w, nil
}

// workName returns the name that the work was posted with, and the id of a bundle
// whose source sends no metadata.
func workName(b maestro.ResourceBundle) string {
	var meta struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(b.Metadata, &meta) == nil && meta.Name != "" {
		return meta.Name
	}
	return b.Name
}

// toManifestWork returns the ManifestWork that a bundle was made from, with masked
// Secrets.
func toManifestWork(b maestro.ResourceBundle) (json.RawMessage, error) {
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

// toWorkStatus gives the status of a bundle the shape of a ManifestWork's, with masked
// values of Secrets. Its lists are never null.
func toWorkStatus(s *maestro.ResourceBundleStatus) (platform.WorkStatus, error) {
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
		shown, err := maskSecrets(raw)
		if err != nil {
			return status, err
		}
		var m platform.ManifestCondition
		if err := json.Unmarshal(shown, &m); err != nil {
			return status, err
		}
		status.ResourceStatus.Manifests = append(status.ResourceStatus.Manifests, m)
	}
	return status, nil
}

// createdWork returns the answer to POST.
func createdWork(id, cluster, name string) platform.WorkCreated {
	status, _ := toWorkStatus(nil)
	return platform.WorkCreated{
		ID: id, Kind: platform.WorkCreatedKindManifestWork, Href: workPath + id,
		ClusterID: cluster, Name: name, Status: status,
	}
}
