package gitops

import (
	"encoding/json"
	"errors"
	"reflect"
)

// Declaration is the region's own configuration, from which a region on one machine is
// brought up. Its form is that of region.yaml.
type Declaration struct {
	Environment        EnvironmentName   `json:"environment"`
	Sector             SectorName        `json:"sector,omitempty"`
	Region             RegionName        `json:"region"`
	Versions           Versions          `json:"versions"`
	Services           Services          `json:"services"`
	ManagementClusters []DeclaredCluster `json:"managementClusters"`
}

// DeclaredCluster is a management cluster of a Declaration.
type DeclaredCluster struct {
	Name     string                    `json:"name"` // its consumer name
	Settings ManagementClusterSettings `json:"settings"`
}

// Declare returns the Declaration of a region.
func Declare(r Region) Declaration {
	d := Declaration{Environment: r.Environment, Sector: r.Sector, Region: r.Name, Versions: r.Settings.Versions,
		Services: r.Settings.Services, ManagementClusters: []DeclaredCluster{}}
	for _, c := range r.Clusters {
		d.ManagementClusters = append(d.ManagementClusters, DeclaredCluster{c.ID(), c.Settings.ManagementCluster})
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
	return d, nil
}
