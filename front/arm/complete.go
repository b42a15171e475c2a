package arm

import (
	"fmt"
	"strings"

	"atoll.dev/cluster"
)

// complete fills in what depends on the region: the release, and the name of the managed resource group.
func (f *front) complete(p *problems, releases cluster.Releases, have, parent *resource, next *resource) {
	properties := next.spec.Properties
	asked := textAt(properties, "version", "id")
	v, _ := properties["version"].(map[string]any)
	if v == nil {
		v = map[string]any{}
		properties["version"] = v
	}
	if have != nil && asked == textAt(have.spec.Properties, "version", "id") {
		next.spec.Image = have.spec.Image
	} else if next.kind == kindPool {
		f.completePoolRelease(p, releases, asked, parent, next, v)
	} else {
		f.completeRelease(p, releases, asked, next, v)
	}
	if platform, isObject := properties["platform"].(map[string]any); isObject && next.kind == kindCluster &&
		platform["managedResourceGroup"] == nil {
		platform["managedResourceGroup"] = "arohcp-" + clusterNameOf(*next)
	}
}

func (f *front) completeRelease(p *problems, releases cluster.Releases, asked string, next *resource,
	v map[string]any) {
	if asked == "" {
		newest, offered := releases.Newest()
		if !offered {
			p.add("properties.version.id", "the region offers no release; its operator adds them")
			return
		}
		v["id"], next.spec.Image = minorOf(newest.Version), newest.Image
		return
	}
	release, offered, ok := releaseOf(releases, asked)
	if !ok {
		p.add("properties.version.id", "Unsupported value: %q: supported values: %s", asked, strings.Join(offered, ", "))
		return
	}
	next.spec.Image = release.Image
}

func (f *front) completePoolRelease(p *problems, releases cluster.Releases, asked string, parent, next *resource,
	v map[string]any) {
	if own := releases.VersionOf(parent.spec.Image); asked == "" || asked == own {
		v["id"], next.spec.Image = own, parent.spec.Image
		return
	}
	var offered []string
	for _, release := range releases {
		if release.Version == asked {
			next.spec.Image = release.Image
			return
		}
		offered = append(offered, fmt.Sprintf("%q", release.Version))
	}
	p.add("properties.version.id", "Unsupported value: %q: supported values: %s", asked, strings.Join(offered, ", "))
}
