package arm

import (
	"fmt"
	"strings"

	"atoll.dev/cluster"
)

// completeSpec sets the properties that depend on the region: the release, and the name of the managed
// resource group.
func (f *front) completeSpec(p *problems, releases cluster.Releases, have, parent *resource, next *resource) {
	properties := next.spec.Properties
	requested := textAt(properties, "version", "id")
	v, _ := properties["version"].(map[string]any)
	if v == nil {
		v = map[string]any{}
		properties["version"] = v
	}
	if have != nil && requested == textAt(have.spec.Properties, "version", "id") {
		next.spec.Image = have.spec.Image
	} else if next.kind == kindPool {
		f.completePoolRelease(p, releases, requested, parent, next, v)
	} else {
		f.completeRelease(p, releases, requested, next, v)
	}
	if platform, isObject := properties["platform"].(map[string]any); isObject && next.kind == kindCluster &&
		platform["managedResourceGroup"] == nil {
		platform["managedResourceGroup"] = "arohcp-" + clusterNameOf(*next)
	}
}

// completeRelease sets the release of a cluster: the newest one of the requested minor version, or the
// newest of all.
func (f *front) completeRelease(p *problems, releases cluster.Releases, requested string, next *resource,
	v map[string]any) {
	if requested == "" {
		newest, offered := releases.Newest()
		if !offered {
			p.add("properties.version.id", "the region offers no release; its operator adds them")
			return
		}
		v["id"], next.spec.Image = minorOf(newest.Version), newest.Image
		return
	}
	release, offered, ok := releaseOf(releases, requested)
	if !ok {
		p.add("properties.version.id", "Unsupported value: %q: supported values: %s", requested, strings.Join(offered, ", "))
		return
	}
	next.spec.Image = release.Image
}

// completePoolRelease sets the release of a node pool: the requested one, or that of its cluster.
func (f *front) completePoolRelease(p *problems, releases cluster.Releases, requested string, parent, next *resource,
	v map[string]any) {
	if own := releases.VersionOf(parent.spec.Image); requested == "" || requested == own {
		v["id"], next.spec.Image = own, parent.spec.Image
		return
	}
	var offered []string
	for _, release := range releases {
		if release.Version == requested {
			next.spec.Image = release.Image
			return
		}
		offered = append(offered, fmt.Sprintf("%q", release.Version))
	}
	p.add("properties.version.id", "Unsupported value: %q: supported values: %s", requested, strings.Join(offered, ", "))
}
