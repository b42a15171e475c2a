package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"atoll.dev/api/platform"
	"atoll.dev/gitops"
)

// ReadDeclaration reads the rendered configuration of a region, named REGION or ENVIRONMENT/REGION, below the
// directory of rendered files.
func ReadDeclaration(dir, region string) (gitops.Declaration, error) {
	pattern := filepath.Join(dir, "*", region, "region.yaml")
	if strings.Contains(region, "/") {
		pattern = filepath.Join(dir, filepath.FromSlash(region), "region.yaml")
	}
	found, err := filepath.Glob(pattern)
	switch {
	case err != nil:
		return gitops.Declaration{}, fmt.Errorf("%s: %w", pattern, err)
	case len(found) == 0:
		return gitops.Declaration{}, fmt.Errorf("no file %s: declare the region and run `atoll config render`", pattern)
	case len(found) > 1:
		return gitops.Declaration{}, fmt.Errorf("several environments have the region %s: name one of %s", region,
			strings.Join(found, ", "))
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		return gitops.Declaration{}, err
	}
	var d gitops.Declaration
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		return d, fmt.Errorf("%s: %w; render it again with this version of atoll", found[0], err)
	}
	if d.Region == "" {
		return d, fmt.Errorf("%s names no region; render it again", found[0])
	}
	return d, nil
}

// clusterNames returns the names of the management clusters of a declaration.
func clusterNames(d gitops.Declaration) []string {
	names := make([]string, len(d.ManagementClusters))
	for i, c := range d.ManagementClusters {
		names[i] = c.Name
	}
	return names
}

// Apply brings the region of the home up as it is declared, and changes a running one until it is so: it adds, cordons,
// uncordons and removes management clusters. It refuses to remove a management cluster that hosts clusters, and then
// removes none; what it has added stays. It calls removed with each removed one. Apply may be repeated after an error.
func (h Home) Apply(ctx context.Context, d gitops.Declaration, show func(Event), removed func(name string)) error {
	names := clusterNames(d)
	if _, err := h.Up(ctx, UpOptions{Region: string(d.Region), Clusters: names}, show); err != nil {
		return err
	}
	api, err := h.Client()
	if err != nil {
		return err
	}
	registered, err := api.ManagementClusters(ctx)
	if err != nil {
		return err
	}
	st, err := h.State()
	if err != nil {
		return err
	}
	var extra []string
	for _, mc := range registered {
		// Of the clusters that are not declared, those of this machine are ours to remove; others have joined.
		if slices.Contains(names, mc.Name) || !slices.Contains(st.Clusters, mc.Name) {
			continue
		}
		if mc.Placements > 0 {
			return fmt.Errorf("the management cluster %s is not declared any more and hosts %d clusters: run `atoll mc drain "+
				"%s`, delete or move them, and apply again", mc.Name, mc.Placements, mc.Name)
		}
		extra = append(extra, mc.Name)
	}
	for _, mc := range registered {
		if state := stateToSet(d, mc); state != "" {
			_, err := api.UpdateManagementCluster(ctx, mc.Name, platform.ManagementClusterUpdate{State: state})
			if err != nil {
				return fmt.Errorf("management cluster %s: %w", mc.Name, err)
			}
		}
	}
	for _, name := range extra {
		if err := api.DeleteManagementCluster(ctx, name); err != nil {
			return fmt.Errorf("removing the management cluster %s: %w", name, err)
		}
		if err := h.RemoveCluster(name); err != nil {
			return err
		}
		removed(name)
	}
	return nil
}

// stateToSet returns the state that the declaration has for a management cluster, and "" when it has it already. A
// drained one stays so.
func stateToSet(d gitops.Declaration, mc platform.ManagementCluster) platform.ManagementClusterUpdateState {
	for _, c := range d.ManagementClusters {
		switch isCordoned := mc.State == platform.ManagementClusterStateCordoned; {
		case c.Name != mc.Name:
		case c.Settings.Cordoned && mc.State == platform.ManagementClusterStateReady:
			return platform.ManagementClusterUpdateStateCordoned
		case !c.Settings.Cordoned && isCordoned:
			return platform.ManagementClusterUpdateStateReady
		}
	}
	return ""
}

// Drift is a difference between what is declared and what runs.
type Drift struct {
	What     string `json:"what"` // region, a management cluster
	Declared string `json:"declared"`
	Running  string `json:"running"`
}

// Drift compares the declaration of a region with what runs.
func (h Home) Drift(ctx context.Context, d gitops.Declaration) ([]Drift, error) {
	st, err := h.State()
	if err != nil {
		return nil, err
	}
	drift := []Drift{}
	add := func(what, declared, running string) {
		if declared != running {
			drift = append(drift, Drift{what, declared, running})
		}
	}
	add("region", string(d.Region), st.Region)
	status, err := h.Status(ctx)
	if err != nil {
		return nil, err
	}
	if !status.Ready {
		add("processes", "ready", "not ready; see `atoll status`")
		return drift, nil
	}
	api, err := h.Client()
	if err != nil {
		return nil, err
	}
	registered, err := api.ManagementClusters(ctx)
	if err != nil {
		return nil, err
	}
	running := map[string]string{}
	for _, mc := range registered {
		running[mc.Name] = string(mc.State)
	}
	for _, c := range d.ManagementClusters {
		state, has := running[c.Name]
		delete(running, c.Name)
		want := string(platform.ManagementClusterStateReady)
		if c.Settings.Cordoned {
			want = string(platform.ManagementClusterStateCordoned)
		}
		if !has {
			state = "absent"
		}
		add(c.Name, want, state)
	}
	for _, name := range st.Clusters {
		if state, undeclared := running[name]; undeclared {
			add(name, "absent", state)
		}
	}
	return drift, nil
}
