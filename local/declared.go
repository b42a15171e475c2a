package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/gitops"
)

// ReadDeclaration reads the rendered configuration of a region, named REGION or ENVIRONMENT/REGION, below the
// directory of rendered files. The directory may also be that of the region itself.
func ReadDeclaration(dir, region string) (gitops.Declaration, error) {
	pattern := filepath.Join(dir, "*", region, "region.yaml")
	if strings.Contains(region, "/") {
		pattern = filepath.Join(dir, filepath.FromSlash(region), "region.yaml")
	}
	found, err := filepath.Glob(pattern)
	switch {
	case err != nil:
		return gitops.Declaration{}, fmt.Errorf("%s: %w", pattern, err)
	case len(found) == 0 && filepath.Base(filepath.Clean(dir)) == path.Base(region) &&
		exists(filepath.Join(dir, "region.yaml")):
		found = []string{filepath.Join(dir, "region.yaml")}
	case len(found) == 0:
		return gitops.Declaration{}, fmt.Errorf("no file %s: declare the region and run `atoll config render`", pattern)
	case len(found) > 1:
		return gitops.Declaration{}, fmt.Errorf("several environments have the region %s: name one of %s", region,
			strings.Join(found, ", "))
	}
	own := filepath.Dir(found[0])
	d, err := gitops.ReadRegion(os.DirFS(own), own)
	if err != nil {
		return d, fmt.Errorf("%w\nrender the file again with this version of atoll", err)
	}
	return d, nil
}

// clusterNames returns the names of the management clusters of a declaration.
func clusterNames(d gitops.Declaration) []cluster.ManagementCluster {
	names := make([]cluster.ManagementCluster, len(d.ManagementClusters))
	for i, c := range d.ManagementClusters {
		names[i] = cluster.ManagementCluster(c.Name)
	}
	return names
}

// ApplyOptions are the parameters of Apply.
type ApplyOptions struct {
	Programs string            // directory with programs of other versions; "": as it is in the home
	Show     func(Event)       // gets each stage of the start
	Removed  func(name string) // gets each management cluster that was removed
}

