package spec

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Release is one release that the region offers.
type Release struct {
	Version string // Kubernetes's, without v
	Image   string
}

// Releases are those that the region offers, in any order.
type Releases []Release

// Newest is the release that a cluster gets which names none.
func (r Releases) Newest() (newest Release, ok bool) {
	var best *version.Version
	for _, release := range r {
		v, err := version.ParseSemantic(release.Version)
		if err == nil && release.Image != "" && (best == nil || best.LessThan(v)) {
			best, newest, ok = v, release, true
		}
	}
	return newest, ok
}

// Of finds a release by its image.
func (r Releases) Of(image string) (Release, bool) {
	for _, release := range r {
		if release.Image == image && image != "" {
			return release, true
		}
	}
	return Release{}, false
}

// versionOf is the version of an image, by the releases and else by its tag:
// what a cluster runs may be offered no more.
func (r Releases) versionOf(image string) *version.Version {
	text := image[strings.LastIndex(image, ":")+1:]
	if release, ok := r.Of(image); ok {
		text = release.Version
	}
	v, err := version.ParseSemantic(text)
	if err != nil {
		return nil
	}
	return v
}

// known says whether an image is offered.
func (r Releases) known(p *Problems, path, image string) bool {
	if _, ok := r.Of(image); ok {
		return true
	}
	images := make([]string, len(r))
	for i, release := range r {
		images[i] = release.Image
	}
	p.add(path, "%s is not a release of this region; possible: %s", quote(image), strings.Join(images, ", "))
	return false
}

// upgrade says whether a control plane may go from one image to another.
func (r Releases) upgrade(p *Problems, path, have, want string) {
	if have == want || !r.known(p, path, want) {
		return
	}
	from, to := r.versionOf(have), r.versionOf(want)
	switch {
	case from == nil || to == nil:
	case to.LessThan(from):
		p.add(path, "is %s, and what runs is %s; a release does not go back", to, from)
	case to.Major() != from.Major() || to.Minor() > from.Minor()+1:
		p.add(path, "is %s, and what runs is %s; go up one minor version at a time", to, from)
	}
}
