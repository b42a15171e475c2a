package gitops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"runtime"

	"golang.org/x/sync/errgroup"

	"atoll.dev/internal/jsonvalue"
)

// Files are the rendered files by their paths below the directory of rendered files.
type Files map[string][]byte

// marker is in every rendered file. Files without it are never replaced or removed.
const marker = "Rendered by atoll config render. Edit the configuration instead."

// markerKey is the member with the marker in JSON, which has no comments.
const markerKey = "//"

// markerHead is how many bytes of a file show whether it is rendered.
const markerHead = 2 * len(marker)

// Types of clusters.
const (
	regionalCluster   = "regional-cluster"
	managementCluster = "management-cluster"
)

// managementClusters is the directory of the files of all management clusters, below that of their region.
const managementClusters = "management-clusters"

// Render returns the files of a fleet:
//
//	ENVIRONMENT/REGION/region.yaml                                 the region's own configuration
//	ENVIRONMENT/REGION/regional-cluster/root.yaml                  Argo CD's root Application
//	ENVIRONMENT/REGION/regional-cluster/apps/applicationset.yaml   what the root application syncs
//	ENVIRONMENT/REGION/regional-cluster/values.yaml                values of Helm
//	ENVIRONMENT/REGION/regional-cluster/terraform.json             variables of Terraform
//	ENVIRONMENT/REGION/management-clusters/NAME/...                the same four of each management cluster
//
// The bytes depend on the fleet only.
func Render(f Fleet) (Files, error) { return renderAll(f, &encoder{}) }

// renderAll renders a fleet with an encoder.
func renderAll(f Fleet, encode *encoder) (Files, error) {
	regions := f.Regions()
	rendered := make([]Files, len(regions))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, r := range regions {
		group.Go(func() error {
			rendered[i] = Files{}
			if err := renderRegion(r, rendered[i], encode); err != nil {
				return fmt.Errorf("rendering region %s/%s: %w", r.Environment, r.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	files := Files{}
	for _, ofRegion := range rendered {
		maps.Copy(files, ofRegion)
	}
	return files, nil
}

// target is a cluster that files are rendered for.
type target struct {
	region   Region
	typ      string // regional-cluster or management-cluster
	id       string // the name of the cluster in Argo CD and Terraform
	dir      string // of its files, below the directory of rendered files
	settings Settings
}

// Dir returns the directory of a region's files, below the directory of rendered files.
func (r Region) Dir() string { return path.Join(string(r.Environment), string(r.Name)) }

// clusterDir returns the directory of the files of a management cluster, below the directory of rendered files.
func (r Region) clusterDir(c Cluster) string {
	return path.Join(r.Dir(), managementClusters, string(c.Name))
}

func renderRegion(r Region, files Files, encode *encoder) error {
	dir := r.Dir()
	targets := []target{{r, regionalCluster, r.regionalID(), path.Join(dir, regionalCluster), r.Settings}}
	for _, c := range r.Clusters {
		targets = append(targets, target{r, managementCluster, c.ID(), r.clusterDir(c), c.Settings})
	}
	for _, t := range targets {
		documents := map[string]any{
			"root.yaml":                t.rootApplication(),
			"apps/applicationset.yaml": t.applicationSet(),
			"values.yaml":              dataForType(t.settings.Values, t.typ),
		}
		for name, document := range documents {
			b, err := encode.asYAML(document)
			if err != nil {
				return err
			}
			files[path.Join(t.dir, name)] = b
		}
		b, err := withMarker(t.terraform())
		if err != nil {
			return err
		}
		files[path.Join(t.dir, "terraform.json")] = b
	}
	b, err := encode.asYAML(Declare(r))
	files[path.Join(dir, "region.yaml")] = b
	return err
}

// dataForType returns the free-form data of a cluster of a type: Global merged with the data of the type.
func dataForType(d ByClusterType, typ string) map[string]any {
	own := d.RegionalCluster
	if typ == managementCluster {
		own = d.ManagementCluster
	}
	return jsonvalue.Overlay(d.Global, own)
}

// terraform returns the variables of a cluster. The configuration cannot override those that identify the cluster.
func (t target) terraform() map[string]any {
	own := map[string]any{
		"environment": t.region.Environment, "region": t.region.Name, "cluster_id": t.id,
		"cluster_type": t.typ, "aws_region": t.settings.AWS.Region, "account_id": t.settings.AWS.AccountID,
	}
	if t.region.Sector != "" {
		own["sector"] = t.region.Sector
	}
	if t.typ == managementCluster {
		own["regional_aws_account_id"] = t.region.Settings.AWS.AccountID
	} else {
		accounts := map[string]string{}
		for _, c := range t.region.Clusters {
			accounts[c.ID()] = c.Settings.AWS.AccountID
		}
		own["management_cluster_account_ids"] = accounts
	}
	variables := jsonvalue.Overlay(dataForType(t.settings.Terraform, t.typ), own)
	delete(variables, markerKey)
	return variables
}

// withMarker encodes variables of Terraform as JSON. The marker is the first member, whatever the names of the
// variables are.
func withMarker(variables map[string]any) ([]byte, error) {
	b, err := json.MarshalIndent(variables, "", "  ")
	if err != nil {
		return nil, err
	}
	members := bytes.TrimPrefix(b, []byte("{\n"))
	return fmt.Appendf(nil, "{\n  %q: %q,\n%s\n", markerKey, marker, members), nil
}

// IsRendered reports whether a file that begins with head has the marker where Render puts it.
func IsRendered(head []byte) bool {
	if yaml := []byte("# " + marker); bytes.HasPrefix(head, yaml) {
		return true
	}
	object, ok := bytes.CutPrefix(head, []byte("{"))
	return ok && bytes.HasPrefix(bytes.TrimLeft(object, " \r\n"), fmt.Appendf(nil, "%q: %q", markerKey, marker))
}