// Apply starts the region of the home as declared. In a running region it replaces each process whose settings have
// changed, and adds, limits, labels, cordons, uncordons and removes management clusters until it is as declared.
//
// It refuses to remove a management cluster that hosts clusters; then it removes none, and keeps those that it has
// added. After an error, the caller may call Apply again. It refuses the home of another environment, and a home that
// `atoll up` made. Before it changes anything it refuses a version without programs, a version that is older than the
// region, and values of Helm that a region on one machine reads and cannot have.
func (h Home) Apply(ctx context.Context, d gitops.Declaration, o ApplyOptions) error {
	settings, err := settingsOf(d)
	if err != nil {
		return err
	}
	programs, description, err := h.choosePrograms(ctx, d, o.Programs)
	if err != nil {
		return err
	}
	opts := UpOptions{Region: string(d.Region), Environment: string(d.Environment), Clusters: clusterNames(d),
		Settings: settings, Programs: &programs}
	removed := o.Removed
	// Up would wait for a cluster that never registers, although it is not declared any more.
	if err := h.removeUnregistered(ctx, opts, removed); err != nil {
		return err
	}
	if _, err := h.Up(ctx, opts, o.Show); err != nil {
		return err
	}
	if err := h.recordServing(description); err != nil {
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
	extra, err := undeclaredClusters(st, d, registered)
	if err != nil {
		return err
	}
	memory, err := machineMemory()
	if err != nil {
		return err
	}
	for _, mc := range registered {
		change := limitsChange(d, mc, st.limitsOf(cluster.ManagementCluster(mc.Name), memory, h.Programs()))
		change.State, change.Labels = stateChange(d, mc), labelsChange(d, mc)
		if change.State == "" && change.Labels == nil && change.Capacity == nil && change.Versions == nil {
			continue
		}
		if _, err := api.UpdateManagementCluster(ctx, mc.Name, change); err != nil {
			return fmt.Errorf("management cluster %s: %w", mc.Name, err)
		}
	}
	for _, name := range extra {
		if err := h.deleteCluster(ctx, api, name); err != nil {
			return err
		}
		removed(string(name))
	}
	return nil
}

// undeclaredClusters returns the management clusters of this machine that are not declared. Clusters of
// other machines have joined the region, and Apply does not remove them. It returns an error when an
// undeclared cluster hosts clusters, or when the region cannot determine whether it does.
func undeclaredClusters(st State, d gitops.Declaration, registered []platform.ManagementCluster) (
	[]cluster.ManagementCluster, error) {
	declared := clusterNames(d)
	isDeclared := func(name cluster.ManagementCluster) bool { return slices.Contains(declared, name) }
	for _, mc := range registered {
		name := cluster.ManagementCluster(mc.Name)
		switch {
		case isDeclared(name) || !slices.Contains(st.Clusters, name):
		case mc.State == "": // the lifecycle manager did not answer the Platform API
			return nil, fmt.Errorf("the management cluster %s is not declared any more, and the region does not know how many "+
				"clusters it hosts: apply again, or run `atoll mc delete %s`", mc.Name, mc.Name)
		case mc.Placements > 0:
			return nil, fmt.Errorf("the management cluster %s is not declared any more and hosts %d clusters: run `atoll mc "+
				"drain %s`, delete or move them, and apply again", mc.Name, mc.Placements, mc.Name)
		}
	}
	return slices.DeleteFunc(slices.Clone(st.Clusters), isDeclared), nil
}

// deleteCluster deletes a management cluster at the region, when it is registered, and then stops its processes.
func (h Home) deleteCluster(ctx context.Context, api *client.Client, name cluster.ManagementCluster) error {
	err := api.DeleteManagementCluster(ctx, string(name))
	if err != nil && remote.StatusOf(err) != http.StatusNotFound {
		return fmt.Errorf("removing the management cluster %s: %w", name, err)
	}
	return h.RemoveCluster(name)
}

// removeUnregistered removes the management clusters of this machine that are neither declared nor registered: those
// that never registered, and those whose removal stopped halfway. It does nothing while the region does not serve.
func (h Home) removeUnregistered(ctx context.Context, opts UpOptions, removed func(name string)) error {
	st, err := h.State()
	if _, isRunning := h.supervisorRecord(); errors.Is(err, ErrNoRegion) || err == nil && !isRunning {
		return nil
	}
	if err != nil {
		return err
	}
	if err := h.checkOwner(st, opts); err != nil {
		return err
	}
	api, err := h.Client()
	if err != nil {
		return nil // the first start has not made the credentials
	}
	listing, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	registered, err := api.ManagementClusters(listing)
	if err != nil {
		return ctx.Err() // Up waits until the region serves
	}
	for _, name := range st.Clusters {
		isRegistered := slices.ContainsFunc(registered, func(mc platform.ManagementCluster) bool {
			return mc.Name == string(name)
		})
		if isRegistered || slices.Contains(opts.Clusters, name) {
			continue
		}
		// The cluster may have registered since.
		if err := h.deleteCluster(ctx, api, name); err != nil {
			return err
		}
		removed(string(name))
	}
	return nil
}

// stateChange returns the declared state of a management cluster if it differs from the registered one, and
// "" otherwise. A drained cluster stays drained.
func stateChange(d gitops.Declaration, mc platform.ManagementCluster) platform.ManagementClusterUpdateState {
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

// labelsOf returns the labels that a management cluster is to have: the declared ones, and those that every management
// cluster of this machine has, unless the declaration has other values for them.
func labelsOf(c gitops.DeclaredCluster) map[string]string {
	labels := ownLabels(c.Name)
	maps.Copy(labels, c.Settings.Labels)
	return labels
}

// labelsChange returns all labels of a declared management cluster if they differ from the registered ones,
// and nil otherwise.
func labelsChange(d gitops.Declaration, mc platform.ManagementCluster) map[string]string {
	for _, c := range d.ManagementClusters {
		if labels := labelsOf(c); c.Name == mc.Name && !maps.Equal(labels, mc.Labels) {
			return labels
		}
	}
	return nil
}

// limitsChange returns the capacity and the releases of a declared management cluster, each only if it
// differs from the registered one.
func limitsChange(d gitops.Declaration, mc platform.ManagementCluster, limits platform.ManagementClusterUpdate) (
	change platform.ManagementClusterUpdate) {
	if !slices.Contains(clusterNames(d), cluster.ManagementCluster(mc.Name)) {
		return change
	}
	if !maps.Equal(limits.Capacity, mc.Capacity) {
		change.Capacity = limits.Capacity
	}
	if !slices.Equal(limits.Versions, mc.Versions) {
		change.Versions = limits.Versions
	}
	return change
}
