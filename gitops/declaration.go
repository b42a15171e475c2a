package gitops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"strings"
)

// Declaration is the region's own configuration, from which a region on one machine is
// brought up. Its form is that of region.yaml, and the values of Helm are those of the files beside it.
type Declaration struct {
	Environment        EnvironmentName   `json:"environment"`
	Sector             SectorName        `json:"sector,omitempty"`
	Region             RegionName        `json:"region"`
	Versions           Versions          `json:"versions"`
	Services           Services          `json:"services"`
	ManagementClusters []DeclaredCluster `json:"managementClusters"`

	Values Document `json:"-"` // of Helm, of the regional cluster

	set *node // what sets Versions and Services; nil in a Declaration that was not read
}

// DeclaredCluster is a management cluster of a Declaration.
type DeclaredCluster struct {
	Name     string                    `json:"name"` // its consumer name
	Settings ManagementClusterSettings `json:"settings"`

	Values Document `json:"-"` // of Helm
}

// At returns the position of a value, such as versions.atoll, or of the nearest mapping around it.
func (d Declaration) At(path ...string) Position { return Document{d.set}.Value(path).At }

// Declare returns the Declaration of a region.
func Declare(r Region) Declaration {
	d := Declaration{Environment: r.Environment, Sector: r.Sector, Region: r.Name, Versions: r.Settings.Versions,
		Services: r.Settings.Services, ManagementClusters: []DeclaredCluster{},
		Values: helmValues(r.settings, regionalCluster), set: r.settings}
	for _, c := range r.Clusters {
		d.ManagementClusters = append(d.ManagementClusters, DeclaredCluster{c.ID(), c.Settings.ManagementCluster,
			helmValues(c.settings, managementCluster)})
	}
	return d
}

var declarationShape = shapeOf(reflect.TypeFor[Declaration]())

// ParseDeclaration reads a rendered region.yaml. The error joins all mistakes, each with its file and line: unknown
// keys, values of a wrong kind, and names that are missing, not valid or there twice.
func ParseDeclaration(file string, data []byte) (Declaration, error) {
	root, err := parse(file, data)
	if err == nil {
		err = declarationShape.check(root)
	}
	var d Declaration
	if err == nil {
		var plain []byte
		if plain, err = json.Marshal(root.plain()); err == nil {
			err = json.Unmarshal(plain, &d)
		}
	}
	if err != nil {
		return Declaration{}, err
	}
	mistakes := []error{checkName(root.at, "environment", string(d.Environment)),
		checkName(root.at, "region", string(d.Region))}
	lines := map[string]int{}
	for i, c := range d.ManagementClusters {
		at := root.get("managementClusters").items[i].at
		mistakes = append(mistakes, checkName(at, "management cluster", c.Name))
		if lines[c.Name] > 0 {
			mistakes = append(mistakes, at.errorf("the management cluster %s is there twice; first on line %d", c.Name,
				lines[c.Name]))
		}
		lines[c.Name] = at.Line
	}
	if err := errors.Join(mistakes...); err != nil {
		return Declaration{}, err
	}
	d.set = root
	return d, nil
}

// ReadRegion reads what was rendered for a region: region.yaml in a directory, and the values of Helm of its clusters
// in the directories below. dir is the name that errors and positions give the directory.
func ReadRegion(files fs.FS, dir string) (Declaration, error) {
	const own = "region.yaml"
	data, err := fs.ReadFile(files, own)
	if err != nil {
		return Declaration{}, err
	}
	d, err := ParseDeclaration(path.Join(dir, own), data)
	if err != nil {
		return Declaration{}, err
	}
	var mistakes []error
	readValues := func(cluster string) Document {
		name := path.Join(cluster, "values.yaml")
		data, err := fs.ReadFile(files, name)
		var values Document
		if err == nil {
			values, err = ParseDocument(path.Join(dir, name), data)
		} else {
			err = fmt.Errorf("the values of Helm %s: %w", path.Join(dir, name), err)
		}
		mistakes = append(mistakes, err)
		return values
	}
	d.Values = readValues(regionalCluster)
	for i, c := range d.ManagementClusters {
		name := strings.TrimSuffix(c.Name, "-"+string(d.Region))
		d.ManagementClusters[i].Values = readValues(path.Join(managementClusters, name))
	}
	return d, errors.Join(mistakes...)
}

// helmValues returns the values of Helm of a cluster as dataForType has them, with their positions.
func helmValues(settings *node, typ string) Document {
	return Document{mergeValues(settings.get("values", "global"), settings.get("values", typ))}
}

// mergeValues merges values of Helm: those of over replace those of base, and mappings are merged key by key. A deleted
// node of over replaces nothing.
func mergeValues(base, over *node) *node {
	switch {
	case over == nil || over.kind == deleted:
		return base
	case base == nil || base.kind != mapping || over.kind != mapping:
		return over
	}
	merged := *over
	merged.members = map[string]*node{}
	maps.Copy(merged.members, base.members) // which may be nil
	for key, value := range over.members {
		merged.members[key] = mergeValues(base.members[key], value)
	}
	return &merged
}
